//! The measured process's end of an observed run.
//!
//! ```text
//! worker  @base      @filled LIVE      @freed T0 T1       {…}
//!            ↓ ↑         ↓ ↑               ↓ ↑              ↓
//! observer   sample      sample, poll …    poll … until back   keep
//! ```
//! After each mark the worker waits for one byte, and meanwhile makes no call
//! that an allocator could notice. Nothing here allocates.
//!
//! Invariants:
//! - `INV-LINK-1`: between two marks the worker allocates only what it measures.

use std::fmt::{self, Write};
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::slice;

/// Nanoseconds of the clock that all processes share.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Bytes of a page.
pub fn page_bytes() -> usize {
    // SAFETY: takes a number, returns a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Before anything is allocated.
pub fn base() {
    tell(format_args!("@base\n"));
}

/// Everything is allocated and touched; `live_bytes` of pages will stay in use.
pub fn filled(live_bytes: u64) {
    tell(format_args!("@filled {live_bytes}\n"));
}

/// Freed between these two times.
pub fn freed(began_ns: u64, ended_ns: u64) {
    tell(format_args!("@freed {began_ns} {ended_ns}\n"));
}

/// Ends now. Nobody reads this before the end, and there is no answer.
pub fn ending(at_ns: u64) {
    say(format_args!("@ending {at_ns}\n"));
}

/// All is filled, so much of it swapped out, and so much CPU time used. Waits to be killed.
pub fn ready(swapped_bytes: u64, cpu_us: u64) {
    tell(format_args!("@ready {swapped_bytes} {cpu_us}\n"));
}

/// Has started. There is no answer.
pub fn started(at_ns: u64) {
    say(format_args!("@started {at_ns}\n"));
}

/// Says a line and waits for the answer. Without an observer there is no point in going on.
fn tell(text: fmt::Arguments) {
    let mut answer = 0u8;
    // SAFETY: the buffer is as long as said.
    let answered = say(text) && unsafe { libc::read(0, (&raw mut answer).cast(), 1) == 1 };
    if !answered {
        // SAFETY: ends the process.
        unsafe { libc::_exit(1) };
    }
}

fn say(text: fmt::Arguments) -> bool {
    let mut line = Line::default();
    let _ = line.write_fmt(text);
    // SAFETY: the buffer is as long as said.
    unsafe { libc::write(1, line.bytes.as_ptr().cast(), line.len) == line.len as isize }
}

/// A line on the stack; what does not fit is cut.
struct Line {
    bytes: [u8; 96],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Line {
            bytes: [0; 96],
            len: 0,
        }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

/// Numbers in pages of their own, all of them resident from the start: what a
/// measured process has to remember without the allocator.
pub struct Mapped<const N: usize> {
    start: *mut [u64; N],
    len: usize,
}

impl<const N: usize> Mapped<N> {
    /// `len` rows of zeros. Ends the process where there is no memory.
    pub fn new(len: usize) -> Self {
        let len = len.max(1);
        // SAFETY: a new mapping, no address asked for.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len * size_of::<[u64; N]>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        assert!(start != libc::MAP_FAILED, "out of memory");
        Mapped {
            start: start.cast(),
            len,
        }
    }
}

impl<const N: usize> Deref for Mapped<N> {
    type Target = [[u64; N]];
    fn deref(&self) -> &Self::Target {
        // SAFETY: the mapping holds `len` rows, and zeros are numbers.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

impl<const N: usize> DerefMut for Mapped<N> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: as above; `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl<const N: usize> Drop for Mapped<N> {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; nothing borrows it any more.
        unsafe { libc::munmap(self.start.cast(), self.len * size_of::<[u64; N]>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_not_lost() {
        let mut line = Line::default();
        write!(line, "@freed {} {}", u64::MAX, u64::MAX).unwrap();
        assert_eq!(line.len, 7 + 20 + 1 + 20);
        write!(line, "{:100}", "x").unwrap();
        assert_eq!(line.len, 96);
    }

    #[test]
    fn mapped_rows() {
        let mut rows = Mapped::<2>::new(1000);
        assert!(rows.iter().all(|r| *r == [0, 0]));
        rows[999] = [1, 2];
        rows.sort_unstable();
        assert_eq!(rows[999], [1, 2]);
    }

    #[test]
    fn clock_goes_forward() {
        let before = now_ns();
        assert!(now_ns() >= before && before > 0);
    }
}
