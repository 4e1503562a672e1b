//! One line on stderr, made and written without allocating, and the end of the process.

use core::fmt::{Display, Write};

/// Room for the names of all keys.
const LINE_BYTES: usize = 640;

/// A line that begins with `ebbtide: `; what does not fit is cut.
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
        .text("ebbtide: ")
    }

    /// Adds text.
    pub fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    /// Adds bytes as they are, control characters as `?`.
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

    /// Adds what a value shows.
    pub fn display(mut self, value: &dyn Display) -> Self {
        let _ = write!(self, "{value}");
        self
    }

    /// Adds a number, decimal.
    pub fn number(self, number: usize) -> Self {
        self.display(&number)
    }

    /// Adds an address, hexadecimal.
    pub fn address(mut self, address: usize) -> Self {
        let _ = write!(self, "{address:#x}");
        self
    }

    /// What it says.
    #[cfg(test)]
    pub fn shown(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Writes the line in one call.
    pub fn write(mut self) {
        self.bytes[self.len] = b'\n';
        ebbtide_sys::file::write_stderr(&self.bytes[..=self.len]);
    }

    /// Writes the line and aborts the process.
    pub fn abort(self) -> ! {
        self.write();
        ebbtide_sys::process::abort()
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
        let mut long = Message::new();
        for _ in 0..1000 {
            long = long.text("x\n");
        }
        assert_eq!(long.len, long.bytes.len() - 1);
        assert!(!long.bytes[..long.len].contains(&b'\n'));
    }
}
