//! Sections against their model: random operations, each aborted at each point first.

extern crate std;
use super::model::Slab;
use super::{
    CALLS_OFFSET, Counting, MAX_CAPACITY, NO_COUNTDOWN, Registration, SIZES_OFFSET, SLAB_BYTES,
    SLAB_SKEW, STACK_BYTES, SectionResult, Stacks, reset_slab, section,
};
use std::vec::Vec;

const CLASSES: usize = 3;

/// One rig at a time: the injection point is process-wide.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

struct Rig {
    _alone: std::sync::MutexGuard<'static, ()>,
    stacks: Stacks,
    live: usize,
    model: Slab,
    model_address: usize,
}

/// Stacks for the CPU that this thread is pinned to, and a model slab beside them.
fn rig() -> Option<Rig> {
    rig_at(super::registration())
}

fn rig_at(registration: Registration) -> Option<Rig> {
    let Registration::At(rseq_offset) = registration else {
        std::eprintln!("skipped: no registration for restartable sections");
        return None;
    };
    let alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let cpu = crate::process::current_cpu();
    // SAFETY: plain libc calls on a local set.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set),
            0
        );
    }
    let cpus = crate::process::cpu_limit();
    let table = crate::vm::map(((cpus + 2) * 8).next_multiple_of(4096)).unwrap() + 16;
    let map_slabs = |count: usize| {
        let start = crate::vm::map((count + 1) * SLAB_BYTES).unwrap();
        start.next_multiple_of(STACK_BYTES) + SLAB_SKEW
    };
    let parked = map_slabs(cpus + 1);
    let model_address = map_slabs(1);
    let stacks = Stacks {
        table,
        parked,
        rseq_offset,
    };
    let live = stacks.slab(cpu);
    // SAFETY: fresh mappings of the right size, used by this thread only.
    unsafe {
        reset_slab(parked);
        reset_slab(live);
        reset_slab(model_address);
        ((table + cpu * 8) as *mut usize).write(stacks.live_offset(cpu));
        Some(Rig {
            _alone: alone,
            stacks,
            live,
            model: Slab::new(model_address),
            model_address,
        })
    }
}

impl Rig {
    /// Header and all entries of a class, with addresses relative to the slab.
    fn state(slab: usize, class: usize) -> (usize, Vec<usize>) {
        // SAFETY: reads of a mapped slab.
        unsafe {
            let header = *((slab + class * 8) as *const usize);
            let mut entries = Vec::new();
            let mut at = header;
            while *((at - 8) as *const usize) != 0 {
                entries.push(*((at - 8) as *const usize));
                at -= 8;
            }
            (header - slab, entries)
        }
    }

    /// The countdowns of a slab: bytes, requests.
    fn counts(slab: usize) -> [i64; 2] {
        // SAFETY: reads of a mapped slab.
        [SIZES_OFFSET, CALLS_OFFSET].map(|offset| unsafe { *((slab + offset) as *const i64) })
    }

    fn set_counts(slab: usize, counts: [i64; 2]) {
        for (offset, count) in [SIZES_OFFSET, CALLS_OFFSET].into_iter().zip(counts) {
            // SAFETY: as above; the slab is this thread's.
            unsafe { *((slab + offset) as *mut i64) = count };
        }
    }

    fn assert_equal(&self) {
        for class in 0..CLASSES {
            assert_eq!(
                Self::state(self.live, class),
                Self::state(self.model_address, class)
            );
        }
    }
}

/// A small generator, so that a failure repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Pop,
    Push,
    PopBatch(usize),
    PushBatch(usize, usize),
}

#[derive(PartialEq, Debug)]
enum Answer {
    Entry(usize),
    Done(bool),
    Batch(SectionResult, Vec<usize>),
}

fn by_section(rig: &Rig, class: usize, operation: Operation, value: usize) -> Answer {
    let stacks = &rig.stacks;
    // SAFETY: the rig's stacks are live and this thread is pinned.
    unsafe {
        match operation {
            Operation::Pop => Answer::Entry(section::pop(stacks, class)),
            Operation::Push => Answer::Done(section::push(stacks, class, value)),
            Operation::PopBatch(wanted) => {
                let mut entries = std::vec![0; wanted];
                let outcome = section::pop_batch(stacks, class, &mut entries);
                if let SectionResult::Done(count) = outcome {
                    entries.truncate(count);
                }
                Answer::Batch(outcome, entries)
            }
            Operation::PushBatch(count, capacity) => {
                let entries: Vec<usize> = (0..count).map(|i| value + i).collect();
                Answer::Batch(
                    section::push_batch(stacks, class, &entries, capacity),
                    entries,
                )
            }
        }
    }
}

fn by_model(rig: &mut Rig, class: usize, operation: Operation, value: usize) -> Answer {
    match operation {
        Operation::Pop => Answer::Entry(rig.model.pop(class).unwrap_or(0)),
        Operation::Push => Answer::Done(rig.model.push(class, value)),
        Operation::PopBatch(wanted) => {
            let mut entries = std::vec![0; wanted];
            let count = rig.model.pop_batch(class, &mut entries);
            entries.truncate(count);
            Answer::Batch(SectionResult::Done(count), entries)
        }
        Operation::PushBatch(count, capacity) => {
            let entries: Vec<usize> = (0..count).map(|i| value + i).collect();
            let pushed = rig.model.push_batch(class, &entries, capacity);
            Answer::Batch(SectionResult::Done(pushed), entries)
        }
    }
}

fn random_operation(random: &mut Random) -> Operation {
    match random.below(8) {
        0..3 => Operation::Pop,
        3..6 => Operation::Push,
        6 => Operation::PopBatch(1 + random.below(64)),
        _ => Operation::PushBatch(1 + random.below(64), 1 + random.below(MAX_CAPACITY)),
    }
}

/// Real interruptions can abort a section too; without injection, try again.
fn settled(rig: &Rig, class: usize, operation: Operation, value: usize, model: &Answer) -> Answer {
    for _ in 0..1000 {
        let answer = by_section(rig, class, operation, value);
        let aborted = match &answer {
            Answer::Entry(0) | Answer::Done(false) => answer != *model,
            Answer::Batch(SectionResult::Aborted, _) => true,
            _ => false,
        };
        if !aborted {
            return answer;
        }
    }
    panic!("aborted a thousand times");
}

#[test]
fn sections_do_what_the_model_does() {
    let Some(mut rig) = rig() else { return };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for step in 0..50_000 {
        let class = random.below(CLASSES);
        let operation = random_operation(&mut random);
        let value = 16 + step * 1024;
        let expected = by_model(&mut rig, class, operation, value);
        let answer = settled(&rig, class, operation, value, &expected);
        assert_eq!(answer, expected, "step {step}: {operation:?}");
        if step % 64 == 0 {
            rig.assert_equal();
        }
    }
    rig.assert_equal();
}

#[test]
fn a_parked_cpu_refuses_everything() {
    let Some(rig) = rig() else { return };
    let cpu = crate::process::current_cpu();
    // SAFETY: the rig's own table.
    unsafe { ((rig.stacks.table + cpu * 8) as *mut usize).write(0) };
    assert_eq!(by_section(&rig, 0, Operation::Pop, 0), Answer::Entry(0));
    assert_eq!(
        by_section(&rig, 0, Operation::Push, 16),
        Answer::Done(false)
    );
    let Answer::Batch(outcome, _) = by_section(&rig, 0, Operation::PopBatch(4), 0) else {
        panic!()
    };
    assert_eq!(outcome, SectionResult::Parked);
    let Answer::Batch(outcome, _) = by_section(&rig, 0, Operation::PushBatch(4, 8), 16) else {
        panic!()
    };
    assert_eq!(outcome, SectionResult::Parked);
}

#[test]
fn a_stack_after_a_reset_refuses_everything() {
    let Some(rig) = rig() else { return };
    for class in 0..super::STACKS {
        assert_eq!(by_section(&rig, class, Operation::Pop, 0), Answer::Entry(0));
        assert_eq!(
            by_section(&rig, class, Operation::Push, 16),
            Answer::Done(false)
        );
    }
}

#[test]
fn the_same_entry_twice_is_refused() {
    let Some(mut rig) = rig() else { return };
    rig.model.push_batch(0, &[16], 8);
    assert!(!rig.model.push(0, 16));
    // A real interruption would abort the batch; once more, then.
    while by_section(&rig, 0, Operation::PushBatch(1, 8), 16)
        != Answer::Batch(SectionResult::Done(1), std::vec![16])
    {}
    assert_eq!(
        by_section(&rig, 0, Operation::Push, 16),
        Answer::Done(false)
    );
    rig.assert_equal();
}

#[test]
fn a_thread_knows_that_it_was_switched_out() {
    let Some(rig) = rig() else { return };
    let offset = rig.stacks.rseq_offset;
    // SAFETY: the rig's stacks are live, and this thread is registered.
    let is_switched = || unsafe {
        section::pop(&rig.stacks, 0);
        section::was_switched(offset)
    };
    assert!((0..1000).any(|_| !is_switched()), "not without a reason");
    // As many busy threads as CPUs, so that this one is preempted. Sleep would not do: newer kernels leave the address of
    // the descriptor when a thread is switched out in a system call.
    let done = core::sync::atomic::AtomicBool::new(false);
    let told = std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                while !done.load(core::sync::atomic::Ordering::Relaxed) {
                    core::hint::spin_loop();
                }
            });
        }
        let told = (0..500).any(|_| {
            // SAFETY: the rig's stacks are live, and this thread is registered.
            unsafe { section::pop(&rig.stacks, 0) };
            let start = std::time::Instant::now();
            while start.elapsed() < std::time::Duration::from_millis(5) {}
            // SAFETY: as above.
            unsafe { section::was_switched(offset) }
        });
        done.store(true, core::sync::atomic::Ordering::Relaxed);
        told
    });
    assert!(told, "preempted, and not told");
}

#[test]
fn a_copy_leaves_the_entries() {
    let Some(mut rig) = rig() else { return };
    let mut copy = [9; 3];
    assert_eq!(rig.model.peek(0, &mut copy), 0);
    rig.model.push_batch(0, &[16, 32], 8);
    assert_eq!(
        (rig.model.peek(0, &mut copy), copy[..2] == [32, 16]),
        (2, true)
    );
    rig.model.push_batch(0, &[48, 64], 8);
    assert_eq!((rig.model.peek(0, &mut copy), copy), (3, [64, 48, 32]));
    assert_eq!(rig.model.len(0), 4);
}

/// Another thread runs on the CPU while one is in its section: that section must not take effect any more. Kernels that
/// are known to fail here are refused, and this says what they do.
#[test]
fn preemption_on_one_cpu_ends_the_section_under_way() {
    use core::sync::atomic::Ordering;

    let Some(rig) = rig_at(super::on_any_kernel()) else {
        return;
    };
    let mut unended = 0;
    for _ in 0..20 {
        let words = section::Lingering::default();
        std::thread::scope(|scope| {
            // On the same CPU as this thread.
            scope.spawn(|| {
                super::join_if_unregistered(rig.stacks.rseq_offset);
                for attempt in 1.. {
                    // SAFETY: the rig's stacks are live.
                    unsafe { section::linger(&rig.stacks, &words, attempt) };
                    if words.done.load(Ordering::Relaxed) != 0 {
                        return;
                    }
                }
            });
            while words.inside.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            let before = words.inside.load(Ordering::Relaxed);
            words.go.store(1, Ordering::Relaxed);
            while words.done.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            unended += u32::from(words.done.load(Ordering::Relaxed) <= before);
        });
    }
    if super::kernel_aborts_sections() {
        assert_eq!(unended, 0, "sections from before the other thread ran");
    } else {
        std::eprintln!(
            "skipped: a kernel that is refused; it left {unended} of 20 sections running"
        );
    }
}

/// Each operation aborted at each of its points leaves everything as it was.
#[cfg(feature = "inject")]
#[test]
fn an_abort_at_any_point_changes_nothing() {
    use core::sync::atomic::Ordering;
    use section::INJECT;

    extern "C" fn disarm(_: libc::c_int) {
        INJECT.store(0, Ordering::Relaxed);
    }
    let Some(mut rig) = rig() else { return };
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::signal(libc::SIGTRAP, disarm as *const () as libc::sighandler_t) };
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut aborted = [[0u32; 5]; 4];
    for step in 0..40_000 {
        let class = random.below(CLASSES);
        let operation = random_operation(&mut random);
        let value = 16 + step * 1024;
        let point = 1 + random.below(4);
        let before: Vec<_> = (0..CLASSES)
            .map(|class| Rig::state(rig.live, class))
            .collect();
        INJECT.store(point as u32, Ordering::Relaxed);
        let answer = by_section(&rig, class, operation, value);
        let reached = INJECT.swap(0, Ordering::Relaxed) == 0;
        if !reached {
            // The operation ended before the point, or a real interruption came first.
            let unchanged = Rig::state(rig.live, class) == before[class];
            let expected = by_model(&mut rig, class, operation, value);
            if answer != expected {
                assert!(unchanged);
                assert_eq!(settled(&rig, class, operation, value, &expected), expected);
            }
            continue;
        }
        match answer {
            Answer::Entry(entry) => assert_eq!(entry, 0),
            Answer::Done(done) => assert!(!done),
            Answer::Batch(outcome, _) => assert_eq!(outcome, SectionResult::Aborted),
        }
        for (class, before) in before.iter().enumerate() {
            let after = Rig::state(rig.live, class);
            assert_eq!(after.1, before.1, "{operation:?} aborted at {point}");
            // Only the start of an empty stack may have moved.
            assert!(after.0 == before.0 || after.1.is_empty());
        }
        let kind = match operation {
            Operation::Pop => 0,
            Operation::Push => 1,
            Operation::PopBatch(_) => 2,
            Operation::PushBatch(..) => 3,
        };
        aborted[kind][point] += 1;
        let expected = by_model(&mut rig, class, operation, value);
        assert_eq!(settled(&rig, class, operation, value, &expected), expected);
    }
    for (kind, points) in aborted.iter().enumerate() {
        for (point, &count) in points.iter().enumerate().skip(1) {
            assert!(
                count > 20,
                "operation {kind} was aborted at point {point} only {count} times"
            );
        }
    }
    rig.assert_equal();
}

fn random_counting(random: &mut Random) -> Counting {
    let size = 1 + random.below(1024);
    match random.below(3) {
        0 => Counting::Size(size),
        1 => Counting::Call,
        _ => Counting::Both(size),
    }
}

#[test]
fn counting_pops_do_what_the_model_does() {
    let Some(mut rig) = rig() else { return };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut taken, mut due) = (0, 0);
    for step in 0..50_000 {
        let class = random.below(CLASSES);
        if random.below(8) == 0 {
            let operation = Operation::PushBatch(1 + random.below(16), 64);
            let expected = by_model(&mut rig, class, operation, 16 + step * 1024);
            let answer = settled(&rig, class, operation, 16 + step * 1024, &expected);
            assert_eq!(answer, expected);
        }
        if random.below(4) == 0 {
            let counts = [random.below(4000), random.below(4)].map(|count| count as i64);
            Rig::set_counts(rig.live, counts);
            Rig::set_counts(rig.model_address, counts);
        }
        let counting = random_counting(&mut random);
        let before = Rig::counts(rig.live);
        let is_empty = rig.model.is_empty(class);
        let expected = rig.model.pop_counted(class, counting).unwrap_or(0);
        // A real interruption may leave the counts made, and nothing else.
        for tries in 0.. {
            // SAFETY: the rig's stacks are live and this thread is pinned.
            let answer = unsafe { section::pop_counted(&rig.stacks, class, counting) };
            let counts = Rig::counts(rig.live);
            if answer == expected && counts == Rig::counts(rig.model_address) {
                break;
            }
            assert!(answer == 0 && tries < 1000, "step {step}: {counting:?}");
            Rig::set_counts(rig.live, before);
        }
        taken += u32::from(expected != 0);
        due += u32::from(expected == 0 && !is_empty);
        rig.assert_equal();
    }
    assert!(taken > 5000 && due > 5000, "{taken} taken, {due} due");
}

#[test]
fn a_slab_without_objects_counts_no_pop() {
    let Some(rig) = rig() else { return };
    let cpu = crate::process::current_cpu();
    let all = [Counting::Size(1), Counting::Call, Counting::Both(1)];
    for is_live in [true, false] {
        for counting in all {
            // SAFETY: the rig's stacks; this thread is pinned.
            assert_eq!(unsafe { section::pop_counted(&rig.stacks, 0, counting) }, 0);
        }
        for slab in [rig.live, rig.stacks.parked] {
            assert_eq!(Rig::counts(slab), [NO_COUNTDOWN; 2]);
        }
        if is_live {
            // SAFETY: the rig's own table.
            unsafe { ((rig.stacks.table + cpu * 8) as *mut usize).write(0) };
        }
    }
    // SAFETY: the rig's stacks are live, and this thread is registered.
    let counted = unsafe { section::count(&rig.stacks, SIZES_OFFSET, 1) };
    assert_eq!(counted, None);
    assert_eq!(Rig::counts(rig.stacks.parked), [NO_COUNTDOWN; 2]);
}

#[test]
fn counts_do_what_the_model_does() {
    let Some(mut rig) = rig() else { return };
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for _ in 0..20_000 {
        let offset = [SIZES_OFFSET, CALLS_OFFSET][random.below(2)];
        let value = random.below(usize::MAX >> 1);
        let left = rig.model.count(offset, value);
        let counted = loop {
            // SAFETY: the rig's stacks are live and this thread is pinned.
            if let Some(counted) = unsafe { section::count(&rig.stacks, offset, value) } {
                break counted;
            }
        };
        assert_eq!((counted.word, counted.left), (rig.live + offset, left));
        assert_eq!(Rig::counts(rig.live), Rig::counts(rig.model_address));
    }
}

/// An aborted pop that counts has taken nothing. It has counted if it was aborted behind its counts (`INV-RSEQ-1`).
#[cfg(feature = "inject")]
#[test]
fn an_aborted_counting_pop_takes_nothing() {
    use core::sync::atomic::Ordering;
    use section::INJECT;

    extern "C" fn disarm(_: libc::c_int) {
        INJECT.store(0, Ordering::Relaxed);
    }
    let Some(mut rig) = rig() else { return };
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::signal(libc::SIGTRAP, disarm as *const () as libc::sighandler_t) };
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut aborted = [[0u32; 5]; 4];
    let full = Operation::PushBatch(64, 64);
    let expected = by_model(&mut rig, 0, full, 16);
    settled(&rig, 0, full, 16, &expected);
    for step in 0..8000 {
        let counts = [1 + random.below(2000), 1 + random.below(3)].map(|count| count as i64);
        Rig::set_counts(rig.live, counts);
        let before = Rig::state(rig.live, 0);
        let point = 1 + random.below(4);
        let counting = random_counting(&mut random);
        let less = match counting {
            Counting::Size(size) => [size as i64, 0],
            Counting::Call => [0, 1],
            Counting::Both(size) => [size as i64, 1],
        };
        let all = [counts[0] - less[0], counts[1] - less[1]];
        INJECT.store(point as u32, Ordering::Relaxed);
        let (kind, is_none) = if step % 4 == 0 {
            // SAFETY: the rig's stacks are live and this thread is pinned.
            let counted = unsafe { section::count(&rig.stacks, SIZES_OFFSET, 1) };
            (3, counted.is_none())
        } else {
            // SAFETY: as above.
            let entry = unsafe { section::pop_counted(&rig.stacks, 0, counting) };
            let kind = match counting {
                Counting::Size(_) => 0,
                Counting::Call => 1,
                Counting::Both(_) => 2,
            };
            (kind, entry == 0)
        };
        if INJECT.swap(0, Ordering::Relaxed) != 0 {
            // It ended before the point: a count has three, and a pop is due. Or a real interruption came first.
            if !is_none && kind != 3 {
                panic!("step {step}: {counting:?} passed point {point}");
            }
            continue;
        }
        assert!(is_none, "step {step}: {counting:?} aborted at {point}");
        assert_eq!(Rig::state(rig.live, 0), before);
        let expected = if point == 4 { all } else { counts };
        assert_eq!(Rig::counts(rig.live), expected, "{counting:?} at {point}");
        aborted[kind][point] += 1;
    }
    for (kind, points) in aborted.iter().enumerate() {
        let reached = if kind == 3 {
            &points[1..4]
        } else {
            &points[1..]
        };
        assert!(
            reached.iter().all(|&count| count > 50),
            "{kind}: {points:?}"
        );
    }
}

/// Words for every CPU, and the flag of [`section::add_unless`].
struct Words {
    words: usize,
    flag: core::sync::atomic::AtomicU32,
}

impl Words {
    fn new() -> Self {
        let len = crate::process::cpu_limit() << super::UNIT_SHIFT;
        Self {
            words: crate::vm::map(len).unwrap(),
            flag: core::sync::atomic::AtomicU32::new(0),
        }
    }

    fn of(&self, cpu: usize) -> u64 {
        // SAFETY: a word of the mapping.
        unsafe { *((self.words + (cpu << super::UNIT_SHIFT)) as *const u64) }
    }

    /// One addition by the section, which may be aborted.
    fn add(&self, rig: &Rig, plain: bool, value: u64) -> super::Added {
        self.add_below(rig, crate::process::cpu_limit(), plain, value)
    }

    /// The same where only the first `units` CPUs have a word.
    fn add_below(&self, rig: &Rig, units: usize, plain: bool, value: u64) -> super::Added {
        let offset = rig.stacks.rseq_offset;
        // SAFETY: words of all CPUs are mapped, and the rig found a registration.
        unsafe {
            if !plain {
                section::add_unless(&self.flag, self.words, units, value, offset)
            } else if section::add(self.words, units, value, offset) {
                super::Added::Yes
            } else {
                super::Added::No
            }
        }
    }

    /// The same by the model.
    fn model(
        &self,
        flag: &core::sync::atomic::AtomicU32,
        plain: bool,
        cpu: usize,
        value: u64,
    ) -> super::Added {
        // SAFETY: as above, by this thread only.
        unsafe {
            if plain {
                super::model::add(self.words, cpu, value);
                super::Added::Yes
            } else if super::model::add_unless(flag, self.words, cpu, value) {
                super::Added::Yes
            } else {
                super::Added::Flagged
            }
        }
    }
}

#[test]
fn additions_do_what_the_model_does() {
    let Some(rig) = rig() else { return };
    let cpu = crate::process::current_cpu();
    let (live, model) = (Words::new(), Words::new());
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for _ in 0..50_000 {
        let (plain, value) = (random.below(2) == 0, random.0);
        live.flag.store(
            u32::from(random.below(3) == 0),
            core::sync::atomic::Ordering::Relaxed,
        );
        let expected = model.model(&live.flag, plain, cpu, value);
        let mut answer = live.add(&rig, plain, value);
        while answer == super::Added::No {
            answer = live.add(&rig, plain, value);
        }
        assert_eq!(answer, expected);
        assert_eq!(live.of(cpu), model.of(cpu));
    }
}

/// A CPU that was not counted at the start has no word: nothing is written behind those of the others.
#[test]
fn a_cpu_without_a_word_adds_nothing() {
    let Some(rig) = rig() else { return };
    let cpu = crate::process::current_cpu();
    let words = Words::new();
    for plain in [true, false] {
        for units in 0..=cpu {
            let added = words.add_below(&rig, units, plain, 1);
            assert_eq!(added, super::Added::No, "{units} units");
        }
        assert_eq!(words.of(cpu), 0);
        for value in [1, u64::MAX] {
            while words.add_below(&rig, cpu + 1, plain, value) == super::Added::No {}
            assert_eq!(words.of(cpu), u64::from(value == 1));
        }
    }
}

/// An addition aborted at each of its points has not happened.
#[cfg(feature = "inject")]
#[test]
fn an_aborted_addition_adds_nothing() {
    use core::sync::atomic::Ordering;
    use section::INJECT;

    extern "C" fn disarm(_: libc::c_int) {
        INJECT.store(0, Ordering::Relaxed);
    }
    let Some(rig) = rig() else { return };
    let cpu = crate::process::current_cpu();
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::signal(libc::SIGTRAP, disarm as *const () as libc::sighandler_t) };
    let live = Words::new();
    let mut aborted = [[0u32; 3]; 2];
    for step in 0..4000u64 {
        let (plain, point) = (step % 2 == 0, 1 + step as usize / 2 % 2);
        let before = live.of(cpu);
        INJECT.store(point as u32, Ordering::Relaxed);
        let answer = live.add(&rig, plain, step);
        let reached = INJECT.swap(0, Ordering::Relaxed) == 0;
        // Without the point, a real interruption came first.
        assert_eq!(answer, super::Added::No);
        assert_eq!(live.of(cpu), before);
        aborted[usize::from(plain)][point] += u32::from(reached);
    }
    for points in aborted {
        assert!(points[1] > 900 && points[2] > 900, "{points:?}");
    }
}
