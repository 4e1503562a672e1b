//! Measured processes with many objects, of which one in eleven or one in ten stays.

use anyhow::{Error, Result, ensure};
use clap::ValueEnum;

use crate::measured::calls::{now_ns, page_bytes};
use crate::measured::link::{self, Mapped};
use crate::measured::{Output, Random, alloc, content, release};

/// One of this many objects stays.
const ONE_IN: usize = 11;
/// The same in [`scattered`].
pub const ONE_IN_TEN: usize = 10;

const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// Sizes of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sizes {
    /// 64 to 512 bytes.
    Small,
    /// 4 to 64 KiB.
    Medium,
    /// 64 bytes to 64 KiB, each power of two as likely as the next.
    Mix,
}

impl Sizes {
    fn draw(self, random: &mut Random) -> usize {
        let word = random.next() >> 20;
        match self {
            Sizes::Small => 64 + word as usize % 449,
            Sizes::Medium => 4096 + word as usize % (60 * 1024 + 1),
            Sizes::Mix => {
                let low = 64 << (word % 10);
                low + (word >> 8) as usize % (low + 1)
            }
        }
    }
}

/// The objects that are freed, and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Ten of eleven drawn at random, in random order.
    Random,
    /// The oldest ten of eleven, oldest first.
    Oldest,
}

/// The content of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// One byte repeated, chosen by the size.
    Same,
    /// Content that compresses, but not to nothing.
    Mixed,
}

impl Content {
    /// # Safety
    /// The object has these bytes.
    unsafe fn write(self, at: *mut u8, size: usize) {
        // SAFETY: by the contract above.
        unsafe {
            match self {
                Content::Same => at.write_bytes(size as u8, size),
                Content::Mixed => content::fill(at, size, &mut Self::random(at, size)),
            }
        }
    }

    /// Whether the object still holds what was written.
    ///
    /// # Safety
    /// The object is live, has these bytes, and was written.
    unsafe fn holds(self, at: *const u8, size: usize) -> bool {
        // SAFETY: by the contract above; malloc aligns to 16.
        unsafe {
            match self {
                Content::Same => {
                    let bytes = std::slice::from_raw_parts(at, size);
                    bytes.iter().all(|b| *b == size as u8)
                }
                Content::Mixed => {
                    let found = std::slice::from_raw_parts(at.cast::<u64>(), size / 8);
                    let mut random = Self::random(at, size);
                    content::words(&mut random).zip(found).all(|(w, f)| w == *f)
                }
            }
        }
    }

    /// The random numbers of an object: the same again for the same object.
    fn random(at: *const u8, size: usize) -> Random {
        Random((at as u64 ^ size as u64).wrapping_mul(SEED) | 1)
    }
}

fn parse(case: &str) -> Result<(Sizes, Order)> {
    let (sizes, order) = case.split_once('_').unwrap_or((case, ""));
    let sizes = Sizes::from_str(sizes, false).map_err(Error::msg)?;
    let order = Order::from_str(order, false).map_err(Error::msg)?;
    Ok((sizes, order))
}

/// Number of objects that make up `bytes`.
fn count(sizes: Sizes, bytes: u64) -> usize {
    let mut random = Random(SEED);
    let (mut sum, mut count) = (0, 0);
    while sum < bytes {
        sum += sizes.draw(&mut random) as u64;
        count += 1;
    }
    count
}

/// Pages that hold at least one byte of these objects.
fn pages_of(objects: &[[u64; 2]], page: u64) -> u64 {
    let span = |o: &[u64; 2]| (o[0] / page, (o[0] + o[1] - 1) / page);
    let most: u64 = objects.iter().map(|o| span(o).1 - span(o).0 + 1).sum();
    let mut pages = Mapped::<1>::new(most as usize);
    let mut len = 0;
    for object in objects {
        let (first, last) = span(object);
        for page in first..=last {
            pages[len] = [page];
            len += 1;
        }
    }
    let pages = &mut pages[..len];
    pages.sort_unstable();
    pages.chunk_by(|a, b| a == b).count() as u64
}

/// Fills `bytes`, frees ten of eleven objects, does nothing, and checks that the rest is unchanged.
pub fn thinned(case: &str, bytes: u64) -> Result<Output> {
    let (sizes, order) = parse(case)?;
    thin(sizes, order, Content::Same, ONE_IN, bytes)
}

/// The same with objects of many sizes, whose content does not compress to nothing. Nine of ten objects are freed at
/// random.
pub fn scattered(bytes: u64) -> Result<Output> {
    thin(Sizes::Mix, Order::Random, Content::Mixed, ONE_IN_TEN, bytes)
}

fn thin(sizes: Sizes, order: Order, fill: Content, one_in: usize, bytes: u64) -> Result<Output> {
    let all = count(sizes, bytes);
    // Address and size of each object.
    let mut objects = Mapped::<2>::new(all);
    link::base();

    let mut random = Random(SEED);
    let mut filled_bytes = 0;
    for object in objects.iter_mut() {
        let size = sizes.draw(&mut random);
        let at = alloc(size);
        // SAFETY: the object has `size` bytes.
        unsafe { fill.write(at, size) };
        *object = [at as u64, size as u64];
        filled_bytes += size as u64;
    }
    if order == Order::Random {
        for i in (1..all).rev() {
            let other = ((random.next() >> 32) * (i as u64 + 1)) >> 32;
            objects.swap(i, other as usize);
        }
    }
    let (gone, kept) = objects.split_at(all - all / one_in);
    let page = page_bytes() as u64;
    let live_bytes = pages_of(kept, page) * page;
    link::filled(live_bytes);

    let began = now_ns();
    for object in gone {
        // SAFETY: each is live, and freed once: the two parts are disjoint.
        unsafe { release(object[0] as *mut u8) };
    }
    let ended = now_ns();
    link::freed(began, ended);

    for object in kept {
        let (at, size) = (object[0] as *const u8, object[1] as usize);
        // SAFETY: live, of this size, written above.
        let is_same = unsafe { fill.holds(at, size) };
        ensure!(
            is_same,
            "a live object of {} bytes at {at:p} has changed",
            size
        );
    }
    let checksum = filled_bytes.wrapping_mul(31).wrapping_add(all as u64);
    let free_ms = (ended - began) as f64 / 1e6;
    Ok(Output::new(checksum, [("free_ms", free_ms)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_range() {
        let mut r = Random(SEED);
        for _ in 0..10_000 {
            assert!((64..=512).contains(&Sizes::Small.draw(&mut r)));
            assert!((4096..=65536).contains(&Sizes::Medium.draw(&mut r)));
            assert!((64..=65536).contains(&Sizes::Mix.draw(&mut r)));
        }
    }

    #[test]
    fn pages_are_counted_once() {
        // Two in page 1, one over pages 2 to 4, one that ends with page 5.
        let objects = [
            [4096 * 2 + 5, 4096 * 2],
            [4096, 64],
            [4096 + 64, 64],
            [4096 * 5, 4096],
        ];
        assert_eq!(pages_of(&objects, 4096), 5);
        assert_eq!(pages_of(&[], 4096), 0);
    }

    #[test]
    fn a_changed_object_is_seen() {
        let mut words = vec![0u64; 1000];
        let (at, size) = (words.as_mut_ptr().cast::<u8>(), 7999);
        for content in [Content::Same, Content::Mixed] {
            // SAFETY: the vector has these bytes.
            unsafe {
                content.write(at, size);
                assert!(content.holds(at, size));
                at.add(4100).write(!at.add(4100).read());
                assert!(!content.holds(at, size));
            }
        }
    }

    #[test]
    fn names() {
        assert_eq!(parse("mix_oldest").unwrap(), (Sizes::Mix, Order::Oldest));
        assert!(parse("small_new").is_err() && parse("small").is_err());
    }

    #[test]
    fn count_reaches_the_size() {
        let n = count(Sizes::Medium, 10 << 20);
        assert!((160..640).contains(&n), "{n}");
    }
}
