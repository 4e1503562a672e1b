//! A histogram of times. Buckets are at most 1/32 of their value wide; the largest value is exact.
//!
//! Recording a value allocates nothing and takes a few nanoseconds.
//!
//! Invariants:
//! - `INV-HIST-1`: `low(bucket(v)) <= v`, and `v - low(bucket(v)) <= v / 32`.

/// Buckets for each power of two.
const PARTS: u64 = 32;
const BUCKETS: usize = (64 - 5 + 1) * PARTS as usize;

/// A histogram.
#[derive(Debug)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    total: u64,
    largest: u64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Self {
        Histogram {
            counts: Box::new([0; BUCKETS]),
            total: 0,
            largest: 0,
        }
    }

    /// Counts a value.
    #[inline]
    pub fn add(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.total += 1;
        self.largest = self.largest.max(value);
    }

    /// The largest value.
    pub fn largest(&self) -> u64 {
        self.largest
    }

    /// The value below which a share `q` of all values lies; 0 if there are none.
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = ((self.total as f64 * q).ceil() as u64).max(1);
        let mut sum = 0;
        for (i, count) in self.counts.iter().enumerate() {
            sum += count;
            if sum >= rank {
                return low(i);
            }
        }
        self.largest
    }
}

fn bucket(value: u64) -> usize {
    if value < PARTS {
        return value as usize;
    }
    let shift = u64::from(value.ilog2()) - 5;
    // The top 6 bits of the value; the first of them is set.
    (shift * PARTS + (value >> shift)) as usize
}

fn low(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * PARTS {
        return bucket;
    }
    let shift = bucket / PARTS - 1;
    (bucket - shift * PARTS) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_and_in_order() {
        let mut value = 1u64;
        let mut last = 0;
        while value < 1 << 62 {
            for v in [value, value + 1, value * 3 / 2] {
                let l = low(bucket(v));
                assert!(l <= v && v - l <= v / 32, "{v} {l}");
            }
            assert!(bucket(value) > last);
            last = bucket(value);
            value *= 2;
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles() {
        let mut h = Histogram::new();
        assert_eq!(h.quantile(0.5), 0);
        (1..=1000).for_each(|v| h.add(v));
        assert_eq!((h.total, h.largest()), (1000, 1000));
        assert!((484..=500).contains(&h.quantile(0.5)));
        assert!((960..=990).contains(&h.quantile(0.99)));
    }
}
