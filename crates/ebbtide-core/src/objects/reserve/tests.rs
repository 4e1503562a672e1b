//! The reserve without a fork.

extern crate std;
use super::*;
use std::vec::Vec;

fn write(object: usize, size: usize, value: u8) {
    // SAFETY: a live object of that size.
    unsafe { (object as *mut u8).write_bytes(value, size) };
}

fn holds(object: usize, size: usize, value: u8) -> bool {
    // SAFETY: as in `write`.
    let bytes = unsafe { core::slice::from_raw_parts(object as *const u8, size) };
    bytes.iter().all(|&byte| byte == value)
}

#[test]
fn objects_are_apart_and_read_zero() {
    let reserve = Reserve::new();
    let sizes = [0, 1, 16, 17, 1000, SHARED_MAX, SHARED_MAX + 1, 3 * CHUNK];
    let mut live = Vec::new();
    for round in 0..20u8 {
        for (size, align) in sizes.iter().flat_map(|&size| [(size, 1), (size, 4096)]) {
            let Some(object) = reserve.allocate(size, align) else {
                continue;
            };
            assert!(object.is_multiple_of(align.max(UNIT)) && reserve.contains(object));
            assert!(holds(object, size, 0) && reserve.size(object, "") == size);
            write(object, size, round + 1);
            live.push((object, size, round + 1));
        }
        while live.len() > 30 {
            let (object, size, value) = live.swap_remove(usize::from(round) % 7);
            assert!(holds(object, size, value));
            write(object, size, 0xff);
            reserve.free(object);
        }
    }
    for (object, size, value) in live {
        assert!(holds(object, size, value));
        reserve.free(object);
    }
    assert_eq!(reserve.live_bytes(), 0);
    assert!(used(&reserve) <= 1);
}

fn used(reserve: &Reserve) -> usize {
    let uses = reserve.uses.iter();
    let used = uses.filter(|uses| uses.load(Ordering::Relaxed) > 0).count();
    assert_eq!(used, reserve.used.load(Ordering::Relaxed));
    used
}

#[test]
fn all_of_it_can_be_used_again_and_again() {
    let reserve = Reserve::new();
    for _ in 0..3 {
        let mut objects = Vec::new();
        while let Some(object) = reserve.allocate(100_000, 1) {
            objects.push(object);
        }
        // Two chunks each.
        assert!(objects.len() >= CHUNKS / 2, "{}", objects.len());
        assert!(reserve.allocate(2 * CHUNK, 1).is_none());
        objects.into_iter().for_each(|object| reserve.free(object));
        let large = reserve.allocate(CHUNK * (CHUNKS / 2), 1).unwrap();
        reserve.free(large);
    }
}

#[test]
fn threads_cut_and_free_at_once() {
    let reserve = Reserve::new();
    std::thread::scope(|scope| {
        for thread in 1..=4u8 {
            let reserve = &reserve;
            scope.spawn(move || {
                let mut live = Vec::new();
                for round in 0..3_000usize {
                    let size = if round % 100 == 0 {
                        SHARED_MAX * 2
                    } else {
                        round % 5000
                    };
                    if let Some(object) = reserve.allocate(size, 1) {
                        assert!(holds(object, size, 0));
                        write(object, size, thread);
                        live.push((object, size));
                    }
                    if live.len() > 50 {
                        let (object, size) = live.swap_remove(round % 50);
                        assert!(holds(object, size, thread));
                        reserve.free(object);
                    }
                }
                live.into_iter()
                    .for_each(|(object, _)| reserve.free(object));
            });
        }
    });
    assert_eq!(reserve.live_bytes(), 0);
    assert!(used(&reserve) <= 1);
}

/// The use of a thread that took a chunk for the current one, when the chunk is free already.
#[test]
fn a_use_of_a_free_chunk_changes_nothing() {
    let reserve = Reserve::new();
    let object = reserve.allocate(100, 1).unwrap();
    assert_eq!(used(&reserve), 1);
    reserve.uses[5].fetch_add(1, Ordering::Relaxed);
    reserve.end_use(5);
    assert_eq!(used(&reserve), 1);
    reserve.free(object);
}

#[test]
fn few_objects_that_stay_leave_room_for_others() {
    let reserve = Reserve::new();
    for round in 0..300 {
        assert!(reserve.allocate(40, 1).is_some(), "round {round}");
        for _ in 0..40 {
            let object = reserve.allocate(50_000, 1);
            reserve.free(object.unwrap_or_else(|| panic!("round {round}")));
        }
    }
}

/// The parent took a chunk when the page with the uses had been copied, and the page with the cursor had not.
#[test]
fn a_child_relies_on_no_use_that_it_does_not_see() {
    let reserve = Reserve::new();
    let kept = reserve.allocate(40, 1).unwrap();
    let number = (kept - reserve.base.load(Ordering::Relaxed)) / CHUNK;
    reserve.uses[number].store(0, Ordering::Relaxed);
    reserve.begin_in_child();
    let objects: Vec<_> = (0..2000)
        .filter_map(|_| reserve.allocate(1000, 1))
        .collect();
    assert_eq!(objects.len(), 2000);
    objects.into_iter().for_each(|object| reserve.free(object));
}

#[test]
fn queued_frees_come_out_once() {
    let reserve = Reserve::new();
    let mut addresses: Vec<usize> = (1..=1000).map(|n| n * 16).collect();
    for &address in &addresses {
        assert!(reserve.queue(address));
    }
    assert!(reserve.has_queued());
    let mut came = Vec::new();
    reserve.take_queued(|address| came.push(address));
    came.sort_unstable();
    addresses.sort_unstable();
    assert_eq!(came, addresses);
    assert!(!reserve.has_queued() && reserve.live_bytes() == 0);
    reserve.queue(16);
    reserve.begin_in_child();
    reserve.take_queued(|_| panic!("forgotten"));
}
