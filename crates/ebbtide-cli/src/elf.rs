//! Reads a program's ELF header and file mode, to find whether a preloaded library can take effect in it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use goblin::container::Ctx;
use goblin::elf::header::{self, ET_DYN, ET_EXEC};
use goblin::elf::program_header::{PT_INTERP, ProgramHeader};
use goblin::elf::section_header::{SHN_UNDEF, SHT_DYNSYM, SectionHeader};
use goblin::elf::sym::{Sym, Symtab};
use goblin::elf::{Elf, Header};
use rustix::fs::{StatVfs, StatVfsMountFlags, getxattr_query, statvfs};
use rustix::process::{getgid, getuid};
use rustix::thread::no_new_privs;

use ebbtide_interface::known::{self, Known};

/// Upper bound of the size of a program's table.
const MAX_TABLE_BYTES: usize = 256 << 20;

#[cfg(target_arch = "x86_64")]
const OWN_MACHINE: u16 = header::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const OWN_MACHINE: u16 = header::EM_AARCH64;

/// The obstacle in this ELF file that keeps the library out, if there is one; `Err` if the file is no program.
pub fn describe(file: &File) -> Result<Option<Obstacle>, String> {
    let mut head = [0u8; 64];
    let len = read_head(file, &mut head);
    let elf: Header =
        Elf::parse_header(&head[..len]).map_err(|_| "its ELF header is damaged".to_owned())?;
    if elf.e_type != ET_EXEC && elf.e_type != ET_DYN {
        return Err("it is an ELF file, but not a program (an object file or a core dump?)".into());
    }
    let because = |known, detail: &str| Ok(Some(Obstacle::new(known, detail)));
    if !elf.container().is_ok_and(|c| c.is_big()) {
        return because(&known::MACHINE, "32-bit");
    }
    if elf.e_machine != OWN_MACHINE {
        return because(&known::MACHINE, header::machine_to_str(elf.e_machine));
    }
    match interpreter(file, &elf)? {
        None => because(&known::STATIC, "no PT_INTERP"),
        Some(_) if defines_malloc(file) => because(&known::OWN_MALLOC, ""),
        Some(_) => Ok(None),
    }
}

/// The reason why a program cannot run under Ebbtide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The id of the known combination.
    pub id: &'static str,
    /// The message without the program's name.
    pub text: String,
}

impl Obstacle {
    /// A known combination, with a detail about the case that was found.
    pub fn new(known: &Known, detail: &str) -> Self {
        let detail = match detail {
            "" => String::new(),
            detail => format!(" ({detail})"),
        };
        let Known {
            id,
            what,
            happens,
            remedy,
            ..
        } = known;
        let text = format!("{what}{detail}: {happens}; {remedy}");
        Obstacle { id, text }
    }
}

/// Whether this program or library exports `malloc`. `false` if that cannot be read.
pub fn defines_malloc(file: &File) -> bool {
    exported(file, "malloc").unwrap_or(false)
}

/// Searches the dynamic symbols. `None`: there are none, or the file is damaged.
fn exported(file: &File, wanted: &str) -> Option<bool> {
    let mut head = [0u8; 64];
    let len = read_head(file, &mut head);
    let elf: Header = Elf::parse_header(&head[..len]).ok()?;
    let ctx = Ctx::new(elf.container().ok()?, elf.endianness().ok()?);
    let part = |at: u64, len: usize| {
        let mut bytes = vec![0u8; (len <= MAX_TABLE_BYTES).then_some(len)?];
        file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    };
    let count = usize::from(elf.e_shnum);
    let table = part(elf.e_shoff, count * usize::from(elf.e_shentsize))?;
    let sections = SectionHeader::parse_from(&table, 0, count, ctx).ok()?;
    let symbols = sections.iter().find(|s| s.sh_type == SHT_DYNSYM)?;
    let names = sections.get(symbols.sh_link as usize)?;
    let names = part(names.sh_offset, names.sh_size as usize)?;
    let bytes = part(symbols.sh_offset, symbols.sh_size as usize)?;
    let count = bytes.len() / Sym::size(ctx.container);
    let mut symbols = Symtab::parse(&bytes, 0, count, ctx).ok()?.iter();
    Some(symbols.any(|symbol| {
        let name = names.get(symbol.st_name..).unwrap_or_default();
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        symbol.st_shndx != SHN_UNDEF as usize && &name[..end] == wanted.as_bytes()
    }))
}

fn interpreter(file: &File, elf: &Header) -> Result<Option<PathBuf>, String> {
    let damaged = |_| "its program headers are damaged".to_owned();
    let ctx = Ctx::new(
        elf.container().map_err(damaged)?,
        elf.endianness().map_err(damaged)?,
    );
    let count = usize::from(elf.e_phnum);
    let mut table = vec![0u8; count * usize::from(elf.e_phentsize)];
    file.read_exact_at(&mut table, elf.e_phoff)
        .map_err(|_| "it is cut short".to_owned())?;
    let table = ProgramHeader::parse(&table, 0, count, ctx).map_err(damaged)?;
    let Some(entry) = table.iter().find(|p| p.p_type == PT_INTERP) else {
        return Ok(None);
    };
    let mut name = vec![0u8; entry.p_filesz.min(4096) as usize];
    file.read_exact_at(&mut name, entry.p_offset)
        .map_err(|_| "it is cut short".to_owned())?;
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    name.truncate(end);
    Ok(Some(OsString::from_vec(name).into()))
}

/// Reads the start of the file, up to the size of the buffer. Returns the number of bytes.
pub fn read_head(file: &File, buffer: &mut [u8]) -> usize {
    let mut len = 0;
    while len < buffer.len() {
        match file.read_at(&mut buffer[len..], len as u64) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    len
}

/// Whether starting this file changes credentials, so that the loader runs in
/// secure mode (`AT_SECURE`).
pub fn gains_privilege(path: &Path, file: &File) -> Option<&'static str> {
    let meta = file.metadata().ok()?;
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let is_nosuid = |fs: StatVfs| fs.f_flag.contains(StatVfsMountFlags::NOSUID);
    if statvfs(path).is_ok_and(is_nosuid) || no_new_privs().unwrap_or(false) {
        return None;
    }
    let mode = meta.mode();
    if mode & libc::S_ISUID != 0 && meta.uid() != uid {
        return Some("set-user-ID");
    }
    let set_gid = mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0;
    if set_gid && meta.gid() != gid {
        return Some("set-group-ID");
    }
    let caps = getxattr_query(path, "security.capability").unwrap_or(0);
    (caps > 0 && uid != 0).then_some("file capabilities")
}

/// A program to test with.
#[cfg(test)]
pub mod fixture {
    use super::*;

    /// The smallest 64-bit program file, with or without an interpreter.
    pub fn elf64(interp: bool) -> Vec<u8> {
        let mut f = vec![0u8; 64];
        f[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        f[16] = ET_DYN as u8;
        f[18..20].copy_from_slice(&OWN_MACHINE.to_le_bytes());
        f[20] = 1;
        f[32] = 64; // e_phoff
        f[52] = 64; // e_ehsize
        f[54] = 56; // e_phentsize
        f[56] = 1; // e_phnum
        let mut ph = vec![0u8; 56];
        ph[0] = if interp { PT_INTERP as u8 } else { 1 };
        ph[8] = 120; // p_offset
        ph[32] = 28; // p_filesz
        f.extend(ph);
        f.extend(b"/lib64/ld-linux-x86-64.so.2\0");
        f
    }
}
