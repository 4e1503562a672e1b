//! Chooses the requests that are sampled: each byte that is asked for is the first of a sample with the same probability.
//!
//! Each CPU counts down the bytes of its requests. The request at which its word is no longer above zero is sampled, and the word gets a new
//! distance. Distances are exponential, so it does not matter to which CPU a thread moves, or that the rest of a request goes unused: from
//! any byte on, the distance to the next sample has the same distribution.
//!
//! A word is written by sections and, on its own CPU, by a plain store: a section that the store interrupts begins again. A store that comes
//! from another CPU, because the thread was moved, may be lost. Then the next request there is sampled. Threads without sections, and the
//! portable mode, count in words that many CPUs share, by atomic instructions.

use crate::base::fast::FAST;
use core::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::rseq::{UNIT_SHIFT, section};
use ebbtide_sys::{process, vm};

/// CPUs with a word of their own. Threads on higher CPUs count in the shared words.
const MAX_CPUS: usize = 1024;
/// Words for threads without sections.
const SHARED: usize = 16;

#[repr(align(64))]
struct Shared(AtomicI64);

/// The words of all CPUs.
pub struct Countdown {
    /// The address of the word of CPU 0; 0: there are only shared words.
    words: AtomicUsize,
    /// How many CPUs have a word.
    cpus: AtomicUsize,
    shared: [Shared; SHARED],
    random: AtomicU64,
}

/// The countdown of this process. A forked child goes on with its copy.
pub static COUNTDOWN: Countdown = Countdown::new();
/// That of guarded allocations. It counts each request as one byte: a mistake is as likely with a small object.
pub static GUARD_COUNTDOWN: Countdown = Countdown::new();

impl Countdown {
    const fn new() -> Self {
        Self {
            words: AtomicUsize::new(0),
            cpus: AtomicUsize::new(0),
            shared: [const { Shared(AtomicI64::new(0)) }; SHARED],
            random: AtomicU64::new(0),
        }
    }

    /// Makes the words of CPUs, where there are sections. Without address space for them, the shared words serve.
    pub fn reserve(&self) {
        if !FAST.uses_sections() || self.words.load(Ordering::Relaxed) != 0 {
            return;
        }
        let cpus = process::cpu_limit().clamp(1, MAX_CPUS);
        let bytes = cpus << UNIT_SHIFT;
        if let Ok(words) = vm::map(bytes) {
            self.cpus.store(cpus, Ordering::Relaxed);
            let first = self
                .words
                .compare_exchange(0, words, Ordering::Release, Ordering::Relaxed);
            if first.is_err() {
                vm::unmap(words, vm::whole_pages(bytes));
            }
        }
    }

    /// Sets all words for a rate. The caller excludes other callers.
    pub fn begin(&self, rate: usize, seed: u64) {
        self.random.fetch_add(seed, Ordering::Relaxed);
        let cpus = self.cpus.load(Ordering::Relaxed);
        for word in (0..cpus).filter_map(|cpu| self.word(cpu)) {
            word.store(self.draw(rate), Ordering::Relaxed);
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

    fn word(&self, cpu: usize) -> Option<&AtomicI64> {
        let words = self.words.load(Ordering::Acquire);
        let exists = words != 0 && cpu < self.cpus.load(Ordering::Relaxed);
        // SAFETY: the words of these CPUs are mapped for ever.
        exists.then(|| unsafe { &*((words + (cpu << UNIT_SHIFT)) as *const AtomicI64) })
    }

    /// Counts a request. Returns whether it is sampled.
    #[inline]
    pub fn counts(&self, size: usize, rate: usize) -> bool {
        // A request for nothing takes memory too.
        let size = size.clamp(1, isize::MAX as usize);
        let words = self.words.load(Ordering::Acquire);
        let offset = FAST.rseq_offset.load(Ordering::Relaxed) as isize;
        let cpus = self.cpus.load(Ordering::Relaxed);
        let less = (size as u64).wrapping_neg();
        // SAFETY: the words are mapped, which implies the section mode.
        if words != 0 && unsafe { section::add(words, cpus, less, offset) } {
            // SAFETY: as above.
            let cpu = unsafe { section::cpu_id(offset) } as usize;
            let word = self.word(cpu);
            return word.is_some_and(|word| self.is_due(word, word.load(Ordering::Relaxed), rate));
        }
        let word = &self.shared[process::current_cpu() % SHARED].0;
        let left = word.fetch_sub(size as i64, Ordering::Relaxed) - size as i64;
        self.is_due(word, left, rate)
    }

    #[inline]
    fn is_due(&self, word: &AtomicI64, left: i64, rate: usize) -> bool {
        if left > 0 && rate != 1 {
            return false;
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
        let countdown = Countdown::new();
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
        let countdown = Countdown::new();
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

    #[test]
    fn a_rate_of_one_samples_everything() {
        COUNTDOWN.begin(1, 7);
        assert!((0..1000).all(|size| COUNTDOWN.counts(size, 1)));
    }
}
