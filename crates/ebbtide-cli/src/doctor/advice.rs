//! Tries each kind of `madvise` that Ebbtide uses, on memory of this process.

use std::ffi::c_void;
use std::io;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::{Check, State, probe};

/// Smallest unit of a mapping.
pub const PAGE_BYTES: usize = 4096;

/// The checks of all kinds.
pub fn all() -> Vec<Check> {
    let others = [
        ("MADV_COLD", Advice::LinuxCold),
        ("MADV_POPULATE_WRITE", Advice::LinuxPopulateWrite),
        ("MADV_DONTNEED_LOCKED", Advice::LinuxDontneedLocked),
        ("MADV_WIPEONFORK", Advice::LinuxWipeOnFork),
    ];
    let others = others.map(|(id, advice)| tried(id, advice));
    [&[lazy(probe::is_at_least((5, 18)))], &others[..]].concat()
}

/// Private anonymous pages, touched; unmapped on drop.
pub struct Pages {
    /// First byte.
    pub at: *mut c_void,
    len_bytes: usize,
}

impl Pages {
    /// Maps the pages and touches them.
    pub fn new(len_bytes: usize) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), len_bytes, prot, MapFlags::PRIVATE)? };
        let pages = Pages { at, len_bytes };
        // SAFETY: the mapping is writable and `len_bytes` long.
        unsafe { ptr::write_bytes(pages.at.cast::<u8>(), 1, len_bytes) };
        Ok(pages)
    }

    fn advise(&self, at_byte: usize, len_bytes: usize, advice: Advice) -> io::Result<()> {
        assert!(at_byte + len_bytes <= self.len_bytes);
        // SAFETY: the range lies in this mapping, which nothing else uses.
        unsafe { madvise(self.at.byte_add(at_byte), len_bytes, advice)? };
        Ok(())
    }

    /// The current value of a byte.
    pub fn byte(&self, at_byte: usize) -> u8 {
        assert!(at_byte < self.len_bytes);
        // SAFETY: within the mapping; volatile, as the kernel changes it behind the compiler.
        unsafe { self.at.cast::<u8>().add(at_byte).read_volatile() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this object owns the mapping, and nothing refers to it.
        let _ = unsafe { munmap(self.at, self.len_bytes) };
    }
}

fn tried(id: &'static str, advice: Advice) -> Check {
    let pages = Pages::new(2 * PAGE_BYTES);
    let result = pages.and_then(|pages| pages.advise(0, PAGE_BYTES, advice));
    Check::tried(id, result.map(|()| "works"))
}

/// Checks `MADV_FREE`. Older kernels have it too, but the library does not use it there.
fn lazy(is_used: bool) -> Check {
    let check = tried("MADV_FREE", Advice::LinuxFree);
    match check.state {
        State::Ok if !is_used => Check::limited("MADV_FREE", "works, races with O_DIRECT")
            .with_effect("not used: lazy release")
            .with_remedy("run kernel 5.18 or later"),
        _ => check,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lazy_release_is_not_promised_to_an_older_kernel() {
        let (new, old) = (lazy(true), lazy(false));
        assert!(new.state == State::Ok && new.effect == "lazy release");
        assert!(old.state == State::Limited && old.remedy.contains("5.18"));
    }

    #[test]
    fn pages_can_be_advised() {
        let p = Pages::new(2 * PAGE_BYTES).unwrap();
        p.advise(0, PAGE_BYTES, Advice::LinuxDontNeed).unwrap();
        assert_eq!((p.byte(0), p.byte(PAGE_BYTES)), (0, 1));
        // The address is not the start of a page.
        assert!(p.advise(1, PAGE_BYTES, Advice::LinuxDontNeed).is_err());
    }
}
