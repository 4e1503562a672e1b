//! A Rust program whose memory Ebbtide manages: builds a large map, drops it, and shows what stays.
//!
//! ```text
//! cargo run --release -p ebbtide-example-global
//! ```

use std::collections::HashMap;

use ebbtide::stats::figures;

#[global_allocator]
static GLOBAL: ebbtide::Ebbtide = ebbtide::Ebbtide;

/// Entries of the map.
const ENTRIES: u64 = 1_000_000;

fn main() {
    show("at the start");
    let map: HashMap<u64, Vec<u8>> = (0..ENTRIES)
        .map(|n| (n, vec![n as u8; 32 + (n % 200) as usize]))
        .collect();
    let bytes: usize = map.values().map(Vec::len).sum();
    show(&format!("with {bytes} bytes in {} vectors", map.len()));
    drop(map);
    show("just after the drop");
    let released = ebbtide::release_all();
    show(&format!("after release_all(), which gave back {released}"));
    let has_caches = figures().rseq_mode == 1;
    println!("per-CPU caches: {}", if has_caches { "yes" } else { "no" });
}

/// One line: what the kernel counts, and what the allocator knows of it.
fn show(when: &str) {
    let stats = figures();
    println!(
        "resident {:>7} KiB, live {:>7} KiB, kept for reuse {:>7} KiB  {when}",
        resident_kib(),
        stats.live_bytes >> 10,
        (stats.cached_bytes + stats.in_spans_bytes + stats.dirty_bytes) >> 10,
    );
}

/// The resident size as the kernel counts it.
fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
