//! Sizes that real programs ask for. `sizes.txt` has the counts, and the command that counts.

use anyhow::{Context, Result};

use crate::measured::Random;

/// Sizes with the number of requests up to each of them.
pub struct Sizes {
    sizes: Vec<usize>,
    upto: Vec<u64>,
}

impl Sizes {
    /// The sizes of the file.
    pub fn known() -> Result<Self> {
        Self::parse(include_str!("sizes.txt"))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut all = Sizes {
            sizes: Vec::new(),
            upto: Vec::new(),
        };
        let mut sum = 0;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let parts = line
                .split_once(' ')
                .and_then(|(size, count)| Some((size.parse().ok()?, count.parse::<u64>().ok()?)));
            let (size, count) = parts.with_context(|| format!("no size with a count: {line:?}"))?;
            sum += count;
            all.sizes.push(size);
            all.upto.push(sum);
        }
        all.upto.last().context("no sizes")?;
        Ok(all)
    }

    /// A random size: as often as programs ask for it.
    pub fn draw(&self, random: &mut Random) -> usize {
        let all = self.upto.last().copied().unwrap_or(1);
        let at = (random.next() >> 16) % all;
        self.sizes[self.upto.partition_point(|&upto| upto <= at)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_come_as_often_as_they_were_asked_for() {
        let sizes = Sizes::parse("# a, b\n16 1\n64 3").unwrap();
        let mut random = Random(1);
        let small = (0..40_000).filter(|_| sizes.draw(&mut random) == 16);
        let small = small.count();
        assert!((9_000..11_000).contains(&small), "{small}");
        assert!(Sizes::parse("16").is_err() && Sizes::parse("").is_err());
        assert!(Sizes::known().unwrap().sizes.len() > 20);
    }
}
