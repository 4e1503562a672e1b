//! Per-CPU stacks of pointers.
//!
//! Each CPU owns a *slab*: one page of *headers*, one per class, and behind it 8 KiB per class, the
//! *stack*. A header holds the absolute address of the next free entry of its stack:
//!
//! ```text
//!  slab of CPU 1                     stack of class c (8 KiB)    
//!  ┌──────────┐ headers[c] ──────────────────────────┐
//!  │ headers  │                      ┌───────┬─────┬───┬───┬───┬─▼─┬───┬───┐
//!  │ stack 0  │                      │unused │NULL │ a │ b │ c │   │   │   │
//!  │ stack 1  │                      └───────┴─────┴───┴───┴───┴───┴───┴───┘
//!  │   …      │                               guard  ▲ start               ▲ end: full
//!  └──────────┘
//! ```
//!
//! - empty: the entry below is the NULL guard; full: the low 13 address bits are zero. No index,
//!   no capacity field, no compare with a constant from memory.
//! - A header that points at the end of its own header page, whose last entry is NULL, is empty
//!   *and* full: the state of a stack that has not been used, or was drained.
//! - A push of a batch on an empty stack chooses the start anew, and so the capacity
//!   (1 to [`MAX_CAPACITY`]).
//!
//! A table maps a CPU number to the offset of its slab from the *parked* slab, whose headers are
//! all empty and full. Offset 0 therefore sends every operation to the caller's slow path, and
//! means: not set up, stopped by a drain, wiped by a fork, or no registration (`cpu_id` −1 or
//! −2: the two entries below the table's start). The fast path needs no check for any of that.
//!
//! Two implementations of the same four operations:
//! - [`section`] (x86-64 and aarch64): restartable sections. Valid while the table entry was read inside the
//!   section; a drain zeroes the entry and fences the CPU ([`crate::membarrier`]).
//! - [`model`]: plain Rust on one slab, under the caller's lock. The fallback, and the oracle of
//!   the tests.
//!
//! In each header page, behind the headers, are two words that count down: the bytes that pops were asked for, and the
//! pops ([`Counting`]). A pop that counts, and finds its word no longer above zero, takes nothing: the caller decides
//! what the end of a countdown means. Other CPUs may store to these words, and a count or such a store may be lost then.
//!
//! Beside the stacks: counters, one word a CPU ([`section::add`], [`section::add_unless`]), for the per-CPU data
//! of the user. They need no table: whoever has no CPU of its own adds elsewhere.
//!
//! Invariants:
//! - `INV-RSEQ-1`: every operation takes effect with one store, the new header. Interrupted before
//!   it, no entry has come or gone. (Moving the start of an empty stack is a step before that with
//!   a store of its own: the new entries may be written over the old guard. So is each count of a pop: if the pop is
//!   interrupted behind it and repeated, the request counts twice.)
//! - `INV-RSEQ-2`: entries from the start up to the header are owned by the stack; nothing else is.
//! - `INV-RSEQ-3`: a slab is touched either by sections, or, with its entry zero and after a fence,
//!   by one drainer.
//! - `INV-RSEQ-4`: of a registered `struct rseq` we write `rseq_cs` only; the rest is the kernel's.
//! - `INV-RSEQ-5`: every `cpu_id` from −2 to 8,191 has a table entry, 0 where the CPU has no slab.
//!
//! Sources: rseq(2) and librseq; the per-CPU stacks of tcmalloc, with another layout.

use core::sync::atomic::{AtomicI64, Ordering};

pub mod model;
mod own;
pub mod section;
mod vfork;

pub(crate) use own::{BYTES as OWN_BYTES, mark_block, offset as own_offset};
pub use own::{may_be_vfork_child, note_first_thread, stop, yield_to_other};
/// Whether this build has sections: for this processor, this C library. At run time [`registration`] decides.
pub use section::SECTIONS;
pub use vfork::{VFORK_GUARD_OFFSET, guard_vfork, leave, rejoin};

/// Classes 0 to 98.
pub const STACKS: usize = 99;
/// Bytes of address space from one slab to the next: the header page, the stacks, and a spare page
/// that keeps the stacks aligned.
pub const SLAB_BYTES: usize = (1 + STACKS) * STACK_BYTES;
/// Bytes of a stack, and its alignment.
pub const STACK_BYTES: usize = 8192;
/// A slab's address is this much past a multiple of [`STACK_BYTES`], so that the stacks, which
/// begin behind the header page, lie at such multiples.
pub const SLAB_SKEW: usize = STACK_BYTES - HEADER_BYTES;
/// In the header page, the bytes from here on are the user's; all but the last eight (a guard).
pub const SLAB_USER_OFFSET: usize = 1024;
/// In the header page, the word that counts down bytes. No header is in its cache line.
pub const SIZES_OFFSET: usize = 832;
/// In the header page, the word that counts down requests.
pub const CALLS_OFFSET: usize = 840;
/// These words after a reset: no countdown has begun. Whatever is counted from here stays far below zero.
pub const NO_COUNTDOWN: i64 = i64::MIN / 2;
/// Most entries of one stack: its space less the guard.
pub const MAX_CAPACITY: usize = STACK_BYTES / 8 - 1;

/// Bytes of the headers and the user's part behind them, whatever the kernel's page size.
pub const HEADER_BYTES: usize = 4096;

/// Per-CPU words: those of CPU n lie `n << UNIT_SHIFT` bytes behind those of CPU 0.
pub const UNIT_SHIFT: u32 = 18;

/// Where the stacks are. Plain numbers, copied into registers by the fast path.
#[derive(Clone, Copy)]
pub struct Stacks {
    /// Address of the table entry of CPU 0; two entries for unregistered threads lie below it.
    pub table: usize,
    /// Address of the parked slab; the slab of CPU n lies `(n + 1) * SLAB_BYTES` behind it.
    pub parked: usize,
    /// Offset of this C library's `struct rseq` from the thread pointer.
    pub rseq_offset: isize,
}

/// How a section ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SectionResult {
    /// It took effect for this many entries.
    Done(usize),
    /// The thread was interrupted; nothing happened.
    Aborted,
    /// This CPU's slab is parked.
    Parked,
}

/// What a pop counts down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counting {
    /// The bytes that the program asked for.
    Size(usize),
    /// The request.
    Call,
    /// The request, and then its bytes if the first word is still above zero.
    Both(usize),
}

/// A word after a count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    /// Its address.
    pub word: usize,
    /// Its value.
    pub left: i64,
}

/// How an addition ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    /// It was interrupted, or the CPU has no word, or the thread no registration: nothing happened.
    No,
    /// It took effect.
    Yes,
    /// The flag was set.
    Flagged,
}

impl Stacks {
    /// The slab of `cpu`, whether parked or not.
    pub fn slab(&self, cpu: usize) -> usize {
        self.parked + (cpu + 1) * SLAB_BYTES
    }

    /// The table value that makes the slab of `cpu` live.
    pub fn live_offset(&self, cpu: usize) -> usize {
        (cpu + 1) * SLAB_BYTES
    }
}

/// The value of a header whose stack is unused.
pub fn unused_header(slab: usize) -> usize {
    slab + HEADER_BYTES
}

/// Sets all headers of a slab to the unused state, and ends its countdowns.
///
/// # Safety
/// The header page is writable, and nobody else uses the slab now.
pub unsafe fn reset_slab(slab: usize) {
    for class in 0..STACKS {
        // SAFETY: headers lie in the first page.
        unsafe { ((slab + class * 8) as *mut usize).write(unused_header(slab)) };
    }
    for offset in [SIZES_OFFSET, CALLS_OFFSET] {
        // SAFETY: words of the first page, behind the headers; other threads store to them as to an atomic.
        unsafe { &*((slab + offset) as *const AtomicI64) }.store(NO_COUNTDOWN, Ordering::Relaxed);
    }
}

const _: () = assert!(STACKS * 8 <= SIZES_OFFSET && CALLS_OFFSET + 8 <= SLAB_USER_OFFSET);

/// The address of the first entry of a stack with room for `capacity` entries.
#[inline]
fn stack_start(slab: usize, class: usize, capacity: usize) -> usize {
    debug_assert!((1..=MAX_CAPACITY).contains(&capacity) && class < STACKS);
    unused_header(slab) + (class + 1) * STACK_BYTES - capacity * 8
}

/// Registration of this thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Registration {
    /// Sections run; the offset of `struct rseq` from the thread pointer.
    At(isize),
    /// They do not, and why.
    None(&'static str),
}

/// Looks for the registration that the C library made. If it makes none, this thread registers by itself.
pub fn registration() -> Registration {
    if !SECTIONS {
        return Registration::None("no sections for this processor or C library");
    }
    if !kernel_aborts_sections() {
        return Registration::None(
            "this kernel does not abort sections (arm64, Linux 6.19 to 7.0.13)",
        );
    }
    on_any_kernel()
}

/// The same, whatever the kernel does with sections.
fn on_any_kernel() -> Registration {
    registration_by_libc().unwrap_or_else(own_registration)
}

/// Whether the kernel does with sections what it should; as far as known.
fn kernel_aborts_sections() -> bool {
    !section::BREAKS_ON_SOME_KERNELS
        || crate::process::kernel_release(ebbtide_interface::kernels::aborts_sections) == Some(true)
}

/// What the C library has registered. `None`: it registers nothing, because it is musl, glibc before 2.35, or glibc
/// with `glibc.pthread.rseq=0`.
fn registration_by_libc() -> Option<Registration> {
    let (offset, size) = (
        crate::libc_symbols::rseq_offset(),
        crate::libc_symbols::rseq_size(),
    );
    if offset.is_null() || size.is_null() {
        return None;
    }
    // SAFETY: both are constants of the C library, set before the first thread runs.
    let (offset, size) = unsafe { (*offset, *size) };
    if size == 0 {
        return None;
    }
    // SAFETY: glibc keeps `struct rseq` there for every thread.
    if unsafe { section::cpu_id(offset) } < 0 {
        return Some(Registration::None(
            "the kernel refused the registration of sections",
        ));
    }
    Some(Registration::At(offset))
}

/// Whether threads get a registration from this library only, because the C library makes none.
pub fn is_left_to_us() -> bool {
    SECTIONS && registration_by_libc().is_none()
}

/// A registration by this library.
fn own_registration() -> Registration {
    if !own::prepare_ends() {
        return Registration::None("no key of thread-specific data is left");
    }
    let answer = match own::join() {
        // Threads that may register do so on their slow paths.
        Err(own::Refusal::Stranger) => own::try_out(),
        answer => answer,
    };
    match answer {
        Ok(()) => Registration::At(own::offset()),
        Err(own::Refusal::Other) => Registration::None("another library has registered sections"),
        Err(_) => Registration::None("the kernel refused the registration of sections"),
    }
}

/// For slow paths: registers this thread if it has no registration, and if that is this library's task. `offset`: of
/// the sections in use.
#[inline]
pub fn join_if_unregistered(offset: isize) {
    // SAFETY: sections are in use, so `struct rseq` lies there.
    if SECTIONS && unsafe { section::cpu_id(offset) } < 0 {
        own::join_for(offset);
    }
}

#[cfg(test)]
mod tests;
