//! Real programs, run by shell scripts that check their own results.
//!
//! A script's last line is `done N`, and N is the same whenever the script did its work. [`watch`](super::watch)
//! describes the marks that it may print before.

use std::time::Duration;

use anyhow::{Context, Result};

use super::watch::watch;
use crate::harness::Run;
use crate::harness::peers::Entry;
use crate::harness::process::{Starter, TIMEOUT, on_path};
use crate::measured::Output;

/// A script: its case, its text, the programs that it needs, and the command that installs them.
type Script = (
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static str,
);

macro_rules! script {
    ($name:literal, $needs:expr, $remedy:literal) => {
        (
            $name,
            include_str!(concat!("scripts/", $name, ".sh")),
            &$needs,
            $remedy,
        )
    };
}

static SCRIPTS: [Script; 15] = [
    (
        "gcc",
        include_str!("../cluster/scripts/gcc.sh"),
        &["cc"],
        "apt-get install gcc",
    ),
    script!("clang", ["clang++"], "apt-get install clang"),
    script!("lua", ["lua5.4"], "apt-get install lua5.4"),
    script!("python", ["python3"], "apt-get install python3"),
    script!("z3", ["z3"], "apt-get install z3"),
    script!("sqlite", ["sqlite3"], "apt-get install sqlite3"),
    script!(
        "redis",
        ["redis-server", "redis-benchmark", "redis-cli"],
        "apt-get install redis"
    ),
    script!("rocksdb", ["db_bench"], "apt-get install rocksdb-tools"),
    script!("ruby", ["ruby"], "apt-get install ruby"),
    script!("node", ["node"], "apt-get install nodejs"),
    script!("sort", ["sort", "awk"], "apt-get install coreutils mawk"),
    script!("git", ["git", "awk"], "apt-get install git mawk"),
    script!(
        "imagemagick",
        ["convert", "identify"],
        "apt-get install imagemagick"
    ),
    script!("ffmpeg", ["ffmpeg"], "apt-get install ffmpeg"),
    script!("json", ["python3"], "apt-get install python3"),
];

fn script(case: &str) -> Option<&'static Script> {
    SCRIPTS.iter().find(|script| script.0 == case)
}

/// Why the program of a case cannot run here, with a remedy.
pub fn missing(case: &str) -> Option<String> {
    let (_, _, needs, remedy) = script(case)?;
    let missing = needs.iter().find(|name| on_path(name).is_none())?;
    Some(format!("{missing} is missing ({remedy})"))
}

/// A real program, by a shell script that checks what it did.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    text: &'static str,
    is_quick: bool,
    rest: Duration,
}

impl Program {
    /// The program of a case. In a quick run it does only a quarter of the work.
    pub fn of(case: &str, is_quick: bool, rest: Duration) -> Option<Self> {
        let (name, text, ..) = *script(case)?;
        Some(Program {
            name,
            text,
            is_quick,
            rest,
        })
    }
}

impl Run for Program {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        let mut command = starter.shell(entry, "");
        let scale = if self.is_quick { "1" } else { "4" };
        command.args(["-c", self.text, "sh", scale]);
        let (last, figures) = watch(command, self.rest, self.rest + TIMEOUT)?;
        let number = last
            .strip_prefix("done ")
            .and_then(|n| n.trim().parse().ok());
        let checksum =
            number.with_context(|| format!("{} did not do its work: {last:?}", self.name))?;
        Ok(Output::new(checksum, figures))
    }

    fn idle(&self) -> Duration {
        self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_said_with_its_remedy() {
        assert_eq!(missing("large"), None);
        if let Some(told) = missing("z3") {
            assert!(told.contains("apt-get"), "{told}");
        }
        assert_eq!(missing("sort"), None);
    }
}
