//! Chooses the requests that are sampled: each byte that is asked for is the first of a sample with the same probability.
//!
//! Each CPU counts down the bytes of its requests, in a word of its slab. The request at which its word is no longer above zero is sampled,
//! and the word gets a new distance. Distances are exponential, so it does not matter to which CPU a thread moves, when a word is drawn anew,
//! or that the rest of a request goes unused: from any byte on, the distance to the next sample has the same distribution.
//!
//! Small requests are counted by the section that pops their object ([`section::pop_counted`]). Where it ends without one, because the
//! countdown is at its end, the request comes here. The word is below zero then, so that it does not matter that it counts once more.
//!
//! A word is written by sections on its CPU, and by plain stores, as when its countdown begins. A store that comes from another CPU may be lost, or
//! a count. A lost distance makes the next request there due, or leaves the distance from before: one that is too long for the rate is drawn
//! anew. Threads without sections, and the portable mode, count in words that many CPUs share, by atomic instructions.

use crate::base::fast::FAST;
use core::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::process;
use ebbtide_sys::rseq::{CALLS_OFFSET, NO_COUNTDOWN, SIZES_OFFSET, section};

/// CPUs that may have a slab.
const MAX_CPUS: usize = 1024;
/// Words for threads without sections.
const SHARED: usize = 16;

#[repr(align(64))]
struct Shared(AtomicI64);

/// The words of all CPUs.
pub struct Countdown {
    /// Where the word is in each slab.
    offset: usize,
    shared: [Shared; SHARED],
    random: AtomicU64,
}

/// The countdown of this process. A forked child goes on with its copy.
pub static COUNTDOWN: Countdown = Countdown::new(SIZES_OFFSET);
/// That of guarded allocations. It counts each request as one byte: a mistake is as likely with a small object.
pub static GUARD_COUNTDOWN: Countdown = Countdown::new(CALLS_OFFSET);

impl Countdown {
    const fn new(offset: usize) -> Self {
        Self {
            offset,
            shared: [const { Shared(AtomicI64::new(0)) }; SHARED],
            random: AtomicU64::new(0),
        }
    }

    /// Sets all words for a rate. The caller excludes other callers. A slab that becomes live later begins by itself.
    pub fn begin(&self, rate: usize, seed: u64) {
        self.random.fetch_add(seed, Ordering::Relaxed);
        if FAST.uses_sections() {
            let cpus = process::cpu_limit().min(MAX_CPUS);
            for word in (0..cpus).filter_map(|cpu| self.word(cpu)) {
                word.store(self.draw(rate), Ordering::Relaxed);
            }
        }
        for word in &self.shared {
            word.0.store(self.draw(rate), Ordering::Relaxed);
        }
    }

    /// Makes the next request on this CPU due. A signal handler may call it.
    pub fn hurry(&self) {
        let cpu = process::current_cpu();
        if let Some(word) = self.word(cpu) {
            word.store(0, Ordering::Relaxed);
        }
        self.shared[cpu % SHARED].0.store(0, Ordering::Relaxed);
    }

    /// The word in the slab of a CPU, if the slab is live.
    fn word(&self, cpu: usize) -> Option<&AtomicI64> {
        if !FAST.uses_sections() || cpu >= MAX_CPUS {
            return None;
        }
        let stacks = FAST.stacks();
        // SAFETY: the table has an entry for each CPU (`INV-RSEQ-5`).
        let entry = unsafe { &*((stacks.table + cpu * 8) as *const AtomicUsize) };
        let slab = entry.load(Ordering::Acquire);
        // SAFETY: a slab that was live once is mapped for ever.
        (slab != 0).then(|| unsafe { &*((stacks.parked + slab + self.offset) as *const AtomicI64) })
    }

    /// Counts a request. Returns whether it is sampled.
    #[inline]
    pub fn counts(&self, size: usize, rate: usize) -> bool {
        // A request for nothing takes memory too.
        let size = size.clamp(1, isize::MAX as usize);
        if FAST.uses_sections()
            // SAFETY: just asked; the offset is that of a countdown.
            && let Some(counted) = unsafe { section::count(&FAST.stacks(), self.offset, size) }
        {
            // SAFETY: as in `word`.
            let word = unsafe { &*(counted.word as *const AtomicI64) };
            return self.is_due(word, counted.left, size, rate);
        }
        let word = &self.shared[process::current_cpu() % SHARED].0;
        let left = word.fetch_sub(size as i64, Ordering::Relaxed) - size as i64;
        self.is_due(word, left, size, rate)
    }

    /// Whether a request is due that has left so much of a word.
    #[inline]
    fn is_due(&self, word: &AtomicI64, left: i64, size: usize, rate: usize) -> bool {
        let is_under_way = 0 < left && left <= longest(rate) && rate != 1;
        !is_under_way && self.is_due_now(word, left, size, rate)
    }

    /// The same where a countdown is at its end, or has not begun.
    #[cold]
    fn is_due_now(&self, word: &AtomicI64, left: i64, size: usize, rate: usize) -> bool {
        if !(NO_COUNTDOWN / 2..=longest(rate)).contains(&left) && rate != 1 {
            let left = self.draw(rate) - size as i64;
            word.store(left, Ordering::Relaxed);
            if left > 0 {
                return false;
            }
        }
        word.store(self.draw(rate), Ordering::Relaxed);
        true
    }

    /// The distance to the next sample, at least 1.
    #[cold]
    fn draw(&self, rate: usize) -> i64 {
        // SplitMix64, which any number of threads may step.
        let mut random = self
            .random
            .fetch_add(STEP, Ordering::Relaxed)
            .wrapping_add(STEP);
        random = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random = (random ^ random >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        distance(rate as u64, random ^ random >> 31)
    }
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bits behind the point of a logarithm.
const FRACTION: u32 = 32;
/// The natural logarithm of 2.
const LN_2: u64 = 2_977_044_472;

/// No distance of this rate is longer: see [`distance`], of which 2^-64 is the least chance.
fn longest(rate: usize) -> i64 {
    (rate as i64).saturating_mul(45).saturating_add(1)
}

/// `-rate * ln(random / 2^64)`, rounded up: exponential with the mean `rate`, if all values of `random` are as likely.
fn distance(rate: u64, random: u64) -> i64 {
    let random = random.max(1);
    // The logarithm to base 2 of `random / 2^64`, negative: whole digits by the leading zeros, the others by squaring.
    let zeros = random.leading_zeros();
    let mut mantissa = random << zeros;
    let mut below = u64::from(zeros + 1) << FRACTION;
    for bit in (0..FRACTION).rev() {
        let square = u128::from(mantissa) * u128::from(mantissa);
        let is_two = square >> 127 == 1;
        mantissa = (square >> if is_two { 64 } else { 63 }) as u64;
        below -= u64::from(is_two) << bit;
    }
    let natural = (u128::from(below) * u128::from(LN_2)) >> FRACTION;
    let bytes = (natural * u128::from(rate)) >> FRACTION;
    i64::try_from(bytes).unwrap_or(i64::MAX - 1) + 1
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn distances_are_those_of_the_logarithm() {
        for random in [
            1,
            2,
            3,
            1 << 20,
            12345678901234567,
            1 << 63,
            u64::MAX / 3,
            u64::MAX,
        ] {
            for rate in [1, 64, 512 << 10, 1 << 40] {
                let expected = -(random as f64 / 2f64.powi(64)).ln() * rate as f64;
                let found = distance(rate, random) as f64;
                assert!(distance(rate, random) <= longest(rate as usize));
                let error = (found - expected).abs();
                assert!(
                    error <= 1.0 + expected * 1e-6 + rate as f64 * 1e-8,
                    "{rate} {random}: {found} {expected}"
                );
            }
        }
    }

    /// An object of `s` bytes is sampled with probability `1 - exp(-s / rate)`, whatever came before it.
    #[test]
    fn objects_are_sampled_by_their_size() {
        const RATE: usize = 1000;
        const ROUNDS: usize = 400_000;
        let sizes = [1, 16, 100, 900, 1000, 5000];
        let countdown = Countdown::new(SIZES_OFFSET);
        countdown.begin(RATE, 7);
        let mut sampled = [0; 6];
        for _ in 0..ROUNDS {
            for (count, size) in sampled.iter_mut().zip(sizes) {
                *count += usize::from(countdown.counts(size, RATE));
            }
        }
        for (count, size) in sampled.into_iter().zip(sizes) {
            let p = 1.0 - (-(size as f64) / RATE as f64).exp();
            let (expected, spread) = (p * ROUNDS as f64, (p * (1.0 - p) * ROUNDS as f64).sqrt());
            // Six times the spread: 2e-9.
            assert!(
                (count as f64 - expected).abs() < 6.0 * spread + 1.0,
                "{size}: {count} {expected}"
            );
        }
    }

    #[test]
    fn a_hurried_request_is_due() {
        const RATE: usize = 1 << 40;
        let countdown = Countdown::new(SIZES_OFFSET);
        countdown.begin(RATE, 7);
        assert!((0..SHARED).all(|_| !countdown.counts(1, RATE)));
        countdown.hurry();
        // This thread may have moved to another CPU.
        let due = |_| {
            countdown.hurry();
            countdown.counts(1, RATE)
        };
        assert!((0..100).any(due));
    }

    /// A word that was reset, and one of a much lower rate, begin anew; so the request is as likely to be due as any other.
    #[test]
    fn a_word_without_a_distance_begins_anew() {
        const RATE: usize = 1000;
        const SIZE: usize = 100;
        const ROUNDS: usize = 100_000;
        let countdown = Countdown::new(SIZES_OFFSET);
        countdown.begin(RATE, 7);
        for before in [NO_COUNTDOWN, longest(RATE) + 1 + SIZE as i64, i64::MAX] {
            let word = AtomicI64::new(0);
            let due = (0..ROUNDS)
                .filter(|_| countdown.is_due(&word, before - SIZE as i64, SIZE, RATE))
                .count();
            let p = 1.0 - (-(SIZE as f64) / RATE as f64).exp();
            let (expected, spread) = (p * ROUNDS as f64, (p * (1.0 - p) * ROUNDS as f64).sqrt());
            assert!(
                (due as f64 - expected).abs() < 6.0 * spread,
                "{before}: {due} {expected}"
            );
            assert!((1..=longest(RATE)).contains(&word.load(Ordering::Relaxed)));
        }
    }

    #[test]
    fn a_rate_of_one_samples_everything() {
        COUNTDOWN.begin(1, 7);
        assert!((0..1000).all(|size| COUNTDOWN.counts(size, 1)));
    }
}
