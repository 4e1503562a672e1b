//! To whom a process belongs: its name, its cgroup and its container, as labels.

use ebbtide_tools::proc;

/// Fewest hexadecimal digits of a container's name.
const CONTAINER_DIGITS: usize = 32;

/// The labels of a process, with braces left out: `pid="7",process="redis-server",cgroup="/system.slice/redis.service"`.
pub fn labels(pid: u32, name: &str) -> String {
    let groups = proc::text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let group = group(&groups);
    let mut labels = format!("pid=\"{pid}\",process=\"{}\"", escaped(name));
    if !group.is_empty() {
        labels.push_str(&format!(",cgroup=\"{}\"", escaped(group)));
    }
    if let Some(container) = container(group) {
        labels.push_str(&format!(",container=\"{container}\""));
    }
    labels
}

/// Resident bytes, as the kernel counts them. `None`: the process has ended.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    proc::kib_field(&proc::text(format!("/proc/{pid}/status"))?, "VmRSS")
}

/// The path of the process's memory cgroup: of version 2, or else of version 1's controller `memory`.
fn group(text: &str) -> &str {
    let of = |wanted: fn(&str) -> bool| {
        text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            wanted(controllers).then_some(path)
        })
    };
    let memory = of(|controllers| controllers.split(',').any(|one| one == "memory"));
    memory.or_else(|| of(str::is_empty)).unwrap_or_default()
}

/// The container's number in the name of its cgroup, such as `docker-NUMBER.scope`, `cri-containerd-NUMBER.scope` or plain `NUMBER`.
fn container(group: &str) -> Option<&str> {
    group.rsplit('/').find_map(|name| {
        let name = name.strip_suffix(".scope").unwrap_or(name);
        let number = name.rsplit('-').next().unwrap_or(name);
        let is_number =
            number.len() >= CONTAINER_DIGITS && number.bytes().all(|b| b.is_ascii_hexdigit());
        is_number.then_some(number)
    })
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_group_is_found_in_both_versions() {
        assert_eq!(
            group("0::/system.slice/a:b.service\n"),
            "/system.slice/a:b.service"
        );
        assert_eq!(group("5:cpu,cpuacct:/x\n4:memory:/y\n0::/z\n"), "/y");
        assert_eq!(group("5:cpu,cpuacct:/x\n0::/z\n"), "/z");
        assert_eq!(group(""), "");
    }

    #[test]
    fn containers_have_numbers() {
        let number = "4f".repeat(32);
        for path in [
            format!("/system.slice/docker-{number}.scope"),
            format!("/docker/{number}"),
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{number}.scope"),
            format!("/user.slice/libpod-{number}.scope/container"),
        ] {
            assert_eq!(container(&path), Some(number.as_str()), "{path}");
        }
        assert_eq!(container("/system.slice/deadbeef.service"), None);
    }

    #[test]
    fn names_are_escaped() {
        assert!(labels(0, "a\"b\\c\nd").contains(r#"process="a\"b\\c\nd""#));
    }
}
