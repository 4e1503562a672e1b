//! The reader of statistics pages. Another process writes them, so every byte is possible.
#![no_main]

use ebbtide_interface::{figures, page};
use ebbtide_tools::lock_figures;
use ebbtide_tools::stats_page::StatsPage;
use libfuzzer_sys::fuzz_target;

fn word(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at * 8..][..8].try_into().expect("8 bytes"))
}

fn check(page: &[u8]) -> bool {
    let Some(read) = StatsPage::parse(page) else {
        return false;
    };
    for (at, value) in read.figures.values().into_iter().enumerate() {
        assert_eq!(value, word(page, page::FIRST + at));
    }
    for (at, lock) in read.locks.iter().enumerate() {
        let record = page::LOCKS + at * page::LOCK_WORDS;
        assert_eq!(lock.taken, word(page, record + 1));
        for times in [&lock.waits, &lock.holds] {
            assert_eq!(times.histogram.len(), page::BUCKETS);
            assert!(times.quantile_ns(0.5) <= times.longest_ns);
        }
    }
    serde_json::to_string(&read).expect("JSON");
    let sum = StatsPage::sum(&[read.clone(), read.clone()]);
    assert!(sum.locks.len() <= read.locks.len());
    lock_figures::sum([&read.locks[..], &sum.locks[..]].into_iter());
    true
}

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // The same bytes behind the head of a page.
    let mut page = vec![0; page::WORDS * 8];
    let body = &mut page[16..];
    let len = bytes.len().min(body.len());
    // The first byte chooses the place: the figures, or the locks.
    let from = match bytes.first() {
        Some(byte) if byte % 2 == 1 => (page::LOCKS - 2) * 8,
        _ => 0,
    };
    let len = len.min(body.len() - from);
    body[from..from + len].copy_from_slice(&bytes[..len]);
    page[..8].copy_from_slice(&page::MAGIC.to_le_bytes());
    page[8..16].copy_from_slice(&figures::VERSION.to_le_bytes());
    assert!(check(&page));
});
