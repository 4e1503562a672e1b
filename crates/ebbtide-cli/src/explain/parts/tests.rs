use super::*;
use crate::explain::owners;
use crate::memory::Range;
use crate::smaps::parse;

/// A heap of 10 MiB, with 2 MiB of it lazy and 1 MiB swapped out; records, a stack, a library, another heap.
const MAPS: &str = "\
40000000-50000000 rw-p 00000000 00:00 0 
Rss: 10240 kB
AnonHugePages: 2048 kB
LazyFree: 2048 kB
Swap: 1024 kB
60000000-60100000 rw-p 00000000 00:00 0 
Rss: 100 kB
61000000-61001000 rw-p 00000000 00:00 0 
Rss: 4 kB
61001000-61003000 ---p 00000000 00:00 0 
62000000-62100000 rw-p 00000000 00:00 0 
Rss: 16 kB
7f0000000000-7f0000100000 rw-p 00000000 00:00 0 
Rss: 900 kB
7f0001000000-7f0001100000 r-xp 00000000 08:01 9 /usr/lib/libc.so.6
Rss: 600 kB
Shared_Clean: 500 kB
7fff00000000-7fff00021000 rw-p 00000000 00:00 0 [stack]
Rss: 40 kB
";

fn sides() -> Sides {
    let range = |owner, start, end| Range { owner, start, end };
    let ranges = [
        range(Owner::Heap, 0x4000_0000, 0x5000_0000),
        range(Owner::Records, 0x6000_0000, 0x6010_0000),
        range(Owner::Guarded, 0x6100_0000, 0x6100_3000),
        range(Owner::Profile, 0x6200_0000, 0x6210_0000),
    ];
    owners::sort(&parse(MAPS), &ranges, &[])
}

fn about() -> About {
    About {
        has_ebbtide: true,
        ..About::default()
    }
}

fn resident(mib: u64) -> Bytes {
    Bytes {
        resident: mib << 20,
        swapped: 0,
    }
}

fn of(parts: &[Part], name: &str) -> u64 {
    let found = parts.iter().find(|part| part.name == name);
    found.map_or(0, |part| part.bytes / 1024)
}

fn sum(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.bytes).sum()
}

const ALL: u64 = (10240 + 100 + 4 + 16 + 900 + 600 + 40) << 10;

#[test]
fn parts_by_records_are_what_the_kernel_counts() {
    let sorted = Sorted {
        small: resident(3),
        large: resident(2),
        in_spans: resident(1),
        lazy: resident(2),
        // Meanwhile 2 MiB more came than the kernel had counted.
        dirty: resident(4),
        ..Sorted::default()
    };
    let parts = all(&sides(), &View::Records(Box::new(sorted)), &about());
    assert_eq!(sum(&parts), ALL);
    let heap = [LIVE, IN_SPANS, DIRTY, LAZY].map(|name| of(&parts, name));
    assert!(
        heap[0].abs_diff(5 * 10240 / 12) <= 1 && heap[2].abs_diff(4 * 10240 / 12) <= 1,
        "{heap:?}"
    );
    assert_eq!(of(&parts, "metadata"), 100);
    assert_eq!((of(&parts, "guarded"), of(&parts, "profile")), (4, 16));
    assert_eq!(of(&parts, "other_heaps"), 900);
    assert_eq!(of(&parts, "files"), 600);
    assert_eq!(of(&parts, "stacks"), 40);
    let swapped: u64 = parts.iter().map(|part| part.swapped_bytes).sum();
    assert_eq!(swapped, 1 << 20);
    assert!(
        parts.iter().all(|part| part.bytes + part.swapped_bytes > 0),
        "no empty parts"
    );
}

/// Figures include memory that was never touched: they are scaled to what is resident and not lazy.
#[test]
fn parts_by_figures_are_what_the_kernel_counts() {
    let figures = Figures {
        live_bytes: 12 << 20,
        dirty_bytes: 4 << 20,
        lazy_bytes: 3 << 20,
        ..Figures::default()
    };
    let about = About {
        retain_ms: Some(1000),
        ..about()
    };
    let parts = all(&sides(), &View::Figures(Box::new(figures)), &about);
    assert_eq!(sum(&parts), ALL);
    assert_eq!(
        [LIVE, DIRTY, LAZY].map(|name| of(&parts, name)),
        [6144, 2048, 2048]
    );
    let kept = parts.iter().find(|part| part.name == DIRTY).unwrap();
    assert!(kept.about.contains("1000 ms"), "{}", kept.about);
}

/// What is resident beyond the figures is in huge pages.
#[test]
fn huge_pages_hold_more_than_the_figures() {
    let figures = Figures {
        live_bytes: 7 << 20,
        ..Figures::default()
    };
    let parts = all(&sides(), &View::Figures(Box::new(figures)), &about());
    assert_eq!(sum(&parts), ALL);
    assert_eq!(
        [LIVE, LAZY, HUGE_FILL].map(|name| of(&parts, name)),
        [7168, 2048, 1024]
    );
}

#[test]
fn without_figures_the_heap_is_one_part() {
    let parts = all(&sides(), &View::Nothing, &about());
    assert_eq!((sum(&parts), of(&parts, "ebbtide")), (ALL, 10240));
}

#[test]
fn amounts_are_scaled_to_the_total() {
    let fitted = |mut amounts: Vec<u64>, total| {
        fit(&mut amounts, total);
        amounts
    };
    assert_eq!(fitted(vec![1, 2, 3], 6), [1, 2, 3]);
    assert_eq!(fitted(vec![10, 20, 30], 6), [1, 2, 3]);
    assert_eq!(fitted(vec![1, 1, 1], 10), [4, 3, 3]);
    assert_eq!(fitted(vec![0, 0], 5), [5, 0]);
    assert_eq!(
        fitted(vec![u64::MAX / 2, u64::MAX / 4], 3)
            .iter()
            .sum::<u64>(),
        3
    );
    assert!(fitted(Vec::new(), 0).is_empty());
}
