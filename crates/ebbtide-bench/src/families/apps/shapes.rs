//! Common shapes of memory use, as measured processes.
//!
//! A shape checks the content of its objects, frees most of what it has, marks the rest, and frees what is left after
//! it. Its amount scales the work; all sizes come from fixed sequences, so the work is the same in every process.

use std::ptr;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::sizes::Sizes;
use super::watch::watch;
use crate::harness::Run;
use crate::harness::peers::Entry;
use crate::harness::process::{Starter, TIMEOUT, parse};
use crate::measured::calls::page_bytes;
use crate::measured::{Output, Random, WorkerArgs, alloc, link, release};

/// The shapes; those of pairs have a number.
const SHAPES: [&str; 7] = [
    "inherit",
    "pairs_",
    "churn",
    "large",
    "realloc",
    "classes",
    "fragments",
];
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// Whether a case is one of these.
pub fn is_shape(case: &str) -> bool {
    SHAPES.iter().any(|shape| case.starts_with(shape))
}

/// A shape, watched from outside.
#[derive(Debug)]
pub struct Shape {
    case: &'static str,
    amount: u64,
    rest: Duration,
    limit: Duration,
}

impl Shape {
    /// The shape of a case. `length` is that of `fragments`.
    pub fn new(case: &'static str, is_quick: bool, length: Duration, rest: Duration) -> Self {
        let scale = if is_quick { 1 } else { 10 };
        let amount = match case {
            "inherit" => 40 * scale,
            "churn" => 1_000 * scale,
            "large" => 200 * scale,
            "realloc" if is_quick => 64 << 20,
            "realloc" => 1 << 30,
            "classes" => 1_000_000 * scale,
            "fragments" => (length.as_millis() / PHASE.as_millis()).max(1) as u64,
            // Pairs.
            _ => 2_000_000 * scale,
        };
        Shape {
            case,
            amount,
            rest,
            limit: TIMEOUT + length + rest,
        }
    }
}

impl Run for Shape {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        let command = starter.worker(self.case, self.amount, entry, "");
        let (last, figures) = watch(command, self.rest, self.limit)?;
        let mut output = parse(&last)?;
        output.add(figures);
        Ok(output)
    }

    fn idle(&self) -> Duration {
        self.rest
    }
}

/// Runs a shape in the measured process.
pub fn process(args: &WorkerArgs) -> Option<Result<Output>> {
    is_shape(&args.case).then(|| run(&args.case, args.amount, link::rest))
}

/// Runs a shape; `rest` is called once most is freed.
fn run(case: &str, amount: u64, rest: fn()) -> Result<Output> {
    let mut left = Vec::new();
    let checksum = match case {
        "inherit" => inherit(amount, &mut left),
        "churn" => churn(amount, &mut left),
        "large" => large(amount, &mut left),
        "realloc" => grow(amount as usize)?,
        "classes" => classes(amount, &mut left)?,
        "fragments" => fragments(amount, &mut left),
        _ => {
            let pairs = case.strip_prefix("pairs_").unwrap_or_default().parse()?;
            ensure!((1..=64).contains(&pairs), "{pairs} pairs");
            self::pairs(pairs, amount)
        }
    };
    rest();
    let left_bytes: u64 = left.iter().map(|object| object.size as u64).sum();
    let none: [(&str, f64); 0] = [];
    Ok(Output::new(checksum.wrapping_add(left_bytes), none))
}

/// A live object with its size, and a word at its start and end that follows from both.
#[derive(Debug)]
struct Object {
    start: *mut u8,
    size: usize,
}

// SAFETY: the only reference to its memory.
unsafe impl Send for Object {}

impl Object {
    /// Allocates, and touches every page.
    fn new(size: usize) -> Self {
        let size = size.max(16);
        let start = alloc(size);
        let page = page_bytes();
        for at in (0..size).step_by(page) {
            // SAFETY: inside the allocation.
            unsafe { start.add(at).write_volatile(1) };
        }
        let object = Object { start, size };
        // SAFETY: at least 16 bytes, aligned to 16.
        unsafe {
            start.cast::<u64>().write_volatile(size as u64);
            start
                .add(size - 8)
                .cast::<u64>()
                .write_unaligned(object.word());
        }
        object
    }

    fn word(&self) -> u64 {
        (self.start as u64).wrapping_mul(SEED) ^ self.size as u64
    }
}

impl Drop for Object {
    /// Checks the content and frees.
    fn drop(&mut self) {
        // SAFETY: live, written when it was made, freed once.
        unsafe {
            let first = self.start.cast::<u64>().read_volatile();
            let last = self.start.add(self.size - 8).cast::<u64>().read_unaligned();
            assert!(
                first == self.size as u64 && last == self.word(),
                "a live object has changed"
            );
            release(self.start);
        }
    }
}

/// Threads replace objects of 16 to 512 bytes at random. A thread ends after some replacements, and another one goes on
/// with its objects.
fn inherit(generations: u64, left: &mut Vec<Object>) -> u64 {
    const THREADS: u64 = 4;
    const SLOTS: usize = 5_000;
    const STEPS: usize = 50_000;
    let servers = (0..THREADS).map(|which| {
        thread::spawn(move || {
            let mut random = Random(SEED + which);
            let fresh =
                |random: &mut Random| Object::new(16 + (random.next() >> 40) as usize % 497);
            let mut slots: Vec<Object> = (0..SLOTS).map(|_| fresh(&mut random)).collect();
            for _ in 0..generations {
                let heir = thread::spawn(move || {
                    for _ in 0..STEPS {
                        let slot = (random.next() >> 40) as usize % SLOTS;
                        slots[slot] = fresh(&mut random);
                    }
                    (slots, random)
                });
                (slots, random) = heir.join().unwrap_or_else(|_| std::process::abort());
            }
            slots.truncate(SLOTS / 10);
            slots
        })
    });
    for server in servers.collect::<Vec<_>>() {
        left.extend(server.join().unwrap_or_else(|_| std::process::abort()));
    }
    left.len() as u64
}

/// Pairs of threads: one allocates objects of 16 to 512 bytes, the other one frees them.
fn pairs(pairs: u64, objects: u64) -> u64 {
    const BATCH: u64 = 128;
    let each = objects / pairs;
    thread::scope(|scope| {
        let mut consumers = Vec::new();
        for which in 0..pairs {
            let (sender, receiver) = sync_channel::<Vec<Object>>(16);
            scope.spawn(move || {
                let mut random = Random(SEED + which);
                for _ in 0..each / BATCH {
                    let batch =
                        (0..BATCH).map(|_| Object::new(16 + (random.next() >> 40) as usize % 497));
                    if sender.send(batch.collect()).is_err() {
                        return;
                    }
                }
            });
            consumers.push(scope.spawn(move || {
                let sizes = receiver.iter().flatten().map(|object| object.size as u64);
                sizes.sum::<u64>()
            }));
        }
        let sums = consumers.into_iter().map(|consumer| {
            let sum = consumer.join();
            sum.unwrap_or_else(|_| std::process::abort())
        });
        sums.sum()
    })
}

/// Two threads at a time, which allocate a thousand objects each, free most of them, and leave a tenth. A tenth of what
/// is left stays.
fn churn(threads: u64, left: &mut Vec<Object>) -> u64 {
    let mut sum = 0u64;
    let start = |which: u64| {
        thread::spawn(move || {
            let mut random = Random(SEED + which);
            let objects: Vec<Object> = (0..1_000)
                .map(|_| Object::new(random.size_bytes()))
                .collect();
            objects.into_iter().step_by(10).collect::<Vec<_>>()
        })
    };
    let mut before = start(threads);
    for which in 0..threads {
        let next = start(which);
        let done = std::mem::replace(&mut before, next);
        let left_over = done.join().unwrap_or_else(|_| std::process::abort());
        sum += left_over.len() as u64;
        left.extend(left_over.into_iter().step_by(10));
    }
    sum + before.join().map_or(0, |objects| objects.len() as u64)
}

/// 20 blocks of 5 to 25 MB, one of which is replaced at a time. Every page is touched.
fn large(replaced: u64, left: &mut Vec<Object>) -> u64 {
    const SLOTS: usize = 20;
    let mut random = Random(SEED);
    let mut slots: Vec<Option<Object>> = (0..SLOTS).map(|_| None).collect();
    let mut sum = 0u64;
    for _ in 0..replaced {
        let slot = &mut slots[(random.next() >> 40) as usize % SLOTS];
        let size = 5_000_000 + (random.next() >> 32) as usize % 20_000_000;
        *slot = None;
        *slot = Some(Object::new(size));
        sum = sum.wrapping_mul(31).wrapping_add(size as u64);
    }
    left.extend(slots.into_iter().flatten().take(2));
    sum
}

/// Three blocks, one after the other, grow from 4 KiB by a quarter at a time, and small objects between their steps
/// stay until the block is whole.
fn grow(most: usize) -> Result<u64> {
    let mut sum = 0u64;
    for _ in 0..3 {
        let mut small = Vec::new();
        let (mut block, mut size) = (ptr::null_mut::<u8>(), 0);
        let mut next = 4096;
        while size < most {
            // SAFETY: null or the live block.
            let moved = unsafe { libc::realloc(block.cast(), next) }.cast::<u8>();
            ensure!(!moved.is_null(), "out of memory at {next} bytes");
            block = moved;
            for at in (size..next).step_by(page_bytes()) {
                // SAFETY: inside the block.
                unsafe { block.add(at).write_volatile(1) };
            }
            // SAFETY: inside the block, written in an earlier step or just now.
            let first = unsafe { block.read_volatile() };
            ensure!(first == 1, "the block has changed");
            sum = sum.wrapping_mul(31).wrapping_add(next as u64);
            small.push(Object::new(100));
            size = next;
            next = (size + size / 4 + 15) & !15;
        }
        // SAFETY: live, freed once.
        unsafe { release(block) };
    }
    Ok(sum)
}

/// Objects of the sizes that real programs ask for are replaced at random among 100,000 live ones.
fn classes(replaced: u64, left: &mut Vec<Object>) -> Result<u64> {
    const SLOTS: usize = 100_000;
    let sizes = Sizes::known()?;
    let mut random = Random(SEED);
    let mut slots: Vec<Object> = (0..SLOTS)
        .map(|_| Object::new(sizes.draw(&mut random)))
        .collect();
    let mut sum = 0u64;
    for _ in 0..replaced {
        let slot = (random.next() >> 40) as usize % SLOTS;
        let size = sizes.draw(&mut random);
        slots[slot] = Object::new(size);
        sum = sum.wrapping_add(size as u64);
    }
    left.extend(slots.into_iter().step_by(10));
    Ok(sum)
}

/// Time from one phase of `fragments` to the next. A phase that takes longer delays the next one.
const PHASE: Duration = Duration::from_millis(50);

/// In each phase, objects around another size are allocated, and all but a tenth of them are freed in the next phase.
/// The tenth stays for 200 phases.
fn fragments(phases: u64, left: &mut Vec<Object>) -> u64 {
    const PHASE_BYTES: usize = 16 << 20;
    const STAY: usize = 200;
    let began = Instant::now();
    let mut random = Random(SEED);
    let mut staying = std::collections::VecDeque::new();
    let mut last: Vec<Object> = Vec::new();
    let mut sum = 0u64;
    for phase in 0..phases {
        // 32 bytes to 64 KiB, up and down.
        let step = phase % 44;
        let power = 5.0 + step.min(44 - step) as f64 / 2.0;
        let size = power.exp2() as usize;
        let mut objects = Vec::new();
        let mut bytes = 0;
        while bytes < PHASE_BYTES {
            let one = size / 2 + (random.next() >> 40) as usize % size;
            bytes += one.max(16);
            objects.push(Object::new(one));
        }
        sum = sum.wrapping_add(objects.len() as u64);
        let mut at = 0;
        last.retain(|_| {
            at += 1;
            at % 10 == 0
        });
        staying.push_back(std::mem::replace(&mut last, objects));
        if staying.len() > STAY {
            staying.pop_front();
        }
        let due = began + PHASE * (phase + 1) as u32;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    left.extend(staying.into_iter().flatten());
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_repeat() {
        let cases = [
            ("inherit", 1),
            ("pairs_2", 10_000),
            ("churn", 5),
            ("large", 4),
            ("realloc", 1 << 20),
            ("classes", 1_000),
            ("fragments", 3),
        ];
        for (case, amount) in cases {
            let one = || run(case, amount, || ()).unwrap().checksum;
            let first = one();
            assert!(first != 0 && first == one(), "{case}");
        }
        assert!(run("pairs_0", 1, || ()).is_err());
        assert!(is_shape("pairs_16") && !is_shape("gcc"));
    }

    #[test]
    #[should_panic(expected = "a live object has changed")]
    fn a_changed_object_is_noticed() {
        let object = Object::new(100);
        // SAFETY: inside the object.
        unsafe { object.start.write_volatile(7) };
    }
}
