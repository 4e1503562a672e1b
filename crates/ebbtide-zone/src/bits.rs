//! Searches in bit maps, word by word: no loop takes a bit at a time.
//!
//! Bit `b` of word `i` is position `64 i + b`. "Run" means consecutive set bits.

/// The bit map of one pageblock.
pub type Map = [u64; 8];

/// The mask of `n` bits (1 to 64) from bit `from`; bits past 63 are dropped.
#[inline]
pub const fn mask(from: u32, n: u32) -> u64 {
    debug_assert!(n >= 1 && n <= 64 && from < 64);
    (u64::MAX >> (64 - n)) << from
}

/// Calls `f(word, mask)` for each word that the range `[from, from + n)` touches, in order.
#[inline]
pub fn for_words(from: u32, n: u32, mut f: impl FnMut(usize, u64)) {
    let end = from + n;
    let mut at = from;
    while at < end {
        let bit = at % 64;
        let here = (64 - bit).min(end - at);
        f((at / 64) as usize, mask(bit, here));
        at += here;
    }
}

/// The number of set bits of a word. Nearly all words are full or empty. Without the processor's own instruction, a
/// count takes a dozen instructions.
#[inline]
pub fn ones(word: u64) -> u32 {
    match word {
        0 => 0,
        u64::MAX => 64,
        _ => word.count_ones(),
    }
}

/// The bits of `word` in aligned groups of `group` bits (a power of two up to 64) that are set as a whole.
#[inline]
pub const fn whole_groups(word: u64, group: u32) -> u64 {
    if group == 1 {
        return word;
    }
    let mut first = word;
    let mut step = 1;
    while step < group {
        first &= first >> step;
        step *= 2;
    }
    let firsts = u64::MAX / mask(0, group);
    (first & firsts) * mask(0, group)
}

/// The bits of all aligned groups of `group` bits of which `word` has at least one.
#[inline]
pub const fn touched_groups(word: u64, group: u32) -> u64 {
    !whole_groups(!word, group)
}

/// `word` without its lowest aligned group of `group` bits; `word` consists of whole groups and is not 0.
#[inline]
pub const fn without_first_group(word: u64, group: u32) -> u64 {
    word & !mask(word.trailing_zeros(), group)
}

/// The number of set bits.
#[inline]
pub fn count(map: &Map) -> u32 {
    map.iter().map(|&w| ones(w)).sum()
}

/// Leaves a bit set where a run of `n` (1 to 64) begins.
#[inline]
fn starts(mut x: u128, n: u32) -> u128 {
    let mut have = 1;
    while have < n {
        let step = have.min(n - have);
        x &= x >> step;
        have += step;
    }
    x
}

/// The bits of word number `word` (counted from position 0) that are multiples of `align`, a power of two.
#[inline]
fn aligned(word: u64, align: u64) -> u64 {
    if align >= 64 {
        return u64::from((word * 64) & (align - 1) == 0);
    }
    // 1 repeated every `align` bits: all ones divided by a digit of ones.
    u64::MAX / (u64::MAX >> (64 - align))
}

/// The lowest aligned place where `n` set bits follow each other in `word(from..to)`, as a position from word 0.
///
/// `base_words` is added to the word number for the alignment only. Costs O(words). Every word between `from` and
/// the result is read once or twice.
#[inline]
pub fn find_run_by(
    word: impl Fn(usize) -> u64,
    from: usize,
    to: usize,
    n: u64,
    align: u64,
    base_words: u64,
) -> Option<u64> {
    debug_assert!(n >= 1 && align.is_power_of_two());
    if n <= 64 {
        for i in from..to {
            let low = word(i);
            if low == 0 {
                continue;
            }
            let high = if n > 1 && i + 1 < to { word(i + 1) } else { 0 };
            let pair = u128::from(low) | u128::from(high) << 64;
            let hit = starts(pair, n as u32) as u64 & aligned(base_words + i as u64, align);
            if hit != 0 {
                return Some(i as u64 * 64 + u64::from(hit.trailing_zeros()));
            }
        }
        return None;
    }
    // Longer than a word: such a run reaches the top bit of the word that it begins in.
    let base = base_words * 64;
    let mut i = from;
    while i < to {
        let lead = word(i).leading_ones();
        i += 1;
        if lead == 0 {
            continue;
        }
        let begin = i as u64 * 64 - u64::from(lead);
        let place = ((base + begin + align - 1) & !(align - 1)) - base;
        let mut end = i as u64 * 64;
        while i < to {
            let w = word(i);
            end += u64::from(w.trailing_ones());
            if end >= place + n {
                return Some(place);
            }
            if w != u64::MAX {
                break;
            }
            i += 1;
        }
        // The word that ended the run is checked again: another run may begin at its top.
    }
    None
}

/// The lowest place of `n` (1 to 512) set bits in `map` at a multiple of `align`; places inside `prefer` come first.
#[inline]
pub fn find_run(map: &Map, n: u32, align: u32, prefer: Option<&Map>) -> Option<u32> {
    if let Some(p) = prefer
        && let Some(at) = find_in(p, n, align)
    {
        return Some(at);
    }
    find_in(map, n, align)
}

#[inline]
fn find_in(map: &Map, n: u32, align: u32) -> Option<u32> {
    find_run_by(|i| map[i], 0, 8, u64::from(n), u64::from(align), 0).map(|p| p as u32)
}

/// The length of the longest run, at most `at_most`: the search ends when it has found a run of that length.
#[inline]
pub fn longest_run(map: &Map, at_most: u32) -> u32 {
    let mut best = 0;
    let mut run = 0;
    // From the top: allocations take low frames, so the longest free run tends to lie high.
    for &w in map.iter().rev() {
        if w == u64::MAX {
            run += 64;
            continue;
        }
        if w == 0 {
            best = best.max(run);
            run = 0;
            continue;
        }
        run += w.leading_ones();
        best = best.max(run);
        if best >= at_most {
            return best;
        }
        // Inside the word: `w` keeps a bit for each run longer than `best`, and each iteration makes `best` grow.
        if w.count_ones() > best {
            let mut x = starts(u128::from(w), best + 1) as u64;
            while x != 0 {
                best += 1;
                x &= x >> 1;
            }
        }
        run = w.trailing_ones();
    }
    best.max(run)
}

/// The length of the run that contains the set range `[from, from + n)`.
#[inline]
pub fn run_around(map: &Map, from: u32, n: u32) -> u32 {
    let mut begin = from;
    while begin > 0 {
        let bit = (begin - 1) % 64;
        let w = map[((begin - 1) / 64) as usize] << (63 - bit);
        let ones = w.leading_ones().min(bit + 1);
        begin -= ones;
        if ones < bit + 1 {
            break;
        }
    }
    run_end(map, from + n) - begin
}

/// One past the last bit of the run that continues at `from` (`from` itself if that bit is clear).
#[inline]
fn run_end(map: &Map, from: u32) -> u32 {
    let mut end = from;
    while end < 512 {
        let bit = end % 64;
        let ones = (map[(end / 64) as usize] >> bit).trailing_ones();
        end += ones;
        if ones < 64 - bit {
            break;
        }
    }
    end
}

/// The first run that begins at `from` or above, as place and length.
#[inline]
pub fn next_run(map: &Map, from: u32) -> Option<(u32, u32)> {
    let mut i = (from / 64) as usize;
    let mut w = *map.get(i)? & (u64::MAX << (from % 64));
    while w == 0 {
        i += 1;
        w = *map.get(i)?;
    }
    let begin = i as u32 * 64 + w.trailing_zeros();
    Some((begin, run_end(map, begin) - begin))
}
