//! Reads a program's ELF header and file mode, to find whether a preloaded library can take effect in it.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

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
    let elf = Parts::of(file)?;
    if ![ET_EXEC, ET_DYN].contains(&elf.header.e_type) {
        return Err("it is an ELF file, but not a program (an object file or a core dump?)".into());
    }
    let because = |known, detail: &str| Ok(Some(Obstacle::new(known, detail)));
    let machine = elf.header.e_machine;
    if !elf.ctx.container.is_big() {
        return because(&known::MACHINE, "32-bit");
    }
    if machine != OWN_MACHINE {
        return because(&known::MACHINE, header::machine_to_str(machine));
    }
    match elf.interpreter()? {
        None => because(&known::STATIC, "no PT_INTERP"),
        Some(_) if defines_malloc(file) => because(&known::OWN_MALLOC, ""),
        Some(_) => Ok(None),
    }
}

/// Whether this program or library exports `malloc`. `false` if that cannot be read.
pub fn defines_malloc(file: &File) -> bool {
    let exported = |elf: Parts<'_>| elf.exports(&["malloc"]);
    Parts::of(file).ok().and_then(exported).unwrap_or(false)
}

/// Whether this library, which must be one for this machine, exports all these symbols.
pub fn exports(file: &File, wanted: &[&str]) -> Result<bool, String> {
    let elf = Parts::of(file)?;
    if elf.header.e_type != ET_DYN {
        return Err("it is an ELF file, but not a library".into());
    }
    if !elf.ctx.container.is_big() || elf.header.e_machine != OWN_MACHINE {
        return Err("it is for another processor, or 32-bit".into());
    }
    let exported = elf.exports(wanted);
    exported.ok_or_else(|| "its symbols cannot be read".into())
}

/// An ELF file of which only the needed tables are read.
struct Parts<'a> {
    file: &'a File,
    header: Header,
    ctx: Ctx,
}

impl<'a> Parts<'a> {
    fn of(file: &'a File) -> Result<Self, String> {
        let damaged = |_| "its ELF header is damaged".to_owned();
        let header: Header = Elf::parse_header(&read_head(file, 64)).map_err(damaged)?;
        let container = header.container().map_err(damaged)?;
        let ctx = Ctx::new(container, header.endianness().map_err(damaged)?);
        Ok(Parts { file, header, ctx })
    }

    fn read(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0u8; (len <= MAX_TABLE_BYTES).then_some(len)?];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }

    /// The path of the program's loader; `None` if it has none.
    fn interpreter(&self) -> Result<Option<String>, String> {
        const CUT: &str = "it is cut short";
        let count = usize::from(self.header.e_phnum);
        let len = count * usize::from(self.header.e_phentsize);
        let table = self.read(self.header.e_phoff, len).ok_or(CUT)?;
        let table = ProgramHeader::parse(&table, 0, count, self.ctx);
        let table = table.map_err(|_| "its program headers are damaged")?;
        let Some(entry) = table.iter().find(|p| p.p_type == PT_INTERP) else {
            return Ok(None);
        };
        let name = self.read(entry.p_offset, entry.p_filesz.min(4096) as usize);
        let name = name.ok_or(CUT)?;
        Ok(Some(String::from_utf8_lossy(until_nul(&name)).into_owned()))
    }

    /// Searches the dynamic symbols for all of these. `None`: there are none, or the file is damaged.
    fn exports(&self, wanted: &[&str]) -> Option<bool> {
        let (header, ctx) = (&self.header, self.ctx);
        let count = usize::from(header.e_shnum);
        let table = self.read(header.e_shoff, count * usize::from(header.e_shentsize))?;
        let sections = SectionHeader::parse_from(&table, 0, count, ctx).ok()?;
        let symbols = sections.iter().find(|s| s.sh_type == SHT_DYNSYM)?;
        let names = sections.get(symbols.sh_link as usize)?;
        let names = self.read(names.sh_offset, names.sh_size as usize)?;
        let bytes = self.read(symbols.sh_offset, symbols.sh_size as usize)?;
        let count = bytes.len() / Sym::size(ctx.container);
        let symbols = Symtab::parse(&bytes, 0, count, ctx).ok()?;
        let is_exported = |wanted: &str| {
            symbols.iter().any(|symbol| {
                let name = names.get(symbol.st_name..).unwrap_or_default();
                symbol.st_shndx != SHN_UNDEF as usize && until_nul(name) == wanted.as_bytes()
            })
        };
        Some(wanted.iter().all(|wanted| is_exported(wanted)))
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Reads the start of the file, up to this length. An error ends it too.
pub fn read_head(mut file: &File, len: u64) -> Vec<u8> {
    let mut head = Vec::new();
    let _ = file
        .rewind()
        .and_then(|()| file.take(len).read_to_end(&mut head));
    head
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
        let text = format!(
            "{}{detail}: {}; {}",
            known.what, known.happens, known.remedy
        );
        Obstacle { id: known.id, text }
    }
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
