//! The measured process's side of an observed run.
//!
//! ```text
//! worker  @base      @filled LIVE      @freed T0 T1       {…}
//!            ↓ ↑         ↓ ↑               ↓ ↑              ↓
//! observer   sample      sample, poll …    poll … until back   keep
//! ```
//! After each mark the worker waits for one byte. Meanwhile it makes no call that an allocator could notice. Nothing
//! in this module allocates.
//!
//! Invariants:
//! - `INV-LINK-1`: between two marks the worker allocates only what it measures.

use std::fmt::{self, Write};
use std::ops::{Deref, DerefMut};
use std::slice;

use crate::measured::calls;

/// Mark: nothing is allocated yet.
pub fn base() {
    tell(format_args!("@base\n"));
}

/// Mark: everything is allocated and touched; `live_bytes` of pages will stay in use.
pub fn filled(live_bytes: u64) {
    tell(format_args!("@filled {live_bytes}\n"));
}

/// Mark: the memory was freed between these two times.
pub fn freed(began_ns: u64, ended_ns: u64) {
    tell(format_args!("@freed {began_ns} {ended_ns}\n"));
}

/// Mark: the work is done. Waits until the process may end.
pub fn rest() {
    tell(format_args!("@rest\n"));
}

/// Mark: the process ends now. The observer reads it only after the end, and there is no answer.
pub fn ending(at_ns: u64) {
    say(format_args!("@ending {at_ns}\n"));
}

/// Mark: everything is filled, with the bytes swapped out and the CPU time used. Then waits to be killed.
pub fn ready(swapped_bytes: u64, cpu_us: u64) {
    tell(format_args!("@ready {swapped_bytes} {cpu_us}\n"));
}

/// Mark: the process has started. There is no answer.
pub fn started(at_ns: u64) {
    say(format_args!("@started {at_ns}\n"));
}

/// Writes a line and waits for the answer. Without an observer the process ends.
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
    let mut line = Line::EMPTY;
    let _ = line.write_fmt(text);
    // SAFETY: the buffer is as long as said.
    unsafe { libc::write(1, line.bytes.as_ptr().cast(), line.len) == line.len as isize }
}

/// A line on the stack; text that does not fit is cut.
struct Line {
    bytes: [u8; 96],
    len: usize,
}

impl Line {
    const EMPTY: Self = Line {
        bytes: [0; 96],
        len: 0,
    };
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

/// Numbers in pages of their own, all resident from the start: the memory of a measured process outside of the
/// allocator.
pub struct Mapped<const N: usize> {
    start: *mut [u64; N],
    len: usize,
}

impl<const N: usize> Mapped<N> {
    /// Maps `len` rows of zeros. Ends the process if there is no memory.
    pub fn new(len: usize) -> Self {
        let len = len.max(1);
        let start = calls::map_zeros(len * size_of::<[u64; N]>(), libc::MAP_POPULATE);
        let start = start.expect("out of memory").cast();
        Mapped { start, len }
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
        let mut line = Line::EMPTY;
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
}
