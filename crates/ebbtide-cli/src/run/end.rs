//! Measures the end of a run: how soon it was seen, and when helpers had returned the memory.

use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use ebbtide_tools::proc::Stat;
use ebbtide_tools::stats_page::StatsPage;

/// Maximum time to wait for helpers.
const MOST: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(1);

/// The time of the monotonic clock, in the library's units.
pub fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The event from which the time until the end was seen is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Since {
    /// The program's last steps before it ended in order (`exit`).
    Exit,
    /// The signal that ended the program, if it came to this process too.
    Signal,
    /// The main thread left the memory, as its helper saw it. This is used after `_exit`, a fault, a signal from
    /// elsewhere, or if the program's own notice of its end came late. The time before is not known, so the result is
    /// too short. It is too long, by 0.1 s at most, if the main thread had left and another thread ended the program.
    Leaving,
}

impl Since {
    /// The event in words.
    pub fn shown(self) -> &'static str {
        match self {
            Since::Exit => "exit",
            Since::Signal => "the signal",
            Since::Leaving => "leaving memory",
        }
    }
}

/// The end of the command's first process.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Its process number.
    pub pid: u32,
    /// The signal that ended it, and when the signal came, if known.
    pub signal: Option<(i32, Option<u64>)>,
    /// When its end was seen.
    pub seen: Instant,
    /// The same in nanoseconds of the monotonic clock.
    pub seen_ns: u64,
}

impl End {
    /// The time until the end was seen, and the event that it is measured from; `None` if not known.
    pub fn seen_after_ns(&self, pages: &[StatsPage]) -> Option<(u64, Since)> {
        let page = pages.iter().find(|page| page.pid == u64::from(self.pid));
        let (end_ns, left_ns) = page.map_or((0, 0), |page| (page.end_ns, page.left_ns));
        let known = match self.signal {
            Some((_, Some(came_ns))) => Some((came_ns, Since::Signal)),
            None if end_ns != 0 => Some((end_ns, Since::Exit)),
            _ => (left_ns != 0).then_some((left_ns, Since::Leaving)),
        };
        known.map(|(began_ns, since)| (self.seen_ns.saturating_sub(began_ns), since))
    }

    /// Waits until the helpers of all processes are gone. Returns the time from the seen end to then; `None` if they
    /// stay, or if the wait `is_stopped`.
    pub fn wait_for_memory(
        &self,
        pages: &[StatsPage],
        is_stopped: impl Fn() -> bool,
    ) -> Option<u64> {
        let patience = Instant::now() + MOST;
        let helpers = pages.iter().map(|page| page.helper);
        let mut helpers: Vec<u64> = helpers.filter(|&pid| pid != 0).collect();
        if helpers.is_empty() {
            return Some(0);
        }
        loop {
            helpers.retain(|&pid| is_helper(pid));
            if helpers.is_empty() {
                return Some(self.seen.elapsed().as_nanos() as u64);
            }
            if Instant::now() > patience || is_stopped() {
                return None;
            }
            thread::sleep(STEP);
        }
    }
}

/// Whether the process is a helper that has not ended.
pub fn is_helper(pid: u64) -> bool {
    Stat::read(pid as u32).is_some_and(|stat| stat.is_helper())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebbtide_interface::Figures;
    use std::slice::from_ref;

    fn page_of(figures: Figures) -> StatsPage {
        StatsPage {
            figures,
            ..StatsPage::default()
        }
    }

    #[test]
    fn ends_are_measured_where_they_are_known() {
        let page = |end_ns, left_ns| {
            page_of(Figures {
                pid: 7,
                end_ns,
                left_ns,
                ..Figures::default()
            })
        };
        let end = |pid, signal| End {
            pid,
            signal,
            seen: Instant::now(),
            seen_ns: 1500,
        };
        let after = |signal, page| end(7, signal).seen_after_ns(from_ref(&page));
        assert_eq!(after(None, page(1000, 0)), Some((500, Since::Exit)));
        assert_eq!(after(None, page(1000, 1400)), Some((500, Since::Exit)));
        assert_eq!(after(None, page(0, 1400)), Some((100, Since::Leaving)));
        assert_eq!(after(None, page(0, 0)), None);
        // A signal cut the exit short.
        let killed = Some((libc::SIGKILL, None));
        assert_eq!(after(killed, page(700, 1300)), Some((200, Since::Leaving)));
        assert_eq!(after(killed, page(700, 0)), None);
        let passed = Some((libc::SIGTERM, Some(900)));
        assert_eq!(after(passed, page(0, 1300)), Some((600, Since::Signal)));
        assert_eq!(
            end(8, None).seen_after_ns(from_ref(&page(1000, 1400))),
            None
        );
        assert_eq!(
            end(8, passed).seen_after_ns(&[]),
            Some((600, Since::Signal))
        );
    }

    #[test]
    fn memory_is_back_when_no_helper_is_left() {
        let end = End {
            pid: 7,
            signal: None,
            seen: Instant::now(),
            seen_ns: 0,
        };
        let with_helper = |helper| {
            page_of(Figures {
                helper,
                ..Figures::default()
            })
        };
        let wait = |pages: &[StatsPage]| end.wait_for_memory(pages, || false);
        assert_eq!(wait(&[with_helper(0)]), Some(0));
        // This process is no helper: it counts as one that has gone already.
        let own = with_helper(u64::from(std::process::id()));
        assert!(wait(&[own]).is_some_and(|ns| ns > 0));
    }
}
