//! Reads files of `/proc`.

use std::fs;
use std::path::Path;

/// The text of a file. Names in it need not be UTF-8: the kernel cuts process names after 15 bytes, even in the
/// middle of a character.
pub fn text(path: impl AsRef<Path>) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Name of a process that returns another one's memory after its end.
pub const HELPER: &str = "ebbtide/exit";

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The program's short name.
    pub name: String,
    /// `R`, `S`, `Z`, …
    pub state: char,
    /// The parent's number.
    pub parent: u32,
    /// Start time. Together with the process number, it identifies one process.
    pub began: u64,
}

impl Stat {
    /// Reads the file of a process; `None` if there is no such process.
    pub fn read(pid: u32) -> Option<Self> {
        Self::parse(&text(format!("/proc/{pid}/stat"))?)
    }

    /// Parses `PID (name) state parent …`. The name may hold any characters.
    fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.rsplit_once(") ")?;
        let (_, name) = head.split_once(" (")?;
        let mut fields = rest.split_ascii_whitespace();
        Some(Stat {
            name: name.replace(char::is_control, "?"),
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            began: fields.nth(17)?.parse().ok()?,
        })
    }

    /// Whether the process has ended, reaped or not.
    pub fn is_over(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Whether this is a helper that has not ended. Its last step may take memory too.
    pub fn is_helper(&self) -> bool {
        self.name == HELPER && !self.is_over()
    }
}

/// The numbers in names of a directory that have the form number and `suffix`.
pub fn numbers_in(dir: impl AsRef<Path>, suffix: &str) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_suffix(suffix)?.parse().ok();
    entries
        .filter_map(|entry| number(entry.file_name().to_str()?))
        .collect()
}

/// The NUL-terminated words of a process's file in `/proc`, such as `cmdline`, made printable.
pub fn words(pid: u32, file: &str) -> Vec<String> {
    let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let words = text
        .split(|&byte| byte == 0)
        .filter(|word| !word.is_empty());
    words
        .map(|word| String::from_utf8_lossy(word).replace(char::is_control, " "))
        .collect()
}

/// The value of a line `Name:   123 kB`, in bytes.
pub fn kib_field(text: &str, name: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The children of the process's main thread. The files of other threads are not read. If a thread's file in `/proc`
/// was read, the kernel removes it there when the thread ends. Until that is done, possibly on another CPU, no `wait`
/// for the process returns.
pub fn children_of_main_thread(pid: u32) -> Vec<u32> {
    let children = text(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let numbers = children.split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let text = |name: &str, state| {
            let numbers: Vec<String> = (4..30).map(|n| n.to_string()).collect();
            format!("12 ({name}) {state} {}\n", numbers.join(" "))
        };
        let stat = Stat::parse(&text("a) (b) R", 'S')).unwrap();
        assert_eq!((stat.name.as_str(), stat.state), ("a) (b) R", 'S'));
        assert_eq!((stat.parent, stat.began), (4, 22));
        assert!(!stat.is_over() && Stat::parse("12 (x").is_none());
        let is_helper = |name, state| Stat::parse(&text(name, state)).unwrap().is_helper();
        assert!(is_helper(HELPER, 'S') && !is_helper(HELPER, 'Z') && !is_helper("sleep", 'S'));
    }

    #[test]
    fn a_field_has_its_whole_name() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(kib_field(status, "VmRSS"), Some(1 << 20));
        assert_eq!(kib_field(status, "Vm"), None);
        assert_eq!(kib_field(status, "Name"), None);
    }
}
