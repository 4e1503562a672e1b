//! What the figures say is what the kernel counts.
//!
//! One test in a process of its own: nothing else may allocate meanwhile.

use ebbtide::stats::figures;

#[global_allocator]
static GLOBAL: ebbtide::Ebbtide = ebbtide::Ebbtide;

const MIB: usize = 1 << 20;

/// Resident private memory of the process in bytes, without files.
fn anonymous() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("Anonymous:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 1024
}

/// Memory that is resident and not the allocator's: the stack, the program's data, less what the
/// allocator overstates at the start, when it holds next to nothing.
fn others() -> isize {
    anonymous() as isize - accounted() as isize
}

/// What the allocator says may be resident.
fn accounted() -> usize {
    let stats = figures();
    let parts = [
        stats.live_bytes,
        stats.cached_bytes,
        stats.in_spans_bytes,
        stats.dirty_bytes,
        stats.lazy_bytes,
        stats.pending_bytes,
        stats.metadata_bytes,
    ];
    parts.iter().sum::<u64>() as usize
}

/// Each part is an upper bound of what is resident of it: objects in spans and caches that were never
/// used, arrays that are opened a page at a time. The other way round, a huge page is resident with
/// its untouched frames. The slack is what both can be here.
fn assert_accounted(when: &str, others: isize, slack: usize) {
    let (kernel, own) = ((anonymous() as isize - others) as usize, accounted());
    let stats = figures();
    assert!(
        own + slack >= kernel,
        "{when}: the kernel counts {kernel} and {others} of others, more than {own}: {stats:?}"
    );
    assert!(
        kernel + slack >= own,
        "{when}: the kernel counts {kernel} and {others} of others, {own} less {slack} at least: {stats:?}"
    );
}

fn touched(size: usize) -> Vec<u8> {
    // Not zeroed memory from the kernel: every byte is written.
    vec![7; size]
}

#[test]
fn the_parts_add_up_to_what_the_kernel_counts() {
    let others = others();
    // A huge page is resident whole, and the rest of the last block of a 3 MiB allocation is free.
    let huge_slack = 32 * MIB;
    const SIZES: [usize; 7] = [64, 100, 1000, 5000, 70_000, 300_000, 3 * MIB];
    let count = |size| 32 * MIB / size;
    // Every word of the list itself is written too.
    let mut held: Vec<Vec<u8>> = vec![Vec::new(); SIZES.map(count).iter().sum()];
    let mut next = 0;
    for size in SIZES {
        for _ in 0..count(size) {
            held[next] = touched(size);
            next += 1;
        }
        assert_accounted("filled", others, huge_slack.max(12 * MIB));
    }
    let live = figures().live_bytes as usize;
    let list = held.len() * size_of::<Vec<u8>>();
    let asked = list + held.iter().map(Vec::len).sum::<usize>();
    assert!(
        live >= asked && live <= asked + asked / 8 + 24 * MIB,
        "{live} live, {asked} asked for"
    );

    // Every other one: what is freed is dirty, cached or in spans, and still resident.
    held.iter_mut().step_by(2).for_each(|one| *one = Vec::new());
    assert_accounted("half freed", others, 24 * MIB);

    let before = anonymous();
    let released = ebbtide::release_all();
    let fallen = before - anonymous();
    assert!(released >= 24 * MIB, "only {released} bytes given back");
    assert!(
        fallen <= released + 8 * MIB && fallen + 16 * MIB >= released,
        "{released} said, {fallen} seen"
    );
    assert_accounted("released", others, 64 * MIB);

    drop(held);
    ebbtide::release_all();
    let stats = figures();
    assert_eq!(
        (
            stats.cached_bytes,
            stats.dirty_bytes,
            stats.lazy_bytes,
            stats.pending_bytes
        ),
        (0, 0, 0, 0)
    );
    let left = anonymous() as isize - others;
    assert!(left < 16 * MIB as isize, "{left} bytes stay: {stats:?}");
}
