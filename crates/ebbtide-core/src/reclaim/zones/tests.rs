//! How much is released at once, and which frames.

extern crate std;
use super::*;
use crate::alone::{CALM, alone, dirty_blocks, dirty_run, fill, holds, resident};
use crate::base::releaser::Owner;
use crate::base::stats;
use crate::pages::region::flag;
use crate::reclaim::Heap;
use ebbtide_sys::vm;
use ebbtide_zone::{FRAME_BYTES, Frame, PutState};

/// Frames that are dirty and lazy.
fn counts(heap: &Heap) -> (u64, u64) {
    heap.sum(|counters| (counters.dirty, counters.lazy))
}

#[test]
fn as_much_is_released_as_was_asked_for() {
    alone(CALM, |heap| {
        let first = dirty_run(heap, 300);
        let address = heap.region().address(first);
        let left = || resident(address, 300 * FRAME_BYTES) as u64;
        assert_eq!((heap.kept_frames(), left()), (300, 300));
        let release = |frames| heap.release_in_place(frames, Take::All, Releaser::Explicit);
        assert_eq!(release(0), 0);
        assert_eq!(release(100), 100);
        assert_eq!((counts(heap), left()), ((200, 0), 200));
        assert_eq!(release(1000), 200);
        assert_eq!((counts(heap), left()), ((0, 0), 0));
        assert_eq!(release(1000), 0);
        assert_eq!(heap.slots.queued(), 0);
        let opened = heap.open_frames();
        assert!(opened >= 512 && opened.is_multiple_of(512), "{opened}");
    });
}

/// With larger pages than frames (features `page-16k`, `page-64k`), only whole free pages go.
#[test]
fn free_frames_beside_used_ones_are_pinned() {
    alone(CALM, |heap| {
        let page = vm::page_frames();
        // Behind two free pages and a part of a third one, the rest of the third page is in use.
        let part = page / 2;
        let run = heap.take_run(3 * page, page).expect("memory");
        let address = heap.region().address(run.first);
        fill(address, 3 * page as usize * FRAME_BYTES, 0xa5);
        heap.put_run(run.first, 2 * page + part, 2 * page + part);
        let kept = u64::from(2 * page);
        assert_eq!(
            (heap.kept_frames(), counts(heap).0),
            (kept, kept + u64::from(part))
        );
        assert_eq!(
            heap.release_in_place(1000, Take::All, Releaser::Explicit),
            kept
        );
        assert_eq!((heap.kept_frames(), counts(heap).0), (0, u64::from(part)));
        let pinned = part as usize * FRAME_BYTES;
        assert_eq!(heap.figures().0.pinned_bytes, pinned as u64);
        let third = address + 2 * vm::page();
        assert_eq!(resident(address, 2 * vm::page()), 0);
        assert!(holds(third, vm::page(), 0xa5));
        // The rest comes back, and with it the page can go, also if less was asked for.
        let rest = Frame(run.first.0 + 2 * page + part);
        heap.put_run(rest, page - part, page - part);
        assert_eq!(heap.kept_frames(), u64::from(page));
        heap.release_in_place(1, Take::All, Releaser::Explicit);
        assert_eq!(counts(heap), (0, 0));
        assert_eq!(resident(third, vm::page()), 0);
    });
}

#[test]
fn what_is_due_is_dirty_and_lazy_memory_is_released_by_itself() {
    alone(CALM, |heap| {
        dirty_run(heap, 100);
        let claim = |heap: &Heap| {
            heap.live_zones().iter().find_map(|zone| {
                let mut data = zone.lock.lock();
                let claim = Take::All.claim(heap.region(), &mut data, 30)?;
                let mut zone = view(heap.region(), &mut data.state, 0);
                zone.put_claim(claim, PutState::Lazy).ok()
            })
        };
        assert!(claim(heap).is_some());
        assert_eq!(counts(heap), (70, 30));
        heap.release_due(50, Releaser::Explicit);
        assert_eq!(counts(heap), (20, 30));
        heap.release_due(50, Releaser::Explicit);
        assert_eq!(counts(heap), (0, 30));
        assert_eq!(heap.kept_frames(), 30);
        heap.release_in_place(20, Take::Lazy, Releaser::Explicit);
        assert_eq!(counts(heap), (0, 10));
        heap.release_in_place(20, Take::Lazy, Releaser::Explicit);
        assert_eq!(counts(heap), (0, 0));
    });
}

#[test]
fn held_frames_are_not_to_be_had() {
    alone(CALM, |heap| {
        dirty_run(heap, 100);
        heap.unsplit.add(60);
        assert_eq!(heap.kept_frames(), 40);
        heap.unsplit.add(60);
        assert_eq!(heap.kept_frames(), 0);
    });
}

/// In pieces, the last of which may be smaller; no piece is left on the way.
#[test]
fn large_releases_go_in_pieces() {
    alone(
        "workers=0,pressure=off,thp=off,retain_ms=3600000,dev=threshold:1024,dev=zones:2",
        |heap| {
            dirty_run(heap, 77);
            let block = dirty_blocks(heap, 20);
            let all = 20 * 512 + 77;
            let address = heap.region().address(block.first_frame());
            assert_eq!(counts(heap), (all, 0));
            heap.release_zones(5 * 512, 5 * 512, Take::All, Releaser::Explicit);
            assert_eq!(stats::released(), 5 * 512 * FRAME_BYTES);
            assert_eq!(counts(heap), (all - 5 * 512, 0));
            heap.release_zones(1 << 30, all, Take::All, Releaser::Explicit);
            assert_eq!(stats::released(), all as usize * FRAME_BYTES);
            assert_eq!(counts(heap), (0, 0));
            assert_eq!(resident(address, 20 * 512 * FRAME_BYTES), 0);
            assert!(heap.slots.queued() == 0);
        },
    );
}

/// With `retain_ms=0`, due frames become lazy only if lazy frames are allowed at all.
#[test]
fn what_is_due_goes_clean_without_workers() {
    alone(
        "workers=0,pressure=off,thp=off,lazyfree=always,retain_ms=0",
        |heap| {
            dirty_run(heap, 100);
            heap.release_due(1000, Releaser::Explicit);
            assert_eq!(counts(heap), (0, 0));
        },
    );
}

/// With a window, slow paths release little, which is not worth two steps. Without a window this is the only
/// release.
#[test]
fn slow_paths_make_frames_lazy_only_where_nothing_is_kept() {
    let conf = "workers=1,pressure=off,thp=off,lazyfree=always,retain_ms=3600000";
    alone(conf, |heap| {
        dirty_run(heap, 100);
        heap.release_due(1000, Releaser::Tick);
        assert_eq!(counts(heap), (0, 0));
    });
}

#[test]
fn slow_paths_make_frames_lazy_where_nothing_is_kept() {
    let conf = "workers=1,pressure=off,thp=off,lazyfree=always,retain_ms=0";
    alone(conf, |heap| {
        dirty_run(heap, 100);
        heap.release_due(1000, Releaser::Tick);
        let lazy = if heap.may_go_lazy() { 100 } else { 0 };
        assert_eq!(counts(heap), (0, lazy));
    });
}

#[test]
fn spare_runs_are_kept_frames() {
    alone(CALM, |heap| {
        let large = heap.allocate_large(100 * FRAME_BYTES, 1).unwrap();
        heap.free_large(heap.region().frame(large.address));
        assert_eq!((counts(heap), heap.kept_frames()), ((0, 0), 100));
    });
}

/// The first claims of a gather become lazy, until the zone's limit of lazy frames is reached.
#[test]
fn as_much_becomes_lazy_as_there_is_room_for() {
    let conf = "workers=0,pressure=off,thp=off,retain_ms=3600000,dev=zones:1";
    alone(conf, |heap| {
        {
            let mut data = heap.zones[0].lock.lock();
            data.refaults.give_up(40);
            data.refaults.observe(1, 20);
        }
        assert_eq!(heap.lazy_room(0), 40);
        // Blocks of their own, each a claim.
        for _ in 0..4 {
            dirty_run(heap, 30);
            heap.take_run(500 - 30, 1).unwrap();
        }
        let mut owned = heap.slots.take(Releaser::Explicit.owner()).unwrap();
        let take = Take::Due { lazy_first: true };
        let gather = owned.gather();
        assert_eq!(heap.gather_zone(0, gather, 1000, take), 120);
        let (mut lazy, mut others) = (0, 0);
        gather.for_each(|range| match range.is_lazy() {
            true => lazy += range.frames(),
            false => others += range.frames(),
        });
        assert_eq!((lazy, others), (60, 60));
        heap.put_back(gather, false);
    });
}

/// All of a huge page is resident, so its clean free frames are claimed with the dirty ones.
#[test]
fn the_rest_of_a_huge_page_is_claimed_with_it() {
    let conf = "workers=0,pressure=off,lazyfree=off,retain_ms=3600000,dev=zones:1";
    alone(conf, |heap| {
        // The first blocks of a zone have small pages.
        heap.take_blocks(8, 1, 0).unwrap();
        let first = dirty_run(heap, 100);
        let _ = ebbtide_sys::features::HUGE_PAGES.latch(Ok::<_, ()>(()));
        if !heap.may_be_huge(first) {
            return;
        }
        let claimed = |heap: &Heap| {
            let mut owned = heap.slots.take(Releaser::Explicit.owner()).unwrap();
            let claimed = heap.gather_zone(0, owned.gather(), 1000, Take::All);
            heap.put_back(owned.gather(), false);
            claimed
        };
        // SAFETY: an opened block.
        let flags = unsafe { heap.region().flags(first.block()) };
        flags.store(flag::SMALL, core::sync::atomic::Ordering::Relaxed);
        assert_eq!(claimed(heap), 100, "split before");
        flags.store(0, core::sync::atomic::Ordering::Relaxed);
        assert_eq!(claimed(heap), 511, "all but the one in use");
    });
}

/// The kernel takes lazy pages at once where it is asked to, as it does where memory is short.
#[test]
fn lazy_frames_that_the_kernel_took_are_counted() {
    let conf = "workers=0,pressure=off,lazyfree=always,thp=off,retain_ms=3600000,dev=zones:1";
    alone(conf, |heap| {
        let taken = || crate::front::figures().lazy_taken_bytes as usize;
        let by = Releaser::Worker {
            map: None,
            owner: Owner::worker(0, 1),
        };
        let become_lazy = |frames| {
            let address = heap.region().address(dirty_run(heap, frames));
            heap.release_in_place(frames.into(), Take::Due { lazy_first: true }, by);
            assert_eq!(heap.zones[0].counters().lazy, u64::from(frames));
            address
        };
        become_lazy(64);
        heap.release_in_place(64, Take::Lazy, by);
        assert_eq!(taken(), 0, "all of them were resident");
        let address = become_lazy(64);
        let bytes = 16 * FRAME_BYTES;
        // SAFETY: free memory of the heap.
        let advised = unsafe { vm::advise(address, bytes, libc::MADV_PAGEOUT) };
        if advised.is_err() || vm::resident_bytes(address, bytes) != Some(0) {
            std::eprintln!("skipped: the kernel takes no lazy pages when it is asked to");
            return;
        }
        heap.release_in_place(64, Take::Lazy, by);
        assert_eq!(taken(), bytes);
    });
}
