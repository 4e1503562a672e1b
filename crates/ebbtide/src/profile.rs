//! The profile of the program's allocations: which stacks the live memory comes from, by samples.
//!
//! `ebbtide profile` shows it, of a running process or of a dump. The keys `profile` and `profile_dump` do the same from outside.

use crate::{KeyProblem, heap};
use ebbtide_interface::keys::{MAX_RATE, RATE};

/// Switches sampling on: a sample for `rate` allocated bytes on average, 0 for 512 KiB, 1 for every allocation.
///
/// Any thread may call it at any time, again for another rate. The first call reserves 16 MiB of address space, of which only the used part takes
/// memory. Afterwards a pair of `malloc` and `free` costs some nanoseconds more, a sample some microseconds and a page.
///
/// # Errors
/// See [`KeyProblem`].
pub fn start(rate: usize) -> Result<(), KeyProblem> {
    let rate = if rate == 0 { RATE as usize } else { rate };
    if rate as u64 > MAX_RATE {
        return Err(KeyProblem::Unknown);
    }
    let heap = heap().ok_or(KeyProblem::Fixed)?.enter_uncounted();
    heap.sample(rate).then_some(()).ok_or(KeyProblem::Failed)
}

/// Switches sampling off. What is live stays in the profile until it is freed or resized.
pub fn stop() {
    if let Some(heap) = heap() {
        heap.enter_uncounted().sample(0);
    }
}

/// Writes the profile to a file. In the path, the first `%p` is the number of the process.
///
/// # Errors
/// The number of the error; `ENODATA` if sampling was never on. A line on stderr says the same.
pub fn dump(path: &[u8]) -> Result<(), i32> {
    let heap = heap().ok_or(0)?.enter_uncounted();
    heap.dump_profile(path).map_err(|error| error.into_raw())
}
