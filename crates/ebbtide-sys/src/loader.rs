//! A `dlopen` that runs before the C library's `dlopen`, so that Ebbtide can change its flags.
//!
//! ```text
//!  caller ──call──▶ dlopen (define_dlopen!) ──call──▶ a function of ours: new flags, and [`next_function`]
//!                        └──────jump──▶ the next `dlopen`, which sees the caller's return address
//! ```
//!
//! The next `dlopen` sees the original caller's return address. From the library at that address the loader takes
//! `$ORIGIN`, `RUNPATH` and the namespace.
//!
//! - INV-LOADER-1: the next `dlopen` finds the stack and the first argument as the caller left them. So the wrapper
//!   jumps, and the return address is the caller's.
//!
//! - INV-LOADER-2: a search result is kept only if it lies in an object that is never unloaded.
//!
//! From glibc 2.34 on, the next `dlopen` is in libc. Before, it is in libdl, which may be loaded late and unloaded
//! again; then every call searches anew. The search reads the symbol tables itself. `dlsym` would miss a libdl that a
//! plugin loaded, would change what `dlerror` reports, and may allocate.
//!
//! A search takes the loader's lock of its list. If another thread holds that lock during a fork, the child finds it
//! taken for ever. So the search runs once, before `main`, if its result can be kept.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;

/// The address and the flags with which the wrapper continues. Two words, which both ABIs return in registers.
#[repr(C)]
pub struct Onward {
    /// Address of the next `dlopen`.
    pub function: usize,
    /// Its second argument.
    pub flags: usize,
}

/// Defines the C function `dlopen` in the crate that calls this. `$onward` is an `extern "C" fn(c_int) -> Onward`.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! define_dlopen {
    ($onward:path) => {
        /// dlopen(3), with other flags.
        ///
        /// # Safety
        /// As dlopen(3).
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn dlopen(
            file: *const core::ffi::c_char,
            flags: core::ffi::c_int,
        ) -> *mut core::ffi::c_void {
            core::arch::naked_asm!(
                "push rdi", // also aligns the stack for the call
                "mov edi, esi",
                "call {onward}",
                "pop rdi",
                "mov esi, edx",
                "jmp rax",
                onward = sym $onward,
            )
        }
    };
}

/// Defines the C function `dlopen` in the crate that calls this. `$onward` is an `extern "C" fn(c_int) -> Onward`.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! define_dlopen {
    ($onward:path) => {
        /// dlopen(3), with other flags.
        ///
        /// # Safety
        /// As dlopen(3).
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn dlopen(
            file: *const core::ffi::c_char,
            flags: core::ffi::c_int,
        ) -> *mut core::ffi::c_void {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-32]!",
                "mov x29, sp",
                "str x0, [sp, #16]",
                "mov w0, w1",
                "bl {onward}",
                "mov x16, x0",
                "ldr x0, [sp, #16]",
                "ldp x29, x30, [sp], #32",
                "br x16", // x16: a target with branch protection accepts it
                onward = sym $onward,
            )
        }
    };
}

/// The address of the function `name` as the program would see it without this library. The first object behind this
/// one that defines the function wins, in load order; otherwise the first of all objects.
///
/// Only objects in the namespace of this library are searched, and only those with a GNU hash table.
pub fn next_function(name: &CStr) -> Option<Next> {
    let mut search = Search {
        name,
        is_behind: false,
        is_behind_libc: false,
        before: None,
        behind: None,
        stays: false,
    };
    // SAFETY: `look` has the signature that is asked for, and gets the address of a live `Search`.
    unsafe { libc::dl_iterate_phdr(Some(visit_object), (&raw mut search).cast()) };
    let address = search.behind.or(search.before)?;
    let stays = search.stays;
    Some(Next { address, stays })
}

/// Whether another object than this library defines the thread-local variable `name`.
///
/// Only objects in the namespace of this library are searched, and only those with a GNU hash table.
pub fn another_defines_variable(name: &CStr) -> bool {
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        name: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's own record, and the name passed below; both stay during the call.
        let found = unsafe {
            let object = Object::new(&*info);
            !object.contains(visit as *const () as usize)
                && object.tables().is_some_and(|tables| {
                    let name = &**name.cast::<&CStr>();
                    tables.find(name, STT_TLS).is_some()
                })
        };
        c_int::from(found)
    }
    let mut name = name;
    // SAFETY: `visit` has the signature that is asked for, and gets the address of a live value.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut name).cast()) != 0 }
}

/// The result of [`next_function`].
pub struct Next {
    /// The function.
    pub address: usize,
    /// Whether the answer stays the same for the life of the process.
    pub stays: bool,
}

struct Search<'a> {
    name: &'a CStr,
    /// The search has passed this library.
    is_behind: bool,
    /// The search has passed the C library. The C library and all objects before it came with the program, and none
    /// of these is unloaded.
    is_behind_libc: bool,
    before: Option<usize>,
    behind: Option<usize>,
    /// `behind` lies in an object that is never unloaded.
    stays: bool,
}

/// Called for each loaded object, with the loader's list locked. A result other than 0 ends the search.
unsafe extern "C" fn visit_object(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the pointer comes from `next_function`, which uses the value only after the search.
    let search = unsafe { &mut *search.cast::<Search>() };
    // SAFETY: the loader's own record; object and headers stay while its list is locked.
    let object = unsafe { Object::new(&*info) };
    let stays = !search.is_behind_libc;
    search.is_behind_libc |= object.contains(libc::dl_iterate_phdr as *const () as usize);
    if object.contains(visit_object as *const () as usize) {
        search.is_behind = true;
        return 0;
    }
    if !search.is_behind && search.before.is_some() {
        return 0;
    }
    // SAFETY: as above.
    let found = unsafe { object.tables() }.and_then(|tables| {
        // SAFETY: the object's own tables.
        unsafe { tables.find(search.name, STT_FUNC) }
    });
    if search.is_behind {
        (search.behind, search.stays) = (found, stays);
        c_int::from(found.is_some())
    } else {
        search.before = found;
        0
    }
}

/// A loaded object.
struct Object<'a> {
    base: usize,
    headers: &'a [libc::Elf64_Phdr],
}

impl<'a> Object<'a> {
    /// # Safety
    /// `info` is the loader's description of an object that stays loaded for `'a`.
    unsafe fn new(info: &libc::dl_phdr_info) -> Self {
        let headers = match info.dlpi_phdr.is_null() {
            true => &[],
            // SAFETY: by contract.
            false => unsafe {
                core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum))
            },
        };
        Self {
            base: info.dlpi_addr as usize,
            headers,
        }
    }

    fn contains(&self, address: usize) -> bool {
        self.headers.iter().any(|header| {
            let offset = address
                .wrapping_sub(self.base)
                .wrapping_sub(header.p_vaddr as usize);
            header.p_type == libc::PT_LOAD && offset < header.p_memsz as usize
        })
    }

    /// # Safety
    /// The object is loaded.
    unsafe fn tables(&self) -> Option<Tables> {
        let dynamic = self
            .headers
            .iter()
            .find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let mut tables = Tables {
            base: self.base,
            hash: ptr::null(),
            symbols: ptr::null(),
            strings: ptr::null(),
            versions: ptr::null(),
        };
        let mut entry = self.base.wrapping_add(dynamic.p_vaddr as usize) as *const Dynamic;
        loop {
            // SAFETY: the section ends with `DT_NULL`, where this loop ends.
            let Dynamic { tag, value } = unsafe { entry.read() };
            // Most loaders have replaced the offsets by addresses, if the section is writable. The base may lie above
            // the object: gVisor's vDSO was linked for the top of the address space.
            let address = match self.contains(value) {
                true => value,
                false => self.base.wrapping_add(value),
            };
            match tag {
                DT_NULL => break,
                DT_GNU_HASH => tables.hash = address as *const u32,
                DT_SYMTAB => tables.symbols = address as *const libc::Elf64_Sym,
                DT_STRTAB => tables.strings = address as *const libc::c_char,
                DT_VERSYM => tables.versions = address as *const u16,
                _ => {}
            }
            // SAFETY: not the last one.
            entry = unsafe { entry.add(1) };
        }
        let is_whole =
            !tables.hash.is_null() && !tables.symbols.is_null() && !tables.strings.is_null();
        is_whole.then_some(tables)
    }
}

/// `Elf64_Dyn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: i64,
    value: usize,
}

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;
/// In a version: for programs that were linked long ago.
const HIDDEN: u16 = 0x8000;
const STT_FUNC: u8 = 2;
const STT_TLS: u8 = 6;
const STB_LOCAL: u8 = 0;

/// The symbol tables of an object. Only `versions` may be null.
struct Tables {
    base: usize,
    hash: *const u32,
    symbols: *const libc::Elf64_Sym,
    strings: *const libc::c_char,
    versions: *const u16,
}

impl Tables {
    /// The address of a symbol of this kind that the object defines, in its default version.
    ///
    /// # Safety
    /// These are the tables of a loaded object.
    unsafe fn find(&self, name: &CStr, kind: u8) -> Option<usize> {
        let wanted = gnu_hash(name);
        // SAFETY: the table begins with four numbers; the Bloom filter follows in words of 8 bytes, then the buckets,
        // then a hash for each symbol from `first` on. A chain ends with an odd hash.
        unsafe {
            let [buckets, first, bloom_words] =
                [0, 1, 2].map(|index| self.hash.add(index).read() as usize);
            if buckets == 0 {
                return None;
            }
            let table = self.hash.add(4 + 2 * bloom_words);
            let mut index = table.add(wanted as usize % buckets).read() as usize;
            if index < first {
                return None;
            }
            loop {
                let hash = table.add(buckets + index - first).read();
                if hash | 1 == wanted | 1 && self.defines(index, name, kind) {
                    let value = (*self.symbols.add(index)).st_value as usize;
                    return Some(self.base.wrapping_add(value));
                }
                if hash & 1 != 0 {
                    return None;
                }
                index += 1;
            }
        }
    }

    /// # Safety
    /// As [`Self::find`], with a symbol of the table.
    unsafe fn defines(&self, index: usize, name: &CStr, kind: u8) -> bool {
        // SAFETY: by contract; names end with a NUL, and there is a version for each symbol or none at all.
        unsafe {
            let symbol = &*self.symbols.add(index);
            symbol.st_shndx != 0
                && symbol.st_info & 0xf == kind
                && symbol.st_info >> 4 != STB_LOCAL
                && (self.versions.is_null() || self.versions.add(index).read() & HIDDEN == 0)
                && CStr::from_ptr(self.strings.add(symbol.st_name as usize)) == name
        }
    }
}

fn gnu_hash(name: &CStr) -> u32 {
    let step = |hash: u32, &byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(byte));
    name.to_bytes().iter().fold(5381, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With several versions of a symbol, the default one is found, as the link editor takes it.
    #[test]
    fn finds_what_the_program_was_linked_with() {
        for (name, address) in [
            (c"dlopen", libc::dlopen as *const () as usize),
            (c"dlclose", libc::dlclose as *const () as usize),
            (c"qsort", libc::qsort as *const () as usize),
            (
                c"pthread_cond_wait",
                libc::pthread_cond_wait as *const () as usize,
            ),
        ] {
            let found = next_function(name).map(|next| next.address);
            assert_eq!(found, Some(address), "{name:?}");
        }
    }

    #[test]
    fn finds_no_variable_and_nothing_that_is_not_there() {
        for name in [c"environ", c"no_such_function", c""] {
            assert!(next_function(name).is_none(), "{name:?}");
        }
    }

    /// An object linked for any address: the addresses in its tables are as in the file, or made absolute.
    #[test]
    fn finds_in_an_object_linked_for_any_address() {
        #[repr(C)]
        struct Image {
            dynamic: [Dynamic; 4],
            /// A bucket, symbols from 1 on, a word of the Bloom filter, its shift; the word; the bucket; an odd hash.
            hash: [u32; 8],
            symbols: [libc::Elf64_Sym; 2],
            strings: [u8; 8],
        }
        const PLACE: u64 = 0x1234;
        // SAFETY: plain data.
        let none: libc::Elf64_Sym = unsafe { core::mem::zeroed() };
        let function = libc::Elf64_Sym {
            st_name: 1,
            st_info: 1 << 4 | STT_FUNC,
            st_shndx: 1,
            st_value: PLACE,
            ..none
        };
        for linked_for in [0, 0x40_0000, 0xffff_ffff_ff70_0000_usize] {
            for is_absolute in [false, true] {
                let mut image = Image {
                    dynamic: [Dynamic {
                        tag: DT_NULL,
                        value: 0,
                    }; 4],
                    hash: [1, 1, 1, 0, 0, 0, 1, gnu_hash(c"dlopen") | 1],
                    symbols: [none, function],
                    strings: *b"\0dlopen\0",
                };
                let start = &raw mut image as usize;
                let base = start.wrapping_sub(linked_for);
                let at = |offset: usize| match is_absolute {
                    true => start + offset,
                    false => linked_for + offset,
                };
                for (entry, tag, offset) in [
                    (0, DT_GNU_HASH, core::mem::offset_of!(Image, hash)),
                    (1, DT_SYMTAB, core::mem::offset_of!(Image, symbols)),
                    (2, DT_STRTAB, core::mem::offset_of!(Image, strings)),
                ] {
                    let value = at(offset);
                    image.dynamic[entry] = Dynamic { tag, value };
                }
                let header = |p_type| libc::Elf64_Phdr {
                    p_type,
                    p_flags: 0,
                    p_offset: 0,
                    p_vaddr: linked_for as u64,
                    p_paddr: 0,
                    p_filesz: 0,
                    p_memsz: size_of::<Image>() as u64,
                    p_align: 0,
                };
                let headers = &[header(libc::PT_LOAD), header(libc::PT_DYNAMIC)];
                let object = Object { base, headers };
                // SAFETY: the image has all that its headers name.
                let found = unsafe { object.tables().unwrap().find(c"dlopen", STT_FUNC) };
                assert_eq!(found, Some(base.wrapping_add(PLACE as usize)));
            }
        }
    }

    #[test]
    fn hash_of_the_specification() {
        let known = [
            (c"", 0x0000_1505),
            (c"printf", 0x156b_2bb8),
            (c"exit", 0x7c96_7e3f),
        ];
        for (name, hash) in known {
            assert_eq!(gnu_hash(name), hash);
        }
    }
}
