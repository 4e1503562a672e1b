//! Finds the last second in which the memory of the processes hardly changed.
//!
//! The last sample before the end may fall into the program's end, when it frees its memory. A second without change shows what the
//! program held while it ran.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
/// Memory is stable if its lowest and highest sample differ by at most this part of the highest.
const PART: u64 = 20;

/// The samples of the last second, and the mean of the last stable second.
#[derive(Debug, Default)]
pub struct Stable {
    window: VecDeque<(Instant, u64)>,
    mean: Option<u64>,
}

impl Stable {
    /// Adds a sample. Samples come in the order of time.
    pub fn add(&mut self, now: Instant, bytes: u64) {
        self.window.push_back((now, bytes));
        // The window begins with the last sample that is a second old.
        while self.window.len() > 1 && now - self.window[1].0 >= SECOND {
            self.window.pop_front();
        }
        if now - self.window[0].0 >= SECOND && self.is_stable() {
            self.mean = Some(self.window_mean());
        }
    }

    /// The mean over the last stable second; `None` if there was none.
    pub fn mean(&self) -> Option<u64> {
        self.mean
    }

    fn is_stable(&self) -> bool {
        let values = self.window.iter().map(|(_, bytes)| *bytes);
        let most = values.clone().max().unwrap_or(0);
        let least = values.min().unwrap_or(0);
        most - least <= most / PART
    }

    fn window_mean(&self) -> u64 {
        let pairs = self.window.iter().zip(self.window.iter().skip(1));
        let (mut area, mut all_ns) = (0u128, 0u128);
        for ((from, bytes), (to, _)) in pairs {
            let ns = (*to - *from).as_nanos();
            area += u128::from(*bytes) * ns;
            all_ns += ns;
        }
        area.checked_div(all_ns).unwrap_or(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples at intervals of 100 ms.
    fn mean_of(samples: impl IntoIterator<Item = u64>) -> Option<u64> {
        let (mut stable, began) = (Stable::default(), Instant::now());
        for (number, bytes) in samples.into_iter().enumerate() {
            stable.add(began + Duration::from_millis(100) * number as u32, bytes);
        }
        stable.mean()
    }

    #[test]
    fn the_end_of_the_program_does_not_count() {
        let peak = [1000; 20];
        let rest = [300, 310].repeat(10);
        let end = [200, 100, 10];
        let all = peak.into_iter().chain(rest).chain(end);
        assert_eq!(mean_of(all), Some(305));
    }

    #[test]
    fn a_second_is_needed_and_no_change_in_it() {
        assert_eq!(mean_of([100; 10]), None);
        assert_eq!(mean_of([100; 11]), Some(100));
        assert_eq!(mean_of((0..100).map(|step| step * step)), None);
        assert_eq!(mean_of([]), None);
    }
}
