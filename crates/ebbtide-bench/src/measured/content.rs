//! Content that compresses, but not to nothing.

use crate::measured::Random;
use crate::measured::calls::page_bytes;

/// Percentage of a page's 64-byte lines that do not compress.
const RANDOM_PERCENT: usize = 38;

/// Words of pages that compress to somewhat more than a third. No two pages are equal.
pub fn words(random: &mut Random) -> impl Iterator<Item = u64> {
    let page = page_bytes() / 8;
    let filler = random.next();
    (0..).map(move |at: usize| {
        let is_random = (at % page) * 100 < page * RANDOM_PERCENT;
        if is_random { random.next() } else { filler }
    })
}

/// Fills a block with such pages.
///
/// # Safety
/// The block has these bytes.
pub unsafe fn fill(block: *mut u8, bytes: usize, random: &mut Random) {
    for (at, word) in words(random).take(bytes / 8).enumerate() {
        // SAFETY: inside the block, which has malloc's alignment.
        unsafe { block.cast::<u64>().add(at).write(word) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_differ_and_are_partly_random() {
        let mut pages = vec![0u64; 1024];
        // SAFETY: the vector has this length.
        unsafe { fill(pages.as_mut_ptr().cast(), 8192, &mut Random(1)) };
        let words = page_bytes() / 8;
        let (first, second) = (&pages[..words], &pages[words..2 * words]);
        assert_ne!(first[0], second[0]);
        assert_eq!(first[words - 1], second[words - 1]);
        let mut distinct = first.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let percent = distinct.len() * 100 / words;
        assert!((30..45).contains(&percent), "{percent}");
    }
}
