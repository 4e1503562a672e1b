//! The area map of a chunk: records where areas are, and finds where a new one fits.

use super::chunk::Chunk;
use super::{PAGE_GRANULES, UNIT_GRANULES, UNIT_PAGES};
use crate::bits;

const PAGE_WORDS: usize = PAGE_GRANULES as usize / 64;
const WORDS: usize = UNIT_GRANULES as usize / 64;
/// Most pages that are scanned although their hint guarantees no aligned place for the request.
const DOUBTFUL: u32 = 8;

/// The pages in which a new area may lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pages {
    Any,
    /// Only pages that are marked populated.
    Populated,
}

impl Chunk {
    /// Finds a place for a free run of `n` granules at a multiple of `align`: inside one page if possible,
    /// populated pages first, low ones first. Lowers the hints of pages that had no place.
    pub(super) fn find(&mut self, n: u32, align: u32, within: Pages) -> Option<u32> {
        // A run of this length always holds an aligned one.
        let sure = n + align - 1;
        if n > u32::from(self.longest) {
            return None;
        }
        let pages = match within {
            Pages::Any => u64::MAX,
            Pages::Populated => self.populated,
        };
        let found = (n <= PAGE_GRANULES)
            .then(|| self.find_in_pages(n, align, sure, pages))
            .flatten();
        let across = || n > PAGE_GRANULES || (n > 1 && sure <= u32::from(self.longest));
        let found = found.or_else(|| {
            across()
                .then(|| self.find_across(n, align, pages))
                .flatten()
        });
        if found.is_none() && within == Pages::Any {
            self.longest = self.longest.min((sure - 1).min(UNIT_GRANULES) as u16);
        }
        found
    }

    fn find_in_pages(&mut self, n: u32, align: u32, sure: u32, allowed: u64) -> Option<u32> {
        let mut doubtful = 0;
        for pages in [self.populated, !self.populated & allowed] {
            let mut rest = pages & self.fits[n.ilog2() as usize];
            while rest != 0 {
                let page = rest.trailing_zeros();
                rest &= rest - 1;
                let hint = u32::from(self.runs[page as usize]);
                if hint < n {
                    continue;
                }
                if hint < sure {
                    doubtful += 1;
                    if doubtful > DOUBTFUL {
                        continue;
                    }
                }
                let first = page as usize * PAGE_WORDS;
                let word = |i: usize| !self.used[first + i];
                let (run, align) = (u64::from(n), u64::from(align));
                if let Some(at) = bits::find_run_by(word, 0, PAGE_WORDS, run, align, 0) {
                    return Some(page * PAGE_GRANULES + at as u32);
                }
                self.set_run(page, hint.min(sure - 1));
            }
        }
        None
    }

    fn find_across(&self, n: u32, align: u32, allowed: u64) -> Option<u32> {
        let word = |i: usize| match allowed >> (i / PAGE_WORDS) & 1 {
            0 => 0,
            _ => !self.used[i],
        };
        bits::find_run_by(word, 0, WORDS, u64::from(n), u64::from(align), 0).map(|at| at as u32)
    }

    /// Marks an area. Returns the pages in which it lies.
    pub(super) fn mark(&mut self, at: u32, n: u32) -> u64 {
        bits::for_words(at, n, |i, mask| {
            debug_assert!(self.used[i] & mask == 0);
            self.used[i] |= mask;
        });
        let last = at + n - 1;
        self.starts[(at / 64) as usize] |= 1 << (at % 64);
        self.ends[(last / 64) as usize] |= 1 << (last % 64);
        self.granules += n;
        for_pages(at, n, |page, count| {
            self.live[page as usize] += count as u16;
            if u32::from(self.live[page as usize]) == PAGE_GRANULES {
                self.set_run(page, 0);
            }
        })
    }

    /// The length of the area that begins at `at`; `None` if none does.
    pub(super) fn area(&self, at: u32) -> Option<u32> {
        let (word, bit) = ((at / 64) as usize, at % 64);
        if *self.starts.get(word)? >> bit & 1 == 0 {
            return None;
        }
        let mut hit = self.ends[word] & u64::MAX << bit;
        let mut i = word;
        while hit == 0 {
            i += 1;
            hit = *self.ends.get(i)?;
        }
        Some(i as u32 * 64 + hit.trailing_zeros() + 1 - at)
    }

    /// The area at `at` has no owner from now on, so it cannot be put twice.
    pub(super) fn disown(&mut self, at: u32) {
        self.starts[(at / 64) as usize] &= !(1 << (at % 64));
    }

    /// Frees the granules of an area that was disowned.
    pub(super) fn clear(&mut self, at: u32, n: u32) {
        bits::for_words(at, n, |i, mask| self.used[i] &= !mask);
        let last = at + n - 1;
        self.ends[(last / 64) as usize] &= !(1 << (last % 64));
        self.granules -= n;
        let mut empty = 0;
        for_pages(at, n, |page, count| {
            let live = &mut self.live[page as usize];
            *live -= count as u16;
            let run = if *live == 0 {
                empty |= 1 << page;
                PAGE_GRANULES
            } else {
                let begin = at.max(page * PAGE_GRANULES) % PAGE_GRANULES;
                self.run_in_page(page, begin, count)
            };
            if run > u32::from(self.runs[page as usize]) {
                self.set_run(page, run);
            }
        });
        self.occupied &= !empty;
        let around = self.run_around(at, n);
        self.longest = self.longest.max(around as u16);
    }

    /// The free run around a free range, inside its page.
    fn run_in_page(&self, page: u32, begin: u32, n: u32) -> u32 {
        let first = page as usize * PAGE_WORDS;
        let free = core::array::from_fn(|i| !self.used[first + i]);
        bits::run_around(&free, begin, n)
    }

    /// The free run around a free range, across pages: empty pages are skipped as a whole.
    fn run_around(&self, at: u32, n: u32) -> u32 {
        let (mut begin, mut end) = (at, at + n);
        while begin > 0 {
            if begin.is_multiple_of(PAGE_GRANULES) {
                // Empty pages right below.
                let below = self.occupied << (UNIT_PAGES as u32 - begin / PAGE_GRANULES);
                begin -= PAGE_GRANULES * below.leading_zeros().min(begin / PAGE_GRANULES);
                if begin == 0 {
                    break;
                }
            }
            let bit = (begin - 1) % 64;
            let word = self.used[((begin - 1) / 64) as usize] << (63 - bit);
            let zeros = word.leading_zeros().min(bit + 1);
            begin -= zeros;
            if zeros < bit + 1 {
                break;
            }
        }
        while end < UNIT_GRANULES {
            if end.is_multiple_of(PAGE_GRANULES) {
                let page = end / PAGE_GRANULES;
                let empty = (self.occupied >> page).trailing_zeros();
                end += PAGE_GRANULES * empty.min(UNIT_PAGES as u32 - page);
                if end == UNIT_GRANULES {
                    break;
                }
            }
            let bit = end % 64;
            let zeros = (self.used[(end / 64) as usize] >> bit)
                .trailing_zeros()
                .min(64 - bit);
            end += zeros;
            if zeros < 64 - bit {
                break;
            }
        }
        end - begin
    }

    /// Sets the hint of a page, and updates the values that depend on it.
    pub(super) fn set_run(&mut self, page: u32, run: u32) {
        self.runs[page as usize] = run as u16;
        let levels = run.checked_ilog2().map_or(0, |level| level + 1) as usize;
        let bit = 1u64 << page;
        for (level, pages) in self.fits.iter_mut().enumerate() {
            *pages = if level < levels {
                *pages | bit
            } else {
                *pages & !bit
            };
        }
    }
}

/// Calls `each` for the pages of a range, with the number of its granules there. Returns the pages.
pub(super) fn for_pages(at: u32, n: u32, mut each: impl FnMut(u32, u32)) -> u64 {
    let (mut begin, end, mut pages) = (at, at + n, 0);
    debug_assert!(n > 0 && end as usize <= UNIT_PAGES * PAGE_GRANULES as usize);
    while begin < end {
        let page = begin / PAGE_GRANULES;
        let next = ((page + 1) * PAGE_GRANULES).min(end);
        each(page, next - begin);
        pages |= 1 << page;
        begin = next;
    }
    pages
}
