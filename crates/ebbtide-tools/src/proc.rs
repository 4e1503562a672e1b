//! Reads what `/proc` says.

use std::fs;
use std::path::Path;

/// The text of a file. Names in it need not be UTF-8: the kernel cuts those of processes after 15 bytes, in the middle of a
/// character too.
pub fn text(path: impl AsRef<Path>) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The value of a line `Name:   123 kB`, in bytes.
pub fn kib_field(text: &str, name: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The children of the process's main thread. Its other threads are not looked at: a thread that somebody has seen in
/// `/proc` is taken off there when it ends, and until that is done, on whatever CPU, the kernel lets nobody's `wait` return.
pub fn children_of_main_thread(pid: u32) -> Vec<u32> {
    let children = text(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let numbers = children.split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_its_whole_name() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(kib_field(status, "VmRSS"), Some(1 << 20));
        assert_eq!(kib_field(status, "Vm"), None);
        assert_eq!(kib_field(status, "Name"), None);
    }
}
