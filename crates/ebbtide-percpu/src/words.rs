//! Words of areas: addition without an atomic instruction, and sum.

use crate::handle::Handle;
use crate::space::{self, Place};
use core::sync::atomic::{AtomicU64, Ordering};
use ebbtide_sys::process;
use ebbtide_sys::rseq::{self, SECTIONS, section};
use ebbtide_zone::FRAME_BYTES;
use ebbtide_zone::percpu::UNIT_BYTES;

/// A section that is interrupted this often in a row is being single-stepped: then the spill unit is used.
const MAX_ABORTS: u32 = 100;

/// Adds to this CPU's word at `offset`, wrapping. Ends the process when there is no aligned word there.
///
/// # Safety
/// The area is allocated.
#[inline]
pub unsafe fn add(handle: Handle, offset: usize, value: u64) {
    let word = handle.word(offset);
    if SECTIONS {
        let rseq_offset = space::rseq_offset();
        // SAFETY: an aligned word of an area, with one in each unit; sections are in use, so `struct rseq` lies there.
        if rseq_offset != 0 && unsafe { section::add(word, space::units(), value, rseq_offset) } {
            return;
        }
    }
    // SAFETY: by contract.
    unsafe { add_slowly(word, value) }
}

/// # Safety
/// `word` is an aligned word of an allocated area, for CPU 0.
#[cold]
#[inline(never)]
pub(crate) unsafe fn add_slowly(word: usize, value: u64) {
    let rseq_offset = space::rseq_offset();
    if rseq_offset == 0 {
        let cpu = process::current_cpu() % space::units();
        // SAFETY: by contract; INV-PERCPU-8.
        unsafe { copy(word, cpu) }.fetch_add(value, Ordering::Relaxed);
        return;
    }
    rseq::join_if_unregistered(rseq_offset);
    for _ in 0..MAX_ABORTS {
        if !space::has_unit() {
            break;
        }
        // SAFETY: as in `add`.
        if unsafe { section::add(word, space::units(), value, rseq_offset) } {
            return;
        }
    }
    let (place, bit) = page_of(word);
    // Marks the page as resident from now on.
    space::spill(place).fetch_or(bit, Ordering::AcqRel);
    // SAFETY: by contract; the spill unit is opened with the others; INV-PERCPU-8.
    unsafe { copy(word, space::units()) }.fetch_add(value, Ordering::Relaxed);
}

/// The word's copy in a unit.
///
/// # Safety
/// As [`add_slowly`], and there is such a unit.
unsafe fn copy<'a>(word: usize, unit: usize) -> &'a AtomicU64 {
    // SAFETY: by contract; units are opened as a whole.
    unsafe { &*((word + unit * UNIT_BYTES) as *const AtomicU64) }
}

fn page_of(word: usize) -> (Place, u64) {
    let Some((place, offset)) = space::chunk_of(word - space::base()) else {
        unreachable!("words are those of CPU 0")
    };
    (place, 1 << (offset / FRAME_BYTES))
}

/// The sum over all CPUs of the words at `offset`, wrapping. It includes all additions before the call; concurrent
/// additions may be included or not. Ends the process when there is no aligned word there.
///
/// # Safety
/// The area is allocated.
pub unsafe fn sum(handle: Handle, offset: usize) -> u64 {
    let word = handle.word(offset);
    let (place, bit) = page_of(word);
    let spilled = space::spill(place).load(Ordering::Acquire) & bit != 0;
    (0..space::units() + usize::from(spilled))
        // SAFETY: by contract; aligned words do not tear.
        .map(|unit| unsafe { copy(word, unit) }.load(Ordering::Relaxed))
        .fold(0, u64::wrapping_add)
}
