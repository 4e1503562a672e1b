//! Prints without a panic on a closed pipe, and formats figures with units for people.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether output to stdout was lost.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Writes to stdout and returns whether all of it was written. A closed pipe is no error: the reader has seen enough.
/// Any other error is reported once.
pub fn stdout(text: &[u8]) -> bool {
    let result = stdout_result(text);
    !result.is_err_and(|error| error.kind() != ErrorKind::BrokenPipe)
}

fn stdout_result(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let result = out.write_all(text).and_then(|()| out.flush());
    if let Err(error) = &result
        && error.kind() != ErrorKind::BrokenPipe
        && !IS_LOST.swap(true, Ordering::Relaxed)
    {
        stderr(&format!("ebbtide: cannot write to stdout: {error}\n"));
    }
    result
}

/// Writes to stdout. `false`: the reader has closed the pipe, or the output failed.
pub fn to_reader(text: &[u8]) -> bool {
    stdout_result(text).is_ok()
}

/// Whether output to stdout was lost.
pub fn is_lost() -> bool {
    IS_LOST.load(Ordering::Relaxed)
}

/// Writes to stderr. Failures are ignored, because there is no place to report them.
pub fn stderr(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Prints one line with a warning.
pub fn warning(text: &str) {
    stderr(&format!("ebbtide: warning: {text}\n"));
}

/// Prints an error with its causes, on one line if they are short.
pub fn error(error: &anyhow::Error) {
    stderr(&format!("ebbtide: {error:#}\n"));
}

/// Whether a stream should get colours and signs: it is a terminal, and `NO_COLOR` is not set.
pub fn is_fancy(stream: &impl IsTerminal) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    stream.is_terminal() && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// The words with commas between them, or the word for no words.
pub fn list(words: &[impl AsRef<str>], none: &str) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.is_empty() {
        true => none.into(),
        false => words.join(", "),
    }
}

/// Bytes as `12.3 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{n} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Bytes in at most five characters: `0`, `512B`, `1.2M`, `340G`.
pub fn short_bytes(n: u64) -> String {
    const UNITS: &str = "BKMGTPE";
    let (mut value, mut unit) = (n as f64, 0);
    // Otherwise 1,023.5 would be shown as 1,024.
    while value >= 1023.5 {
        value /= 1024.0;
        unit += 1;
    }
    let sign = &UNITS[unit..=unit];
    match value {
        0.0 => "0".into(),
        v if unit > 0 && v < 9.95 => format!("{v:.1}{sign}"),
        v => format!("{v:.0}{sign}"),
    }
}

/// Nanoseconds as `1.234 s`, `12.3 ms`, `4.5 µs` or `67 ns`.
pub fn duration(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.3} s", value / 1e9),
    }
}

/// A whole number with commas between thousands.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
        let short = [
            0,
            1023,
            1024,
            10 << 10,
            1_048_500,
            3 << 29,
            340 << 30,
            u64::MAX,
        ];
        let expected = ["0", "1023B", "1.0K", "10K", "1.0M", "1.5G", "340G", "16E"];
        assert_eq!(short.map(short_bytes), expected);
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(1_500), "1.5 µs");
        assert_eq!(duration(2_500_000), "2.5 ms");
        assert_eq!(duration(1_234_000_000), "1.234 s");
        assert_eq!(count(1), "1");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(123_456_789), "123,456,789");
    }
}
