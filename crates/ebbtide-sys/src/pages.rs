//! The pagemap: which kind of page is mapped in a range of addresses.

use crate::call::{Errno, Sysno, syscall};

/// `/proc/self/pagemap`, open.
pub struct PageMap {
    fd: usize,
}

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Default)]
struct ScanRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: usize = 3 << 30 | size_of::<ScanArgument>() << 16 | (b'f' as usize) << 8 | 16;
const PAGE_IS_HUGE: u64 = 1 << 6;

impl PageMap {
    /// Opens the pagemap, for a thread with a descriptor table of its own.
    ///
    /// # Errors
    /// The error of openat(2).
    pub fn open() -> Result<Self, Errno> {
        let path = c"/proc/self/pagemap";
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: `path` ends with a NUL.
        let fd = unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) }?;
        Ok(Self { fd })
    }

    /// Whether a huge page is mapped as such anywhere in the range.
    ///
    /// # Errors
    /// `ENOTTY` before Linux 6.7.
    pub fn has_huge_page(&self, address: usize, len: usize) -> Result<bool, Errno> {
        let mut region = ScanRegion::default();
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            start: address as u64,
            end: (address + len) as u64,
            vec: (&raw mut region) as u64,
            vec_len: 1,
            max_pages: 1,
            category_mask: PAGE_IS_HUGE,
            return_mask: PAGE_IS_HUGE,
            ..ScanArgument::default()
        };
        // SAFETY: the argument and the one region that it points to can be written to.
        let found = unsafe { syscall!(Sysno::ioctl, self.fd, PAGEMAP_SCAN, &raw mut argument) }?;
        Ok(found > 0)
    }
}

impl Drop for PageMap {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once.
        let _ = unsafe { syscall!(Sysno::close, self.fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm;

    #[test]
    fn a_huge_page_is_seen_until_it_is_split() {
        if !vm::has_small_huge_pages() {
            return;
        }
        let start = vm::reserve(2 * vm::HUGE, vm::HUGE).unwrap();
        let map = PageMap::open().unwrap();
        // SAFETY: the test's own reservation.
        unsafe {
            vm::commit(start, 2 * vm::HUGE).unwrap();
            if vm::advise(start, vm::HUGE, libc::MADV_HUGEPAGE).is_err() {
                return;
            }
            (start as *mut u8).write_volatile(1);
            match map.has_huge_page(start, vm::HUGE) {
                Ok(true) => {}
                // No huge page is available, or the kernel is older.
                _ => return,
            }
            assert_eq!(map.has_huge_page(start + vm::HUGE, vm::HUGE), Ok(false));
            vm::advise(start + vm::page(), vm::page(), libc::MADV_COLD).unwrap();
            assert_eq!(map.has_huge_page(start, vm::HUGE), Ok(false));
            assert_eq!((start as *const u8).read_volatile(), 1);
        }
        vm::unmap(start, 2 * vm::HUGE);
    }
}
