//! The memory behind areas: populate, zero, give back. On all units of a chunk at once.

use crate::space::{self, Place};
use core::sync::atomic::{AtomicU8, Ordering};
use ebbtide_sys::features::{POPULATE, RELEASE_MANY};
use ebbtide_sys::{Errno, vm};
use ebbtide_zone::FRAME_BYTES;
use ebbtide_zone::percpu::{GRANULE_BYTES, Putting, Shard};

/// Ranges of one call. Threads of programs may have the smallest of stacks.
pub const RANGES: usize = 128;

/// Calls `each` with the runs of a mask, the last one first: first page and number of pages.
fn for_runs(mut pages: u64, mut each: impl FnMut(usize, usize)) {
    while pages != 0 {
        let lead = pages.leading_zeros();
        let count = (pages << lead).leading_ones();
        let first = 64 - lead - count;
        each(first as usize, count as usize);
        pages &= !(u64::MAX >> (64 - count) << first);
    }
}

/// Calls `flush` with the ranges of `pages` in units `0..units`, [`RANGES`] at a time.
fn for_ranges(place: Place, pages: u64, units: usize, mut flush: impl FnMut(&mut [vm::Range])) {
    let mut ranges = [vm::NO_RANGE; RANGES];
    let mut count = 0;
    for_runs(pages, |first, run| {
        for unit in 0..units {
            if count == RANGES {
                flush(&mut ranges);
                count = 0;
            }
            ranges[count] = vm::Range {
                iov_base: (space::address(place, unit) + first * FRAME_BYTES) as *mut _,
                iov_len: run * FRAME_BYTES,
            };
            count += 1;
        }
    });
    if count > 0 {
        flush(&mut ranges[..count]);
    }
}

/// Gives one advice for many ranges with as few calls as work; stops at the first range that refuses it.
///
/// # Safety
/// As [`vm::advise`].
unsafe fn advise_ranges(mut ranges: &mut [vm::Range], advice: i32) -> Result<(), Errno> {
    while let Some(&first) = ranges.first() {
        let many = ranges.len() > 1 && RELEASE_MANY.may_work();
        // SAFETY: by contract.
        let many = many.then(|| unsafe { vm::advise_many(ranges, advice) });
        let done = match many {
            Some(Ok(done)) if done > 0 => {
                RELEASE_MANY.note_success();
                done
            }
            // Nothing done: the first range alone says why.
            _ => {
                // SAFETY: by contract.
                unsafe { vm::advise(first.iov_base as usize, first.iov_len, advice) }?;
                if let Some(Err(error)) = many
                    && !matches!(error, Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM)
                {
                    RELEASE_MANY.refuse();
                }
                first.iov_len
            }
        };
        ranges = vm::behind(ranges, done);
    }
    Ok(())
}

/// Gets memory for pages of an area on all CPUs. `false`: there is none.
///
/// # Safety
/// The caller has the area, granules `at` to `at + n`, and `pages` are pages of it.
pub unsafe fn populate(place: Place, pages: u64, at: u32, n: u32) -> bool {
    let mut enough = true;
    for_ranges(place, pages, space::units(), |ranges| {
        if !enough || !POPULATE.may_work() {
            return;
        }
        // SAFETY: populating changes no content.
        match unsafe { advise_ranges(ranges, vm::MADV_POPULATE_WRITE) } {
            Ok(()) => POPULATE.note_success(),
            Err(Errno::ENOMEM | Errno::EFAULT) => enough = false,
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EPERM) => POPULATE.refuse(),
            // Not now: the first touch does it.
            Err(_) => {}
        }
    });
    if POPULATE.may_work() {
        return enough;
    }
    let [begin, end] = [at, at + n].map(|granule| granule as usize * GRANULE_BYTES);
    for_runs(pages, |first, count| {
        for page in first..first + count {
            for unit in 0..space::units() {
                let address = space::address(place, unit) + begin.max(page * FRAME_BYTES);
                debug_assert!(page * FRAME_BYTES < end);
                // SAFETY: a byte of the caller's area. Nothing changes.
                unsafe { &*(address as *const AtomicU8) }.fetch_or(0, Ordering::Relaxed);
            }
        }
    });
    true
}

/// Zeroes an area in all units.
///
/// # Safety
/// It is nobody's now, but the caller's to zero.
pub unsafe fn zero(place: Place, area: Putting) {
    let [offset, len] = [area.at, area.granules].map(|granules| granules as usize * GRANULE_BYTES);
    let spilled = space::spill(place).load(Ordering::Acquire) & Shard::pages(area) != 0;
    for unit in 0..space::units() + usize::from(spilled) {
        // SAFETY: by contract; units are opened as a whole.
        unsafe { ((space::address(place, unit) + offset) as *mut u8).write_bytes(0, len) };
    }
}

/// Gives pages of all units back. Those that went.
///
/// # Safety
/// They were claimed: no area lies in them.
pub unsafe fn release(place: Place, pages: u64) -> u64 {
    let spills = space::spill(place);
    let spilled = spills.load(Ordering::Acquire) & pages;
    let mut released = true;
    // SAFETY: by contract.
    let mut give = |ranges: &mut [vm::Range]| unsafe {
        if !vm::gives_back() || advise_ranges(ranges, libc::MADV_DONTNEED).is_err() {
            for range in ranges {
                released &= vm::release(range.iov_base as usize, range.iov_len).is_ok();
            }
        }
    };
    let units = space::units() + usize::from(spilled != 0);
    for_ranges(place, pages, units, &mut give);
    if released {
        spills.fetch_and(!spilled, Ordering::AcqRel);
        pages
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn runs_come_from_the_end() {
        let mut runs = std::vec::Vec::new();
        for_runs(0b1011_0110, |first, count| runs.push((first, count)));
        assert_eq!(runs, [(7, 1), (4, 2), (1, 2)]);
        runs.clear();
        for_runs(u64::MAX, |first, count| runs.push((first, count)));
        assert_eq!(runs, [(0, 64)]);
    }
}
