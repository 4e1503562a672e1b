//! Mean and spread of a value over several rounds, and the ratio of two of them.

use serde::Serialize;

/// A value over all rounds of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The lowest value.
    pub min: u64,
    /// The highest value.
    pub max: u64,
}

impl Spread {
    /// The spread of these values; `None` if there are none, or if one is not known.
    pub fn of(values: impl IntoIterator<Item = Option<u64>>) -> Option<Self> {
        let values: Vec<u64> = values.into_iter().collect::<Option<_>>()?;
        let (min, max) = (*values.iter().min()?, *values.iter().max()?);
        let sum: f64 = values.iter().map(|&value| value as f64).sum();
        Some(Spread {
            mean: sum / values.len() as f64,
            min,
            max,
        })
    }

    /// Half the distance between the lowest and the highest value, in percent of the mean.
    pub fn percent(&self) -> f64 {
        match self.mean {
            0.0 => 0.0,
            mean => (self.max - self.min) as f64 / 2.0 / mean * 100.0,
        }
    }

    fn meets(&self, other: &Self) -> bool {
        self.min <= other.max && other.min <= self.max
    }
}

/// A value with Ebbtide beside the same value without.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// With Ebbtide.
    pub with: Spread,
    /// Without.
    pub without: Spread,
    /// The first mean divided by the second; none if that is 0.
    pub ratio: Option<f64>,
    /// Whether the difference is within the spread: some round with Ebbtide lies between rounds without it, or the other way round. None after one
    /// round, when no spread is known.
    pub is_within_spread: Option<bool>,
}

impl Pair {
    /// Puts both side by side.
    pub fn new(with: Spread, without: Spread, rounds: usize) -> Self {
        Pair {
            with,
            without,
            ratio: (without.mean > 0.0).then(|| with.mean / without.mean),
            is_within_spread: (rounds > 1).then(|| with.meets(&without)),
        }
    }

    /// The ratio as text: `≈` if the difference is within the spread.
    pub fn shown(&self) -> String {
        match (self.is_within_spread, self.ratio) {
            (Some(true), _) => "≈".into(),
            (_, Some(ratio)) => format!("{ratio:.2}"),
            (_, None) => String::new(),
        }
    }

    /// The ratio in a sentence about `what`.
    pub fn sentence(&self, what: &str) -> Option<String> {
        match (self.is_within_spread, self.ratio) {
            (Some(true), _) => Some(format!("≈ the same {what}")),
            (_, Some(ratio)) => Some(format!("{ratio:.2} times the {what}")),
            (_, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: &[u64]) -> Spread {
        Spread::of(values.iter().copied().map(Some)).unwrap()
    }

    #[test]
    fn a_spread_is_half_the_distance() {
        let s = spread(&[90, 100, 110]);
        assert_eq!((s.mean, s.min, s.max, s.percent()), (100.0, 90, 110, 10.0));
        assert_eq!(spread(&[0, 0]).percent(), 0.0);
        assert_eq!(Spread::of([Some(1), None]), None);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_difference_within_the_spread_is_none() {
        let pair =
            |with: &[u64], without: &[u64]| Pair::new(spread(with), spread(without), with.len());
        assert_eq!(pair(&[10, 20, 30], &[29, 40, 50]).shown(), "≈");
        assert_eq!(
            pair(&[10, 20, 30], &[29, 40, 50]).sentence("time").unwrap(),
            "≈ the same time"
        );
        assert_eq!(pair(&[10, 20, 30], &[31, 40, 49]).shown(), "0.50");
        assert_eq!(
            pair(&[31, 40, 49], &[10, 20, 30])
                .sentence("memory")
                .unwrap(),
            "2.00 times the memory"
        );
        // One round has no spread.
        assert_eq!(pair(&[5], &[5]).shown(), "1.00");
        assert_eq!(pair(&[5], &[0]).shown(), "");
        assert_eq!(pair(&[5], &[0]).sentence("time"), None);
    }
}
