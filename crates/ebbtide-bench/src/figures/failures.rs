//! Failures for a reader: one line for each reason, with the allocators that it concerns.

use crate::figures::labels;

/// A failure of one process, in the form that the harness writes: `CASE in ALLOCATOR, round N: WHY`.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure<'a> {
    /// The case.
    pub case: &'a str,
    /// By name.
    pub allocator: &'a str,
    /// What happened.
    pub why: &'a str,
}

impl<'a> Failure<'a> {
    /// None for what concerns more than one process.
    pub fn read(text: &'a str) -> Option<Self> {
        let (case, rest) = text.split_once(" in ")?;
        let (allocator, rest) = rest.split_once(", round ")?;
        let (_, why) = rest.split_once(": ")?;
        Some(Failure {
            case,
            allocator,
            why,
        })
    }
}

/// Each reason once.
pub fn summary(failures: &[String]) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<String>, usize)> = Vec::new();
    for text in failures {
        let failure = Failure::read(text);
        let why = failure.as_ref().map_or(text.as_str(), |f| f.why);
        let at = reasons.iter().position(|(other, ..)| *other == why);
        let at = at.unwrap_or_else(|| {
            reasons.push((why, Vec::new(), 0));
            reasons.len() - 1
        });
        let (_, allocators, count) = &mut reasons[at];
        *count += 1;
        let label = failure.map(|f| labels::allocator(f.allocator));
        allocators.extend(label.filter(|label| !allocators.contains(label)));
    }
    let line = |(why, allocators, count): (&str, Vec<String>, usize)| {
        let times = match count {
            1 => "once".into(),
            _ => format!("{count} times"),
        };
        match allocators.is_empty() {
            true => why.to_owned(),
            false => format!("{why} ({times}: {})", allocators.join("; ")),
        }
    };
    reasons.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_said_once() {
        let failures = [
            "exit_4k in ebbtide, exit=detached, round 1: ends with status: 1",
            "exit_thp in ebbtide, exit=detached, round 2: ends with status: 1",
            "exit_4k in glibc, round 1: ends with status: 1",
            "exit_4k in glibc, round 2: killed",
            "no swap here",
        ];
        let lines = summary(&failures.map(String::from));
        assert_eq!(
            lines,
            [
                "ends with status: 1 (3 times: Ebbtide, detached exit; glibc)",
                "killed (once: glibc)",
                "no swap here"
            ]
        );
    }
}
