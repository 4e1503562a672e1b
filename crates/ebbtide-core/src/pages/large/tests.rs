//! What large allocations say of their memory when they shrink, grow and go.

extern crate std;

use super::*;
use crate::alone::{CALM, alone, fill, holds, resident};
use crate::base::releaser::Releaser;
use crate::reclaim::Heap;
use std::vec::Vec;

/// A large allocation of `frames`, all written to.
fn written(heap: &Heap, frames: u32) -> Frame {
    let bytes = frames as usize * FRAME_BYTES;
    let large = heap.allocate_large(bytes, 1).expect("memory");
    if large.clean {
        assert!(holds(large.address, bytes, 0), "{frames} frames");
    }
    fill(large.address, bytes, 0xa5);
    heap.region().frame(large.address)
}

fn resize(heap: &Heap, head: Frame, frames: u32) -> Option<Frame> {
    let moved = heap.resize_large(head, frames as usize * FRAME_BYTES)?;
    Some(heap.region().frame(moved))
}

/// Free frames that may hold old content.
fn dirty(heap: &Heap) -> u64 {
    let zones = heap.live_zones().iter();
    zones.map(|zone| zone.counters().dirty).sum()
}

/// The memory of an allocation is dirty when it is freed, to its last frame; of the block that it owns in part, what was
/// never its own stays clean, and so does slack.
#[test]
fn all_that_was_written_to_is_dirty_once_freed() {
    alone(CALM, |heap| {
        let own_last = OWN_BLOCKS_FRAMES + 100;
        // With what stays dirty: an allocation of 16 MiB or more owns its last block whole.
        for (frames, expected) in [
            (70, 70),
            (511, 511),
            (512, 512),
            (3 * 512 + 100, 3 * 512 + 100),
            (own_last, own_last.next_multiple_of(BLOCK_FRAMES)),
        ] {
            let head = written(heap, frames);
            assert_eq!(dirty(heap), 0);
            assert!(heap.free_large(head));
            assert!(!heap.free_large(head), "{frames} frames twice");
            heap.drain_spares();
            assert_eq!(dirty(heap), u64::from(expected), "{frames} frames");
            heap.release_everything(Releaser::Explicit);
            assert_eq!(dirty(heap), 0);
        }
        assert_eq!(heap.slack.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn what_is_cut_off_is_dirty_or_given_back() {
    alone(CALM, |heap| {
        let address = |head: Frame, frames: u32| heap.region().address(Frame(head.0 + frames));
        let mut head = written(heap, 3 * 512 + 100);
        let mut frames = 3 * 512 + 100;
        // A part of the tail, the rest of it, parts of blocks, whole ones.
        for cut in [3 * 512 + 60, 3 * 512, 3 * 512 - 1, 2 * 512 + 10, 512] {
            head = resize(heap, head, cut).expect("in place");
            assert_eq!(dirty(heap), u64::from(3 * 512 + 100 - cut));
            assert!(holds(address(head, 0), cut as usize * FRAME_BYTES, 0xa5));
            frames = cut;
        }
        assert_eq!(heap.large_bytes(head), frames as usize * FRAME_BYTES);
        heap.free_large(head);
        assert_eq!(dirty(heap), 3 * 512 + 100);

        // One that owns its last block keeps it, without the memory behind the new end.
        let (old, block) = (OWN_BLOCKS_FRAMES + 300, OWN_BLOCKS_FRAMES + 512);
        heap.release_everything(Releaser::Explicit);
        let head = written(heap, old);
        let cut = old - TAIL_FRAMES;
        assert_eq!(resize(heap, head, cut), Some(head));
        let behind = TAIL_FRAMES as usize * FRAME_BYTES;
        assert_eq!((resident(address(head, cut), behind), dirty(heap)), (0, 0));
        assert_eq!(heap.slack.load(Ordering::Relaxed), (block - cut) as usize);
        // Less than that is not worth a call.
        let less = cut - TAIL_FRAMES + 1;
        assert_eq!(resize(heap, head, less), Some(head));
        let kept = TAIL_FRAMES as usize - 1;
        assert_eq!(resident(address(head, less), kept * FRAME_BYTES), kept);
        // It grows over that again, as realloc may, but nothing of it is called clean once freed.
        assert_eq!(resize(heap, head, block), Some(head));
        heap.free_large(head);
        assert_eq!(dirty(heap), u64::from(block));
        assert_eq!(heap.slack.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn growth_in_place_takes_what_is_free_behind() {
    alone(CALM, |heap| {
        // Behind the first one: old content that was cut off, in the same block and in the next ones.
        let head = written(heap, 3 * 512 + 100);
        assert_eq!(resize(heap, head, 3 * 512 + 20), Some(head));
        assert_eq!(resize(heap, head, 3 * 512 + 90), Some(head));
        assert_eq!(dirty(heap), 10);
        assert_eq!(resize(heap, head, 512), Some(head));
        assert_eq!(resize(heap, head, 512 + 1), Some(head));
        // It owns the second block whole now, of which it uses one frame.
        assert_eq!(dirty(heap), 512 + 100);
        heap.free_large(head);
        assert_eq!(dirty(heap), 3 * 512 + 100);
        let again = heap.allocate_large(2 * BLOCK_BYTES, 1).unwrap();
        assert!(!again.clean, "it reads as it was left");
        heap.free_large(heap.region().frame(again.address));

        // Where there are clean blocks behind it, slack is there to be grown into.
        heap.release_everything(Releaser::Explicit);
        let opened = heap.take_blocks(40, 1, 0).unwrap();
        heap.put_blocks(opened.first, 40, 0);
        let head = written(heap, OWN_BLOCKS_FRAMES);
        let slack = heap.slack.load(Ordering::Relaxed);
        assert_eq!(slack, OWN_BLOCKS_FRAMES as usize, "twice the blocks");
        let more = OWN_BLOCKS_FRAMES + 1000;
        assert_eq!(resize(heap, head, more), Some(head));
        assert_eq!(heap.slack.load(Ordering::Relaxed), slack - 1000);
        assert!(holds(
            heap.region().address(Frame(head.0 + OWN_BLOCKS_FRAMES)),
            1000 * FRAME_BYTES,
            0
        ));
        heap.free_large(head);
        assert_eq!(dirty(heap), u64::from(more.next_multiple_of(BLOCK_FRAMES)));
    });
}

/// A spare run comes again as it was left.
#[test]
fn a_spare_run_is_not_clean() {
    alone(CALM, |heap| {
        let head = written(heap, 100);
        heap.free_large(head);
        let again = heap.allocate_large(100 * FRAME_BYTES, 1).unwrap();
        assert_eq!(heap.region().frame(again.address), head);
        assert!(!again.clean && holds(again.address, 100 * FRAME_BYTES, 0xa5));
        assert_eq!(dirty(heap), 0);
    });
}

struct Live {
    head: Frame,
    frames: u32,
    value: u8,
}

/// Random requests: what is said to read zero does, content stays, and in the end all is free.
fn content_follows(heap: &Heap, seed: u64) {
    let mut random = 0x9e37_79b9_7f4a_7c15 ^ seed;
    let mut live: Vec<Live> = Vec::new();
    for step in 0..400u32 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let value = 1 + (step % 250) as u8;
        let any = (random >> 20) as u32;
        let frames = match random % 8 {
            0..4 => 1 + any % 511,
            4..7 => 512 + any % 2000,
            _ => OWN_BLOCKS_FRAMES - 300 + any % 1500,
        };
        let address = |head| heap.region().address(head);
        let bytes = frames as usize * FRAME_BYTES;
        let at = (random >> 8) as usize % 8;
        let Some(one) = live.get_mut(at) else {
            let large = heap.allocate_large(bytes, 1).expect("memory");
            let zero = !large.clean || holds(large.address, bytes, 0);
            assert!(zero, "step {step}: {frames} frames are not clean");
            fill(large.address, bytes, value);
            let head = heap.region().frame(large.address);
            live.push(Live {
                head,
                frames,
                value,
            });
            continue;
        };
        let has = one.frames as usize * FRAME_BYTES;
        assert!(holds(address(one.head), has, one.value), "step {step}");
        if random >> 60 < 6 {
            assert!(heap.free_large(one.head));
            live.swap_remove(at);
        } else {
            // By a little more often than by much.
            let frames = match random >> 58 & 3 {
                0 => frames,
                1 => (one.frames + any % 40).saturating_sub(20).max(1),
                2 => one.frames + 1 + any % 600,
                _ => one.frames - any % 600 % one.frames,
            };
            if let Some(head) = resize(heap, one.head, frames) {
                (one.head, one.frames) = (head, frames.max(1));
                let kept = has.min(frames as usize * FRAME_BYTES);
                assert!(holds(address(head), kept, one.value), "step {step}");
                let all = one.frames as usize * FRAME_BYTES;
                fill(address(head), all, value);
                one.value = value;
            }
        }
        if step % 40 == 39 {
            heap.release_everything(Releaser::Explicit);
        }
        for zone in heap.live_zones() {
            let checked = zone.with(heap.region(), |zone| zone.check_invariants());
            assert!(checked.is_ok(), "step {step}: {checked:?}");
        }
    }
    for one in live {
        assert!(heap.free_large(one.head));
    }
    heap.release_everything(Releaser::Explicit);
    for zone in heap.live_zones() {
        let counters = zone.counters();
        assert_eq!((counters.in_use, counters.dirty), (0, 0));
    }
    assert_eq!(heap.slack.load(Ordering::Relaxed), 0);
}

#[test]
fn what_is_called_clean_reads_zero() {
    alone(CALM, |heap| {
        content_follows(heap, 1);
    });
}

#[test]
fn what_is_called_clean_reads_zero_among_huge_pages() {
    let conf = "workers=0,pressure=off,lazyfree=off,retain_ms=3600000,dev=zones:2";
    alone(conf, |heap| {
        content_follows(heap, 2);
    });
}

#[test]
fn what_is_called_clean_reads_zero_where_nothing_is_kept() {
    alone(
        "workers=0,thp=off,retain_ms=0,dev=gather:inline,dev=cluster:off",
        |heap| {
            content_follows(heap, 3);
        },
    );
}
