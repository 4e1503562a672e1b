//! What the fuzz targets share: numbers from the fuzzer's bytes.

use libfuzzer_sys::arbitrary::Unstructured;
use std::ops::RangeInclusive;

/// The fuzzer's bytes. Behind the last one, every number is the first of its range.
pub struct Bytes<'a>(Unstructured<'a>);

impl<'a> Bytes<'a> {
    /// From the first byte on.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    /// Whether all bytes are used.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// A number of a range.
    pub fn number(&mut self, range: RangeInclusive<u64>) -> u64 {
        let first = *range.start();
        self.0.int_in_range(range).unwrap_or(first)
    }

    /// A number of one of the ranges.
    pub fn of(&mut self, ranges: &[RangeInclusive<u64>]) -> u64 {
        let range = self.number(0..=ranges.len() as u64 - 1);
        self.number(ranges[range as usize].clone())
    }

    /// A number below a bound.
    pub fn below(&mut self, bound: usize) -> usize {
        self.number(0..=bound as u64 - 1) as usize
    }

    /// Yes or no.
    pub fn flag(&mut self) -> bool {
        self.number(0..=1) == 1
    }
}
