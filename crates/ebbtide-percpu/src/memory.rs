//! The memory behind areas: populates, zeroes and releases it, in all units of a chunk at once.

use crate::space::{self, Place};
use core::sync::atomic::{AtomicU8, Ordering};
use ebbtide_sys::features::{POPULATE, RELEASE_MANY};
use ebbtide_sys::{Errno, vm};
use ebbtide_zone::percpu::{GRANULE_BYTES, Putting, Shard, UNIT_PAGES, runs};
use ebbtide_zone::{FRAME_BYTES, bits};

/// Most ranges in one call. Threads of the program may have very small stacks.
pub const RANGES: usize = 128;

/// Calls `flush` with the ranges of `pages` in units `0..units`, [`RANGES`] at a time.
fn for_ranges(place: Place, pages: u64, units: usize, mut flush: impl FnMut(&mut [vm::Range])) {
    let mut all = runs(pages).flat_map(|(first, count)| {
        (0..units).map(move |unit| vm::Range {
            iov_base: (space::address(place, unit) + first as usize * FRAME_BYTES) as *mut _,
            iov_len: count as usize * FRAME_BYTES,
        })
    });
    let mut ranges = [vm::NO_RANGE; RANGES];
    loop {
        let mut count = 0;
        for (range, next) in ranges.iter_mut().zip(&mut all) {
            *range = next;
            count += 1;
        }
        if count == 0 {
            return;
        }
        flush(&mut ranges[..count]);
    }
}

/// Gives one advice for many ranges with as few calls as possible. Stops at the first range that refuses it.
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
            // Nothing was done: the first range alone shows the reason.
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

/// Populates pages of an area on all CPUs, each with its page of the kernel. `false`: there is no memory.
///
/// # Safety
/// The caller has the area, granules `at` to `at + n`, and `pages` are pages of it.
pub unsafe fn populate(place: Place, pages: u64, at: u32, n: u32) -> bool {
    let mut enough = true;
    let whole = bits::touched_groups(pages, vm::page_frames());
    for_ranges(place, whole, space::units(), |ranges| {
        if !enough || !POPULATE.may_work() {
            return;
        }
        // SAFETY: populating changes no content.
        match unsafe { advise_ranges(ranges, vm::MADV_POPULATE_WRITE) } {
            Ok(()) => POPULATE.note_success(),
            Err(Errno::ENOMEM | Errno::EFAULT) => enough = false,
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EPERM) => POPULATE.refuse(),
            // Not possible now: the first touch populates the page.
            Err(_) => {}
        }
    });
    if POPULATE.may_work() {
        return enough;
    }
    let [begin, end] = [at, at + n].map(|granule| granule as usize * GRANULE_BYTES);
    for unit in 0..space::units() {
        for page in (0..UNIT_PAGES).filter(|page| pages >> page & 1 == 1) {
            let offset = begin.max(page * FRAME_BYTES);
            debug_assert!(offset < end);
            // SAFETY: a byte of the caller's area. Nothing changes.
            unsafe { &*((space::address(place, unit) + offset) as *const AtomicU8) }
                .fetch_or(0, Ordering::Relaxed);
        }
    }
    true
}

/// Zeroes an area in all units.
///
/// # Safety
/// Only the caller may access it now.
pub unsafe fn zero(place: Place, area: Putting) {
    let [offset, len] = [area.at, area.granules].map(|granules| granules as usize * GRANULE_BYTES);
    let spilled = space::spill(place).load(Ordering::Acquire) & Shard::pages(area) != 0;
    for unit in 0..space::units() + usize::from(spilled) {
        // SAFETY: by contract; units are opened as a whole.
        unsafe { ((space::address(place, unit) + offset) as *mut u8).write_bytes(0, len) };
    }
}

/// Releases pages of all units. Returns the pages that were released.
///
/// # Safety
/// They were claimed: no area lies in them.
pub unsafe fn release(place: Place, pages: u64) -> u64 {
    let spills = space::spill(place);
    let spilled = spills.load(Ordering::Acquire) & pages;
    let mut released = true;
    let units = space::units() + usize::from(spilled != 0);
    // SAFETY: by contract.
    for_ranges(place, pages, units, |ranges| unsafe {
        if !vm::gives_back() || advise_ranges(ranges, libc::MADV_DONTNEED).is_err() {
            for range in ranges {
                released &= vm::release(range.iov_base as usize, range.iov_len).is_ok();
            }
        }
    });
    if released {
        spills.fetch_and(!spilled, Ordering::AcqRel);
        pages
    } else {
        0
    }
}
