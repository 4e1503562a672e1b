//! Medians and quartiles.

use serde::{Deserialize, Serialize};

/// Summary of repeated measurements of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Number of values.
    pub count: usize,
    /// Half of the values are below.
    pub median: f64,
    /// A quarter of the values is below.
    pub quartile_low: f64,
    /// A quarter of the values is above.
    pub quartile_high: f64,
}

impl Spread {
    /// Of at least one value; values that are not finite are left out.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        (!sorted.is_empty()).then(|| Spread {
            count: sorted.len(),
            median: quantile(&sorted, 0.5),
            quartile_low: quantile(&sorted, 0.25),
            quartile_high: quantile(&sorted, 0.75),
        })
    }

    /// The interquartile range over the median.
    pub fn relative_iqr(&self) -> f64 {
        if self.median == 0.0 {
            return 0.0;
        }
        (self.quartile_high - self.quartile_low) / self.median
    }
}

/// Linear interpolation between the order statistics (type 7).
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let low = at.floor() as usize;
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64)
}

/// The noise of an A/A pair, as a fraction: the larger of what the medians of two
/// runs of the same thing differ by, and half the pooled interquartile range.
pub fn noise(first: &[f64], second: &[f64]) -> Option<f64> {
    let (a, b) = (Spread::of(first)?, Spread::of(second)?);
    let pooled = Spread::of(&[first, second].concat())?;
    if a.median == 0.0 {
        return None;
    }
    let apart = (b.median / a.median - 1.0).abs();
    Some(apart.max(pooled.relative_iqr() / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles() {
        let s = Spread::of(&[4.0, 1.0, 3.0, 2.0, 5.0]).unwrap();
        assert_eq!((s.quartile_low, s.median, s.quartile_high), (2.0, 3.0, 4.0));
        let s = Spread::of(&[1.0, 2.0]).unwrap();
        assert_eq!(
            (s.quartile_low, s.median, s.quartile_high),
            (1.25, 1.5, 1.75)
        );
        let s = Spread::of(&[7.0]).unwrap();
        assert_eq!((s.median, s.relative_iqr(), s.count), (7.0, 0.0, 1));
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[f64::NAN]), None);
    }

    #[test]
    fn noise_of_pairs() {
        assert_eq!(noise(&[10.0], &[10.0]), Some(0.0));
        let apart = noise(&[10.0; 5], &[12.0; 5]).unwrap();
        assert!((apart - 0.2).abs() < 1e-9);
        // Equal medians, wide spread: the spread counts.
        let wide = noise(&[5.0, 10.0, 15.0], &[5.0, 10.0, 15.0]).unwrap();
        assert!(wide > 0.2);
        assert_eq!(noise(&[], &[1.0]), None);
        assert_eq!(noise(&[0.0], &[0.0]), None);
    }
}
