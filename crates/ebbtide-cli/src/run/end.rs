//! What comes after the end of a run: helpers that take memory back beside whoever waited.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::stats_page::StatsPage;

/// Longer than this is not waited for.
const MOST: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(1);

/// Name of a helper.
pub const HELPER_NAME: &str = "ebbtide/exit";

/// A moment of the monotonic clock, as the library writes it.
pub fn monotonic_ns() -> u64 {
    // SAFETY: timespec is plain data, and writable for the call.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// How long the end of the process `pid` took until it was seen; `None` if it did not end in order.
pub fn seen_after_ns(pages: &[StatsPage], pid: u32, seen_ns: u64) -> Option<u64> {
    let page = pages.iter().find(|page| page.pid == u64::from(pid))?;
    (page.end_ns != 0).then(|| seen_ns.saturating_sub(page.end_ns))
}

/// Waits until the helpers of all processes are gone. How long after `seen` that was; `None` if they stay.
pub fn wait_for_memory(pages: &[StatsPage], seen: Instant) -> Option<u64> {
    let end = Instant::now() + MOST;
    let mut helpers: Vec<u64> = pages.iter().map(|page| page.helper).collect();
    let mut gone = None;
    loop {
        helpers.retain(|&pid| pid != 0 && is_helper(pid));
        if helpers.is_empty() {
            return Some(gone.map_or(0, |gone: Duration| gone.as_nanos() as u64));
        }
        if Instant::now() > end {
            return None;
        }
        thread::sleep(STEP);
        gone = Some(seen.elapsed());
    }
}

/// Whether the process has a helper's name and has not come to its own end: its last step may take memory too.
pub fn is_helper(pid: u64) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| is_at_work(&stat))
}

/// `PID (name) state …`
fn is_at_work(stat: &str) -> bool {
    stat.split_once(" (")
        .and_then(|(_, rest)| rest.strip_prefix(HELPER_NAME)?.strip_prefix(") "))
        .is_some_and(|state| !state.starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    #[test]
    fn helpers_at_work() {
        assert!(is_at_work("12 (ebbtide/exit) S 1 12"));
        assert!(!is_at_work("12 (ebbtide/exit) Z 1 12"));
        assert!(!is_at_work("12 (sleep) S 1 12"));
        assert!(!is_at_work(""));
    }

    #[test]
    fn ends_are_measured_where_they_are_known() {
        let page = StatsPage {
            pid: 7,
            end_ns: 1000,
            ..StatsPage::default()
        };
        assert_eq!(seen_after_ns(from_ref(&page), 7, 1500), Some(500));
        assert_eq!(seen_after_ns(from_ref(&page), 8, 1500), None);
        assert_eq!(
            seen_after_ns(
                &[StatsPage {
                    end_ns: 0,
                    ..page.clone()
                }],
                7,
                1500
            ),
            None
        );
        // This process is no helper.
        let own = StatsPage {
            helper: u64::from(std::process::id()),
            ..page
        };
        assert_eq!(wait_for_memory(&[own], Instant::now()), Some(0));
    }
}
