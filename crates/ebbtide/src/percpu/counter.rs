//! A counter to which many threads add.

use super::{PerCpu, Problem};

/// Eight bytes a CPU; additions take no atomic instruction and no line from another CPU.
///
/// ```
/// let requests = ebbtide::percpu::Counter::new().unwrap();
/// requests.add(3);
/// requests.add(1);
/// assert_eq!(requests.sum(), 4);
/// ```
#[derive(Debug)]
pub struct Counter(PerCpu<[u64; 1]>);

impl Counter {
    /// Zero.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> Result<Self, Problem> {
        PerCpu::new().map(Self)
    }

    /// Adds, wrapping.
    #[inline]
    pub fn add(&self, value: u64) {
        self.0.add(0, value);
    }

    /// The sum of all additions by all threads. Concurrent additions may be included or not.
    pub fn sum(&self) -> u64 {
        self.0.sum(0)
    }
}
