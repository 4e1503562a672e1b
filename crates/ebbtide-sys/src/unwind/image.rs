//! The images in memory of the program and its libraries, and their unwind tables.

use super::Bytes;
use crate::{identity, libc_symbols};
use core::mem::{offset_of, transmute};
use gimli::{
    BaseAddresses, EhFrame, EhFrameHdr, Encoding, EndianSlice, Format, FrameDescriptionEntry,
    NativeEndian, Pointer, UnwindSection,
};
use libc::{Elf64_Ehdr, Elf64_Phdr};

/// An image: a mapped ELF file.
#[derive(Clone, Copy)]
pub(super) struct Image {
    /// Its first address.
    pub start: usize,
    /// Its size in memory.
    bytes: usize,
    /// What is added to the addresses in the file.
    base: usize,
    headers: &'static [Elf64_Phdr],
}

/// The unwind tables of an image.
pub(super) struct Tables {
    pub frames: EhFrame<Bytes>,
    pub bases: BaseAddresses,
    index: EhFrameHdr<Bytes>,
}

impl Image {
    /// # Safety
    /// There are `count` program headers at `headers` that stay.
    unsafe fn new(
        headers: usize,
        count: usize,
        start_of: impl FnOnce(&[Elf64_Phdr]) -> Option<usize>,
    ) -> Option<Self> {
        // SAFETY: by contract.
        let headers = unsafe { core::slice::from_raw_parts(headers as *const Elf64_Phdr, count) };
        let loaded = || {
            headers
                .iter()
                .filter(|header| header.p_type == libc::PT_LOAD)
        };
        let first = loaded().map(|header| header.p_vaddr).min()? as usize;
        let end = loaded()
            .map(|header| header.p_vaddr + header.p_memsz)
            .max()? as usize;
        let base = start_of(headers)?;
        Some(Self {
            start: base.wrapping_add(first),
            bytes: end - first,
            base,
            headers,
        })
    }

    /// The image whose file begins at this address.
    ///
    /// # Safety
    /// It is an address of this process that can be read; the image stays as long as it is used.
    unsafe fn at(start: usize) -> Option<Self> {
        // SAFETY: by contract.
        let header = unsafe { &*(start as *const Elf64_Ehdr) };
        if header.e_ident[..4] != *b"\x7fELF" {
            return None;
        }
        let count = usize::from(header.e_phnum);
        // SAFETY: the program headers are in the first page, as all linkers place them.
        unsafe {
            Self::new(start + header.e_phoff as usize, count, |headers| {
                let first = headers
                    .iter()
                    .find(|header| header.p_type == libc::PT_LOAD)?;
                Some(start.wrapping_sub((first.p_vaddr - first.p_offset) as usize))
            })
        }
    }

    pub(super) fn has(&self, address: usize) -> bool {
        address.wrapping_sub(self.start) < self.bytes
    }

    /// The part of the memory from an address to the end of its segment.
    fn from(&self, address: usize) -> Option<Bytes> {
        let at = address.wrapping_sub(self.base);
        let segment = self.headers.iter().find(|header| {
            header.p_type == libc::PT_LOAD
                && header.p_flags & libc::PF_R != 0
                && at.wrapping_sub(header.p_vaddr as usize) < header.p_filesz as usize
        })?;
        let len = (segment.p_vaddr + segment.p_filesz) as usize - at;
        // SAFETY: the loader has mapped the segment, and it stays as long as code of it is on the stack.
        let bytes = unsafe { core::slice::from_raw_parts(address as *const u8, len) };
        Some(EndianSlice::new(bytes, NativeEndian))
    }

    pub(super) fn tables(&self) -> Option<Tables> {
        let mut headers = self.headers.iter();
        let index = headers.find(|header| header.p_type == libc::PT_GNU_EH_FRAME)?;
        let index_at = self.base.wrapping_add(index.p_vaddr as usize);
        let index = EhFrameHdr::from(self.from(index_at)?);
        let bases = BaseAddresses::default().set_eh_frame_hdr(index_at as u64);
        let Pointer::Direct(at) = index.parse(&bases, 8).ok()?.eh_frame_ptr() else {
            return None;
        };
        Some(Tables {
            frames: EhFrame::from(self.from(at as usize)?),
            bases: bases.set_eh_frame(at),
            index,
        })
    }
}

impl Tables {
    pub(super) fn encoding(&self) -> Encoding {
        Encoding {
            format: Format::Dwarf32,
            version: 4,
            address_size: 8,
        }
    }

    /// The entry of the function at `pc`.
    pub(super) fn entry(&self, pc: usize) -> gimli::Result<FrameDescriptionEntry<Bytes>> {
        let index = self.index.parse(&self.bases, 8)?;
        let table = index.table().ok_or(gimli::Error::NoUnwindInfoForAddress)?;
        let common = EhFrame::cie_from_offset;
        table.fde_for_address(&self.frames, &self.bases, pc as u64, common)
    }
}

/// Finds the image that has an address, without a lock.
pub(super) fn of(address: usize) -> Option<Image> {
    [own(), program()]
        .into_iter()
        .flatten()
        .find(|image| image.has(address))
        .or_else(|| by_loader(address))
}

/// The image of this library.
pub(super) fn own() -> Option<Image> {
    unsafe extern "C" {
        /// The linker's: the beginning of the image.
        #[link_name = "__ehdr_start"]
        static START: Elf64_Ehdr;
    }
    // SAFETY: the image of this code.
    unsafe { Image::at(&raw const START as usize) }
}

/// The address of the program's headers.
pub(super) fn program_headers() -> usize {
    identity::auxv(libc::AT_PHDR).unwrap_or(0)
}

/// The image of the program, where its headers say where they are.
pub(super) fn program() -> Option<Image> {
    let (at, count) = (program_headers(), identity::auxv(libc::AT_PHNUM)?);
    // SAFETY: the kernel passed both; the program is never unmapped.
    unsafe {
        Image::new(at, count, |headers| {
            let own = headers
                .iter()
                .find(|header| header.p_type == libc::PT_PHDR)?;
            Some(at.wrapping_sub(own.p_vaddr as usize))
        })
    }
}

/// `struct dl_find_object` of glibc. Processors differ in what follows.
#[repr(C)]
struct Found {
    flags: u64,
    start: usize,
    end: usize,
    link_map: usize,
    index: usize,
    more: [u64; 10],
}

const _: () = assert!(offset_of!(Found, index) == 32);

fn by_loader(address: usize) -> Option<Image> {
    type Find = unsafe extern "C" fn(usize, *mut Found) -> i32;
    // SAFETY: null, or a function of this type.
    let find = unsafe { transmute::<*const (), Option<Find>>(libc_symbols::find_object()) }?;
    // SAFETY: zero is a valid value.
    let mut found: Found = unsafe { core::mem::zeroed() };
    // SAFETY: `found` can be written to. The object is not unloaded, because its code is on this thread's stack.
    unsafe { (find(address, &raw mut found) == 0).then(|| Image::at(found.start))? }
}
