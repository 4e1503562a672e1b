extern crate std;
use super::*;
use crate::base::size_class::CLASS;

fn fresh(class: usize) -> Span {
    // SAFETY: zeroed memory is a valid record.
    let mut span: Span = unsafe { core::mem::zeroed() };
    span.begin(class, &CLASS[class], Frame(16), true);
    span
}

#[test]
fn objects_come_lowest_first_and_go_back_once() {
    for (class, about) in CLASS.iter().enumerate().skip(1) {
        let mut span = fresh(class);
        let objects = about.objects as usize;
        let mut all = std::vec![0; objects + 3];
        assert_eq!(
            span.take(about, 4096, &mut all[..objects.min(5)]),
            objects.min(5)
        );
        assert_eq!(all[objects.min(5) - 1], 4096);
        let rest = span.take(about, 4096, &mut all);
        assert_eq!(rest + objects.min(5), objects);
        assert_eq!((span.free, span.high as usize), (0, objects));
        for object in (0..objects).rev() {
            assert!(span.put(object));
            assert!(!span.put(object), "double put");
        }
        assert_eq!(span.free as usize, objects);
    }
}

#[test]
fn a_run_goes_in_as_its_objects_would_one_by_one() {
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 20) as usize % below
    };
    const ADDRESS: usize = 257 * FRAME_BYTES;
    for (class, about) in CLASS.iter().enumerate().skip(1) {
        let (size, objects) = (about.size as usize, about.objects as usize);
        let end = ADDRESS + about.frames as usize * FRAME_BYTES;
        let (mut whole, mut single) = (fresh(class), fresh(class));
        let mut all = std::vec![0; objects];
        whole.take(about, ADDRESS, &mut all);
        single.take(about, ADDRESS, &mut all);
        for _ in 0..64 {
            // Upwards or downwards from any object, with occasional leaps and faults.
            let mut object = random(objects);
            let step = [1, objects - 1][random(2)];
            let run: std::vec::Vec<usize> = (0..1 + random(64))
                .map(|_| {
                    object = match random(32) {
                        0 => random(objects),
                        _ => (object + step) % objects,
                    };
                    match random(400) {
                        0 => ADDRESS + object * size + 8,
                        1 => end + random(3) * size,
                        2 => ADDRESS - size,
                        3 => ADDRESS + objects * size,
                        _ => ADDRESS + object * size,
                    }
                })
                .collect();
            let (mut count, mut refused) = (0, None);
            for &address in &run {
                if !(ADDRESS..end).contains(&address) {
                    break;
                }
                let object = (address - ADDRESS) / size;
                if object >= objects || !(address - ADDRESS).is_multiple_of(size) {
                    refused = Some(Misuse::Interior(address));
                    break;
                }
                if !single.put(object) {
                    refused = Some(Misuse::DoubleFree(address));
                    break;
                }
                count += 1;
            }
            let mut done = 0;
            let why = loop {
                let (more, why) = whole.put_run(about, ADDRESS, &run[done..]);
                done += more;
                if more == 0 || why.is_some() {
                    break why;
                }
            };
            assert_eq!((done, why), (count, refused));
            assert_eq!((whole.free, whole.map), (single.free, single.map));
            if refused.is_some() || whole.free > about.objects / 2 {
                let room = random(objects) + 1;
                whole.take(about, ADDRESS, &mut all[..room]);
                single.take(about, ADDRESS, &mut all[..room]);
            }
        }
    }
}

#[test]
fn neighbours_end_with_the_span() {
    const ADDRESS: usize = 257 * FRAME_BYTES;
    for (class, about) in CLASS.iter().enumerate().skip(1) {
        let (size, objects) = (about.size as usize, about.objects as usize);
        let count = objects.min(9);
        let behind = objects * size < about.frames as usize * FRAME_BYTES;
        let last = (objects - count..=objects).map(|object| ADDRESS + object * size);
        let first = (0..=count).map(|past| ADDRESS + (count - 1) * size - past * size);
        for (run, refused) in [
            (std::vec::Vec::from_iter(last), behind),
            (first.collect(), false),
        ] {
            let mut span = fresh(class);
            span.take(about, ADDRESS, &mut std::vec![0; objects]);
            let (mut done, mut why) = span.put_run(about, ADDRESS, &run);
            if why.is_none() {
                let (more, then) = span.put_run(about, ADDRESS, &run[done..]);
                (done, why) = (done + more, then);
            }
            assert_eq!((done, span.free as usize), (count, count), "class {class}");
            let misuse = refused.then(|| Misuse::Interior(run[count]));
            assert_eq!(why, misuse, "class {class}");
        }
    }
}

#[test]
fn empty_frames_are_claimed_and_come_back() {
    for (class, about) in CLASS.iter().enumerate().skip(1) {
        let mut span = fresh(class);
        let objects = about.objects as usize;
        let mut all = std::vec![0; objects];
        span.take(about, 0, &mut all);
        assert_eq!(span.empty_frames(about, false, 1), 0);
        // All but the first object come back: every frame that it does not touch is empty.
        (1..objects).for_each(|object| assert!(span.put(object)));
        let expected = low_mask(about.frames as u32) & !frames_of(about, 0);
        // The rest behind the last object was never touched, but belongs to no object either.
        let tail = low_mask(about.frames as u32) & !low_mask(span.touched_frames(about));
        let empty = span.empty_frames(about, false, 1);
        assert_eq!(empty & !tail, expected & !tail, "class {class}");
        if empty == 0 {
            continue;
        }
        let free = span.free;
        let claimed = span.claim(about, empty);
        assert_eq!(span.free as usize + claimed, free as usize);
        assert!(!span.put(0) || span.free > 0);
        span.map[0] &= !1;
        span.free = free - claimed as u16;
        assert_eq!(span.unclaim(about, empty, true), claimed);
        assert_eq!((span.free, span.released), (free, empty));
        assert_eq!(span.empty_frames(about, false, 1), 0, "released once");
        // Populated frames serve first. An object that is taken from a released frame makes the frame populated.
        let one = span.take(about, 0, &mut all[..1]);
        assert_eq!(one, 1);
        assert_eq!(
            span.released & frames_of(about, all[0] / about.size as usize),
            0
        );
    }
}

/// On a kernel with larger pages, only frames of whole pages are claimed. An object in two of the claimed runs would be
/// free when the first of them is put back.
#[test]
fn empty_frames_are_whole_pages_of_the_kernel() {
    let mut some = 0;
    let mut random = 1u64;
    for (class, about) in CLASS.iter().enumerate().skip(1) {
        for (first, group) in [(0, 4), (3, 4), (512, 16), (513, 16), (523, 16)] {
            let (objects, frames) = (about.objects as usize, about.frames as u32);
            let mut span = fresh(class);
            span.first = first;
            span.take(about, 0, &mut std::vec![0; objects]);
            let mut live = 0;
            for object in 0..objects {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                if object % 61 > 3 || random >> 62 != 0 {
                    assert!(span.put(object));
                } else {
                    live |= frames_of(about, object);
                }
            }
            let whole = |frame: u32| {
                let start = (first + frame) / group * group;
                let inside = start >= first && start + group <= first + frames;
                inside && (start..start + group).all(|at| live >> (at - first) & 1 == 0)
            };
            let expected = (0..frames).filter(|&frame| whole(frame));
            let expected = expected.fold(0, |all, frame| all | 1 << frame);
            let empty = span.empty_frames(about, false, group);
            let touched = low_mask(span.touched_frames(about));
            assert_eq!(empty & touched, expected & touched, "class {class} {first}");
            for object in 0..objects {
                let runs = empty & frames_of(about, object);
                let runs = runs & !(runs << 1);
                assert!(runs.count_ones() <= 1, "class {class}, object {object}");
            }
            some += u32::from(empty != 0);
        }
    }
    assert!(some > 100, "{some}");
}

#[test]
fn untouched_frames_are_known() {
    let mut span = fresh(4); // 64 B, 512 objects, 8 frames
    assert_eq!(span.touched_frames(&CLASS[4]), 0);
    span.take(&CLASS[4], 0, &mut [0; 65]);
    assert_eq!(span.touched_frames(&CLASS[4]), 2);
    span.was_clean = false;
    assert_eq!(span.touched_frames(&CLASS[4]), 8);
}
