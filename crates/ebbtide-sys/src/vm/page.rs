//! The kernel's page size: 4, 16 or 64 KiB. The kernel maps, protects and releases whole pages.
//!
//! Builds for x86-64 know it, because these processors have pages of 4 KiB only. Other builds ask once. The features
//! `page-16k` and `page-64k` make a build for tests, which uses larger pages than the kernel has.

use core::sync::atomic::{AtomicUsize, Ordering};
use ebbtide_interface::known::PAGE_SIZES;
use ebbtide_zone::FRAME_BYTES;

/// The smallest page, and a frame of Ebbtide.
pub const SMALLEST_PAGE: usize = PAGE_SIZES[0];
/// The largest page.
pub const LARGEST_PAGE: usize = PAGE_SIZES[2];

const _: () = assert!(SMALLEST_PAGE == FRAME_BYTES);

/// The page size that this build is for. `None`: the kernel's.
const BUILT_FOR: Option<usize> = if cfg!(feature = "page-64k") {
    Some(LARGEST_PAGE)
} else if cfg!(feature = "page-16k") {
    Some(PAGE_SIZES[1])
} else if cfg!(target_arch = "x86_64") {
    Some(SMALLEST_PAGE)
} else {
    None
};

/// Bytes of a page: the unit of every call in this module.
#[inline]
pub fn page() -> usize {
    match BUILT_FOR {
        Some(bytes) => bytes,
        None => asked(),
    }
}

/// Frames of a page: 1, 4 or 16.
#[inline]
pub fn page_frames() -> u32 {
    (page() / FRAME_BYTES) as u32
}

/// `bytes`, rounded up to whole pages.
#[inline]
pub fn whole_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(page())
}

/// Whether Ebbtide works with the kernel's pages.
pub fn has_known_pages() -> bool {
    is_known(kernel_page(), page())
}

/// Whether a heap that uses pages of `used` bytes works on a kernel with pages of `kernel` bytes.
fn is_known(kernel: usize, used: usize) -> bool {
    PAGE_SIZES.contains(&used) && used.is_multiple_of(kernel)
}

/// Bytes of the kernel's pages, by which it counts. Only builds for tests use another size.
///
/// The kernel always passes it; if it is missing, 4 KiB is assumed.
pub fn kernel_page() -> usize {
    crate::identity::auxv(libc::AT_PAGESZ).unwrap_or(SMALLEST_PAGE)
}

fn asked() -> usize {
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        0 => {
            let bytes = kernel_page();
            KNOWN.store(bytes, Ordering::Relaxed);
            bytes
        }
        bytes => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_sizes_are_known() {
        assert!(PAGE_SIZES.iter().all(|&bytes| is_known(bytes, bytes)));
        assert!(is_known(4 << 10, 16 << 10), "a build for tests");
        assert!(!is_known(64 << 10, 4 << 10) && !is_known(16 << 10, 4 << 10));
        assert!(!is_known(8 << 10, 8 << 10) && !is_known(2 << 20, 2 << 20));
        assert!(has_known_pages());
    }

    #[test]
    fn a_page_has_whole_frames() {
        assert_eq!(page_frames() as usize * FRAME_BYTES, page());
        assert!((SMALLEST_PAGE..=LARGEST_PAGE).contains(&page()));
        assert!(LARGEST_PAGE.is_multiple_of(page()));
        assert_eq!((whole_pages(0), whole_pages(1)), (0, page()));
        assert_eq!(whole_pages(page() + 1), 2 * page());
    }
}
