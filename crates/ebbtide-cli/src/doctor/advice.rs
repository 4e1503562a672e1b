//! The kinds of `madvise` that Ebbtide uses, each tried on memory of this process's own.

use std::ffi::c_void;
use std::io;
use std::ptr;

use super::{Check, reason};

/// Smallest unit of a mapping.
pub const PAGE_BYTES: usize = 4096;
const HUGE_BYTES: usize = 2 << 20;
const MADV_GUARD_INSTALL: libc::c_int = 102;

/// Every kind.
pub fn all() -> Vec<Check> {
    vec![
        advice("MADV_FREE", libc::MADV_FREE, "lazy release", "4.5"),
        advice(
            "MADV_COLD",
            libc::MADV_COLD,
            "splits a huge page without losing content",
            "5.4",
        ),
        advice(
            "MADV_POPULATE_WRITE",
            libc::MADV_POPULATE_WRITE,
            "batched first touch",
            "5.14",
        ),
        advice(
            "MADV_DONTNEED_LOCKED",
            libc::MADV_DONTNEED_LOCKED,
            "release under mlockall",
            "5.18",
        ),
        advice(
            "MADV_GUARD_INSTALL",
            MADV_GUARD_INSTALL,
            "keeps khugepaged from refilling what was given back",
            "6.13",
        ),
        advice(
            "MADV_WIPEONFORK",
            libc::MADV_WIPEONFORK,
            "recognises children that skip atfork handlers",
            "4.14",
        ),
        collapse(),
    ]
}

/// Private anonymous pages, touched; unmapped on drop.
pub struct Pages {
    /// First byte.
    pub at: *mut c_void,
    len_bytes: usize,
}

impl Pages {
    /// Maps and touches.
    pub fn new(len_bytes: usize) -> io::Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(ptr::null_mut(), len_bytes, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let pages = Pages { at, len_bytes };
        // SAFETY: the mapping is writable and `len_bytes` long.
        unsafe { ptr::write_bytes(pages.at.cast::<u8>(), 1, len_bytes) };
        Ok(pages)
    }

    fn advise(&self, at_byte: usize, len_bytes: usize, advice: libc::c_int) -> io::Result<()> {
        assert!(at_byte + len_bytes <= self.len_bytes);
        // SAFETY: the range lies in this mapping, which nothing else uses.
        let rc = unsafe { libc::madvise(self.at.byte_add(at_byte), len_bytes, advice) };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// The byte at this place, as it is now.
    pub fn byte(&self, at_byte: usize) -> u8 {
        assert!(at_byte < self.len_bytes);
        // SAFETY: within the mapping; volatile, as the kernel changes it behind the compiler.
        unsafe { self.at.cast::<u8>().add(at_byte).read_volatile() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours and nothing refers to it.
        unsafe { libc::munmap(self.at, self.len_bytes) };
    }
}

fn advice(id: &'static str, advice: libc::c_int, effect: &str, since: &str) -> Check {
    match Pages::new(2 * PAGE_BYTES).and_then(|p| p.advise(0, PAGE_BYTES, advice)) {
        Ok(()) => Check::ok(id, "works", effect),
        Err(e) => Check::limited(
            id,
            reason(&e),
            &format!("not available: {effect}"),
            &format!("run kernel {since} or later, and allow madvise in the sandbox"),
        ),
    }
}

fn collapse() -> Check {
    const EFFECT: &str = "puts a huge page together where wanted";
    let tried = Pages::new(2 * HUGE_BYTES).and_then(|pages| {
        let skew = pages.at as usize % HUGE_BYTES;
        let start = if skew == 0 { 0 } else { HUGE_BYTES - skew };
        pages.advise(start, HUGE_BYTES, libc::MADV_COLLAPSE)
    });
    match tried {
        Ok(()) => Check::ok("MADV_COLLAPSE", "works", EFFECT),
        // No free huge page at the moment says nothing about the feature.
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOMEM | libc::EAGAIN | libc::EBUSY)
            ) =>
        {
            Check::ok("MADV_COLLAPSE", format!("there ({e} just now)"), EFFECT)
        }
        Err(e) => Check::limited(
            "MADV_COLLAPSE",
            reason(&e),
            &format!("not available: {EFFECT}"),
            "run kernel 6.1 or later with CONFIG_TRANSPARENT_HUGEPAGE",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_can_be_advised() {
        let p = Pages::new(2 * PAGE_BYTES).unwrap();
        p.advise(0, PAGE_BYTES, libc::MADV_DONTNEED).unwrap();
        assert_eq!((p.byte(0), p.byte(PAGE_BYTES)), (0, 1));
        assert!(p.advise(0, PAGE_BYTES, 9999).is_err());
    }
}
