//! Parsers for values of flags: sizes, times, process numbers. An error message names the accepted form.

use std::time::Duration;

use ebbtide_interface::keys;

const LEAST_BYTES: u64 = 1 << 20;
/// The longest units come first: `ms` ends with `s`.
const UNITS: [(&str, f64); 6] = [
    ("min", 60.0),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86400.0),
];

/// A size of memory to fill.
pub fn size(text: &str) -> Result<u64, String> {
    keys::size(text.as_bytes())
        .filter(|n| *n >= LEAST_BYTES)
        .ok_or_else(|| "it takes at least 1M, with a suffix K, M or G".into())
}

/// A time: seconds, or a number with its unit.
pub fn time(text: &str) -> Result<Duration, String> {
    parse_time(text).ok_or_else(|| {
        "it takes seconds, or a number with ms, s, m, h or d, such as 90s or 5m".into()
    })
}

/// A [`size`] as it was written, to be passed on to another program.
pub fn size_text(text: &str) -> Result<String, String> {
    size(text).map(|_| text.into())
}

/// A [`time`] as it was written, to be passed on to another program.
pub fn time_text(text: &str) -> Result<String, String> {
    time(text).map(|_| text.into())
}

/// The bytes between two sampled allocations, as they were written.
pub fn rate(text: &str) -> Result<String, String> {
    match keys::size(text.as_bytes()) {
        Some(1..=keys::MAX_RATE) => Ok(text.into()),
        _ => Err("it takes bytes, with a suffix K, M or G, such as 512K".into()),
    }
}

/// The number of rounds of a comparison.
pub fn rounds(text: &str) -> Result<u32, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (1..=100).contains(number));
    number.ok_or_else(|| "it takes a whole number from 1 to 100".into())
}

/// The time between two samples.
pub fn interval(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(100)..=Duration::from_secs(3600);
    parse_time(text)
        .filter(|time| range.contains(time))
        .ok_or_else(|| "it takes seconds from 0.1 to 3600, or such as 250ms or 5m".into())
}

/// A process number.
pub fn process(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| match text.contains(char::is_alphabetic) {
        true => format!("it takes a process number; 'pgrep {text}' may find it"),
        false => "it takes a process number; 'ebbtide top' lists processes under Ebbtide".into(),
    })
}

/// A process number, where a program to start may stand too.
pub fn process_or_program(text: &str) -> Result<u32, String> {
    process(text).map_err(|error| format!("{error}. A program to start stands behind '--'"))
}

/// `90`, `1.5`, `250ms`, `5m`; at most some 30,000 years.
fn parse_time(text: &str) -> Option<Duration> {
    const MOST_S: f64 = 1e12;
    let split = UNITS
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)));
    let (number, unit_s) = split.unwrap_or((text, 1.0));
    // `parse` alone would accept signs, exponents and `inf`.
    let is_plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let seconds = number.parse::<f64>().ok().filter(|_| is_plain)? * unit_s;
    (seconds <= MOST_S).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_with_and_without_a_unit() {
        let ms = Duration::from_millis;
        for (text, want) in [
            ("0", ms(0)),
            ("90", ms(90_000)),
            ("90s", ms(90_000)),
            ("0.1", ms(100)),
            ("250ms", ms(250)),
            ("5m", ms(300_000)),
            ("5min", ms(300_000)),
            ("1.5h", ms(5_400_000)),
            ("2d", ms(172_800_000)),
        ] {
            assert_eq!(time(text), Ok(want), "{text}");
        }
        for bad in [
            "",
            "s",
            ".",
            "-1",
            "+1",
            "1e3",
            "inf",
            "NaN",
            "5 m",
            "5M",
            "1h30m",
            "1y",
            "5mm",
            "99999999999999999d",
        ] {
            let told = time(bad).unwrap_err();
            assert!(told.contains("90s or 5m"), "{bad}: {told}");
        }
    }

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(interval("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(interval("1h"), Ok(Duration::from_secs(3600)));
        for bad in ["0", "99ms", "3601", "2h", "x"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_have_a_least() {
        assert_eq!(size("1M"), Ok(1 << 20));
        assert!(size("1023K").is_err() && size("1T").is_err());
    }
}
