//! The operations as restartable sections.
//!
//! A section publishes its descriptor in `struct rseq`, reads `cpu_id`, finds its slab, works, and
//! ends with the store of the new header. Preemption, migration, a signal or a fence in between
//! sends it to its abort handler, and nothing has happened (`INV-RSEQ-1`).
//!
//! Here are the contracts and what all processors share: the parts of a section, and in tests its injection points. The
//! instructions are in one file for each processor. `none.rs` is for the others, where no operation takes effect.
//!
//! `pop` and `push` have the header's address in one register, without an index: recent processors forward such a
//! store to the next such load of the word without delay
//! ([decision 0050](../../../../docs/decisions/0050-malloc-and-free-need-25-and-28-instructions.md)).
//!
//! The descriptor is not cleared at the end: the kernel does that when it finds the instruction
//! pointer outside. The library must therefore never be unmapped (it is linked `nodelete`).
//!
//! # Why plain loads and stores suffice
//!
//! On every processor, also where memory is weakly ordered (aarch64):
//!
//! 1. *Section after section on one CPU.* All accesses come from one processor, in program order, with the kernel's
//!    switch of threads in between. A processor sees its own accesses in that order. Where a thread moves to another
//!    CPU, or a virtual CPU to another real one, the switch is a full barrier. So a section needs no order between its
//!    entries and its header.
//! 2. *Section, then drainer.* The drainer stores 0 to the table entry and makes a fence
//!    ([`crate::membarrier`]), which begins and ends with a full barrier. The kernel interrupts the CPU if a thread of
//!    this process runs there; its handler is a full barrier, too. If none runs there, the switch to or from such a thread is one.
//!    - The section has committed before: its stores come before that barrier, so the drainer sees all of them.
//!    - It is under way: it is aborted, with the registers that hold what it has read.
//!    - It begins later: its load of the table entry comes behind the barrier, and reads 0.
//! 3. *Drainer, then section.* The drainer's accesses to the slab come before its store of the table entry, a release.
//!    The section's accesses have addresses that are computed from the entry that it loaded: an address dependency. So
//!    they come behind that load, and behind the drainer's accesses. On x86-64 any load would do.
//! 4. *What the entries point to.* The thread that pushes an object has accessed it before, in program order; the thread that
//!    pops it accesses it behind. Between the two lies one of the hand-overs 1 to 3, or a lock.
//! 5. *Words.* An aligned word is loaded and stored as a whole, so a sum may read it at any time. `add_unless` reads its
//!    flag inside the section, so the setter's fence (2) ends each section that has read it unset, or sees its addition.
//!    Nothing is ordered by the words of countdowns, and no exact value of them is needed.
//!
//! `tests/litmus` has 2 to 5 as litmus tests, which `scripts/litmus` checks on a model of aarch64. The kernel's part is from
//! membarrier(2) and its source.

use super::{Added, Counted, Counting, SectionResult, Stacks};
use core::sync::atomic::AtomicU32;

const _: () = assert!(super::STACK_BYTES == 0x1fff + 1 && super::UNIT_SHIFT == 18);

/// Which numbered point of a section shall abort it: test builds only, 0 for none.
#[cfg(feature = "inject")]
pub static INJECT: AtomicU32 = AtomicU32::new(0);

/// One section: `$body` from label 3 (start) to label 4 (just behind the commit), `$abort` runs
/// out of line and goes on at label 5, behind everything, or at a label of the caller.
///
/// Each processor's file defines what differs: `signature!`, what the abort handler begins with, and `publish!`, which
/// stores the address of the descriptor, label 9, in `struct rseq`; `{t}` is free for that.
#[allow(unused_macros)]
macro_rules! section {
    (body: [$($body:expr,)*], abort: [$($abort:expr,)*], $($operands:tt)*) => {
        asm!(
            concat!(
                ".pushsection .data.rel.ro.ebbtide_rseq, \"aw\", @progbits\n",
                ".balign 32\n",
                "9: .long 0, 0\n",
                ".quad 3f, 4f - 3f, 6f\n",
                ".popsection\n",
                ".pushsection .text.unlikely.ebbtide_rseq, \"ax\", @progbits\n",
                signature!("6:\n"),
                $($abort, "\n",)*
                ".popsection\n",
                publish!(),
                "3:\n",
                $($body, "\n",)*
                "5:\n",
            ),
            $($operands)*
            options(nostack),
        )
    };
}

/// A [`section!`] with the operands that its injection points need: `injected!` of the processor.
#[cfg(feature = "inject")]
#[allow(unused_macros)]
macro_rules! with_inject {
    ($($section:tt)*) => { injected! { $($section)* } };
}
#[cfg(not(feature = "inject"))]
#[allow(unused_macros)]
macro_rules! with_inject {
    ($($section:tt)*) => { section! { $($section)* } };
}

/// A numbered injection point: a breakpoint trap, which aborts like any signal.
#[cfg(feature = "inject")]
#[allow(unused_macros)]
macro_rules! point {
    ($number:literal) => {
        breakpoint!($number)
    };
}
#[cfg(not(feature = "inject"))]
#[allow(unused_macros)]
macro_rules! point {
    ($number:literal) => {
        ""
    };
}

#[cfg(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    any(target_env = "gnu", target_env = "musl")
))]
#[path = "section/x86_64.rs"]
mod processor;
#[cfg(all(
    target_arch = "aarch64",
    target_pointer_width = "64",
    target_endian = "little",
    any(target_env = "gnu", target_env = "musl")
))]
#[path = "section/aarch64.rs"]
mod processor;
#[cfg(not(all(
    any(
        target_arch = "x86_64",
        all(target_arch = "aarch64", target_endian = "little")
    ),
    target_pointer_width = "64",
    any(target_env = "gnu", target_env = "musl")
)))]
#[path = "section/none.rs"]
mod processor;

pub use processor::SECTIONS;
pub(super) use processor::{BREAKS_ON_SOME_KERNELS, SIGNATURE, own_area, thread_pointer};

/// Takes the newest entry of this CPU's stack. 0: empty, parked or aborted.
///
/// # Safety
/// `stacks` describes live stacks, this thread's `struct rseq` lies at its offset, and
/// `class < STACKS`.
#[inline(always)]
pub unsafe fn pop(stacks: &Stacks, class: usize) -> usize {
    // SAFETY: by contract.
    unsafe { processor::pop(stacks, class) }
}

/// As [`pop`], and counts in this CPU's slab. 0: also where a countdown is at its end; then it has counted.
///
/// An empty or parked stack counts nothing. Of an aborted pop the counts may have been made (`INV-RSEQ-1`).
///
/// # Safety
/// As [`pop`].
#[inline(always)]
pub unsafe fn pop_counted(stacks: &Stacks, class: usize, counting: Counting) -> usize {
    // SAFETY: by contract.
    unsafe { processor::pop_counted(stacks, class, counting) }
}

/// Counts down the word at `offset` in this CPU's slab: [`super::SIZES_OFFSET`] or [`super::CALLS_OFFSET`]. `None`:
/// parked or aborted; nothing was counted.
///
/// # Safety
/// As [`pop`]; `offset` is one of these.
#[inline(always)]
pub unsafe fn count(stacks: &Stacks, offset: usize, value: usize) -> Option<Counted> {
    // SAFETY: by contract.
    unsafe { processor::count(stacks, offset, value) }
}

/// Puts `entry` on this CPU's stack. `false`: full, parked, aborted, or the top is `entry` itself.
///
/// # Safety
/// As [`pop`]; `entry` is not 0.
#[inline(always)]
pub unsafe fn push(stacks: &Stacks, class: usize, entry: usize) -> bool {
    // SAFETY: by contract.
    unsafe { processor::push(stacks, class, entry) }
}

/// In place of a count.
const ABORTED: isize = -1;
const PARKED: isize = -2;

fn result_of(count: isize) -> SectionResult {
    match count {
        ABORTED => SectionResult::Aborted,
        PARKED => SectionResult::Parked,
        count => SectionResult::Done(count as usize),
    }
}

/// Takes up to `entries.len()` of the newest entries, newest first.
///
/// The caller owns as many as [`SectionResult::Done`] says and no more: words are written before the commit, so an aborted
/// section leaves entries in the slice that are still on the stack.
///
/// # Safety
/// As [`pop`].
#[inline(never)]
pub unsafe fn pop_batch(stacks: &Stacks, class: usize, entries: &mut [usize]) -> SectionResult {
    // SAFETY: by contract.
    result_of(unsafe { processor::pop_batch(stacks, class, entries) })
}

/// Puts `entries` on top, in order, as far as there is room; an empty stack gets room for
/// `capacity` entries first. Not done: how many fitted.
///
/// # Safety
/// As [`pop`]; no entry is 0; `capacity` is 1 to [`super::MAX_CAPACITY`].
#[inline(never)]
pub unsafe fn push_batch(
    stacks: &Stacks,
    class: usize,
    entries: &[usize],
    capacity: usize,
) -> SectionResult {
    // SAFETY: by contract.
    result_of(unsafe { processor::push_batch(stacks, class, entries, capacity) })
}

/// Adds `value` to this CPU's word. `false`: aborted, or this CPU is none of those with a word (not registered).
///
/// # Safety
/// This thread's `struct rseq` lies at `rseq_offset`; `word` is the aligned word of CPU 0, and those of the
/// first `units` CPUs can be written to.
#[inline(always)]
pub unsafe fn add(word: usize, units: usize, value: u64, rseq_offset: isize) -> bool {
    // SAFETY: by contract.
    unsafe { processor::add(word, units, value, rseq_offset) }
}

/// As [`add`], unless `flag` is set when the addition takes effect: whoever sets it and then fences all CPUs
/// ([`crate::membarrier::fence_all`]) knows that none is under way.
///
/// # Safety
/// As [`add`].
#[inline(always)]
pub unsafe fn add_unless(
    flag: &AtomicU32,
    word: usize,
    units: usize,
    value: u64,
    rseq_offset: isize,
) -> Added {
    // SAFETY: by contract.
    match unsafe { processor::add_unless(flag, word, units, value, rseq_offset) } {
        0 => Added::No,
        1 => Added::Yes,
        _ => Added::Flagged,
    }
}

/// The `cpu_id` of this thread as the kernel last wrote it; negative without registration.
///
/// # Safety
/// `struct rseq` lies at `rseq_offset`.
pub unsafe fn cpu_id(rseq_offset: isize) -> i32 {
    // SAFETY: by contract.
    unsafe { processor::cpu_id(rseq_offset) }
}

/// Whether this thread was switched out, or had a signal, since its last section: the kernel then clears the address of the
/// descriptor. A hint: sections of other code count too, and newer kernels may leave the address of a thread that slept in a system call.
///
/// # Safety
/// As [`cpu_id`].
#[inline(always)]
pub unsafe fn was_switched(rseq_offset: isize) -> bool {
    // SAFETY: by contract.
    unsafe { processor::descriptor(rseq_offset) == 0 }
}

/// What the thread in [`linger`] and the test around it say to each other.
#[derive(Default)]
pub struct Lingering {
    /// The attempt that is inside the section, 1 or more.
    pub inside: AtomicU32,
    /// The section may end.
    pub go: AtomicU32,
    /// The attempt that took effect.
    pub done: AtomicU32,
}

/// For tests of what ends sections: one that reads its CPU's entry, stays inside until `go`, and takes effect with a
/// store to `done`. An interruption sends it to its end without that. `true`: this CPU is parked.
///
/// # Safety
/// As [`pop`].
#[inline(never)]
pub unsafe fn linger(stacks: &Stacks, words: &Lingering, attempt: u32) -> bool {
    // SAFETY: by contract.
    unsafe { processor::linger(stacks, words, attempt) }
}
