//! A log of decisions, for the tests of the planner: a line for each tick and each round, with all numbers that the
//! decision was made from. Compiled in with the feature `plan-log` alone, and never part of a product: it writes to the
//! standard error of the program.

use ebbtide_sys::file::write_stderr;

/// One line: a letter, then numbers.
pub struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Line {
    /// Of such a kind.
    pub fn new(kind: u8) -> Self {
        let mut line = Self {
            bytes: [0; 512],
            len: 0,
        };
        line.put(b"plan ");
        line.put(&[kind]);
        line
    }

    /// Adds numbers. Those that find no room are lost.
    pub fn add(&mut self, numbers: &[u64]) {
        for &number in numbers {
            let mut digits = [0; 20];
            let mut at = digits.len();
            let mut left = number;
            loop {
                at -= 1;
                digits[at] = b'0' + (left % 10) as u8;
                left /= 10;
                if left == 0 {
                    break;
                }
            }
            self.put(b" ");
            self.put(&digits[at..]);
        }
    }

    /// The decision begins here.
    pub fn decide(&mut self) {
        self.put(b" :");
    }

    fn put(&mut self, text: &[u8]) {
        if self.len + text.len() < self.bytes.len() {
            self.bytes[self.len..self.len + text.len()].copy_from_slice(text);
            self.len += text.len();
        }
    }

    /// Writes it.
    pub fn write(mut self) {
        self.bytes[self.len] = b'\n';
        write_stderr(&self.bytes[..=self.len]);
    }
}
