//! One line on stderr, built and written without allocation, and the end of the process after misuse.

use core::fmt::{Display, Write};

use ebbtide_sys::process;

/// Enough for the names of all keys.
const LINE_BYTES: usize = 640;
const START: &str = "ebbtide: ";
/// The longest part of a program's name that is shown.
const MOST_NAME_BYTES: usize = 64;

/// A line that begins with `ebbtide: `. Text that does not fit is cut.
pub struct Message {
    bytes: [u8; LINE_BYTES],
    len: usize,
}

impl Message {
    /// Begins a line.
    pub fn new() -> Self {
        Self {
            bytes: [0; LINE_BYTES],
            len: 0,
        }
        .text(START)
    }

    /// Adds text.
    pub fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    /// Adds bytes unchanged, control characters as `?`.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.push(bytes);
        self
    }

    fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            // The last place is for the line's end.
            if self.len < self.bytes.len() - 1 {
                self.bytes[self.len] = if byte < b' ' { b'?' } else { byte };
                self.len += 1;
            }
        }
    }

    /// Adds the text of a value.
    pub fn display(mut self, value: &dyn Display) -> Self {
        let _ = write!(self, "{value}");
        self
    }

    /// Adds a decimal number.
    pub fn number(self, number: usize) -> Self {
        self.display(&number)
    }

    /// Adds a hexadecimal address.
    pub fn address(mut self, address: usize) -> Self {
        let _ = write!(self, "{address:#x}");
        self
    }

    /// The text so far.
    #[cfg(test)]
    pub fn shown(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Writes the line in one call.
    pub fn write(mut self) {
        self.bytes[self.len] = b'\n';
        ebbtide_sys::file::write_stderr(&self.bytes[..=self.len]);
    }

    /// Writes the line, with the program and the process.
    pub fn report(self) {
        self.of(process::program(), process::id()).write();
    }

    /// The same, and aborts the process. It makes no system call that an abort does not make anyway.
    pub fn abort(self) -> ! {
        self.report();
        process::abort()
    }

    /// The same line for a process: `ebbtide: PROGRAM[PID]: …`.
    fn of(self, program: &[u8], pid: u32) -> Self {
        let program = &program[..program.len().min(MOST_NAME_BYTES)];
        let start = Self::new().bytes(program).text("[").number(pid as usize);
        start.text("]: ").bytes(&self.bytes[START.len()..self.len])
    }
}

impl Default for Message {
    fn default() -> Self {
        Self::new()
    }
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn composes_and_cuts() {
        let line = Message::new()
            .text("free of ")
            .address(0xabc)
            .text(", ")
            .number(7);
        assert_eq!(line.shown(), b"ebbtide: free of 0xabc, 7");
        assert_eq!(
            line.of(b"a\nb", 12).shown(),
            b"ebbtide: a?b[12]: free of 0xabc, 7"
        );
        let named = Message::new().text("x").of(&[b'p'; 300], 1);
        assert_eq!(named.len, START.len() + MOST_NAME_BYTES + "[1]: x".len());
        let mut long = Message::new();
        for _ in 0..1000 {
            long = long.text("x\n");
        }
        assert_eq!(long.len, long.bytes.len() - 1);
        assert!(!long.bytes[..long.len].contains(&b'\n'));
    }
}
