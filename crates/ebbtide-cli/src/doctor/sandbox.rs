//! Checks for layers between this process and the machine's kernel: filters, containers, emulators.

use std::fs;

use ebbtide_tools::{out, proc};

use super::Check;

/// The first namespaces of a machine have fixed numbers, from `PROC_CGROUP_INIT_INO` on.
const MACHINES_OWN: [(&str, &str); 2] = [
    ("pid", "pid:[4026531836]"),
    ("cgroup", "cgroup:[4026531835]"),
];

/// All checks of the sandbox.
pub fn all() -> Vec<Check> {
    vec![seccomp(), container()]
}

/// The value of a line of `/proc/self/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status.lines().find_map(|l| l.strip_prefix(name))?;
    Some(line.strip_prefix(':')?.trim())
}

fn seccomp() -> Check {
    let status = proc::text("/proc/self/status").unwrap_or_default();
    let filters = field(&status, "Seccomp_filters").map_or(String::new(), |n| format!(" ({n})"));
    let value = match field(&status, "Seccomp") {
        Some("0") => "none".into(),
        Some("1") => "strict: only read, write and exit".into(),
        Some("2") => format!("filters{filters}; what they refuse shows in the other lines"),
        _ => "unknown".into(),
    };
    Check::info("seccomp", value)
}

fn container() -> Check {
    let mut signs: Vec<String> = MACHINES_OWN
        .iter()
        .filter(|(name, own)| {
            let link = fs::read_link(format!("/proc/self/ns/{name}"));
            link.is_ok_and(|link| link.as_os_str() != *own)
        })
        .map(|(name, _)| format!("{name} namespace of its own"))
        .collect();
    for file in ["/.dockerenv", "/run/.containerenv"] {
        if fs::exists(file).unwrap_or(false) {
            signs.push(file.into());
        }
    }
    Check::info("container", out::list(&signs, "no sign of one"))
}

/// The name of a system that is not a Linux kernel, recognised by its release and version.
pub fn other_kernel(release: &str, version: &str) -> Option<&'static str> {
    if release.ends_with("-Microsoft") {
        Some("WSL 1")
    } else if release == "4.4.0" && version.contains("Jan 10 15:06:54 PST 2016") {
        Some("gVisor")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_by_their_names() {
        let linux = "#1 SMP PREEMPT_DYNAMIC Debian 6.12.9-1 (2025-01-10)";
        assert_eq!(other_kernel("6.12.9-amd64", linux), None);
        assert_eq!(
            other_kernel("5.15.90.1-microsoft-standard-WSL2", linux),
            None
        );
        assert_eq!(other_kernel("4.4.0-19041-Microsoft", linux), Some("WSL 1"));
        let gvisor = "#1 SMP Sun Jan 10 15:06:54 PST 2016";
        assert_eq!(other_kernel("4.4.0", gvisor), Some("gVisor"));
    }

    #[test]
    fn fields_of_a_status() {
        let status = "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t3\n";
        assert_eq!(field(status, "Seccomp"), Some("2"));
        assert_eq!(field(status, "Seccomp_filters"), Some("3"));
        assert_eq!(field(status, "NoNewPrivs"), None);
    }
}
