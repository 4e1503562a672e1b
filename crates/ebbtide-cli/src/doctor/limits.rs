//! Resource limits and control groups.

use std::path::{Path, PathBuf};

use ebbtide_tools::machine::read;
use ebbtide_tools::out;
use rustix::process::{Resource, getrlimit};

use super::Check;
use super::machine::read_number;

/// Fewer mappings than this may not be enough for a large heap beside huge pages.
const FEW_MAPPINGS: u64 = 65_530;

/// A reservation below this leaves no room to grow.
const SMALL_ADDRESS_SPACE: u64 = 64 << 30;

/// Version 1 writes "no limit" as a number near 2^63.
const V1_UNLIMITED: u64 = 1 << 60;

/// Every limit.
pub fn all() -> Vec<Check> {
    vec![
        address_space(),
        data(),
        plain("RLIMIT_MEMLOCK", Resource::Memlock, true),
        plain("RLIMIT_CORE", Resource::Core, true),
        plain("RLIMIT_NPROC", Resource::Nproc, false),
        mappings(),
        cgroup(),
        pressure_events(),
    ]
}

/// The soft limit; `None` is unlimited.
fn soft_limit(resource: Resource) -> Option<u64> {
    getrlimit(resource).current
}

fn plain(id: &'static str, resource: Resource, in_bytes: bool) -> Check {
    let value = match soft_limit(resource) {
        None => "unlimited".into(),
        Some(n) if in_bytes => out::bytes(n),
        Some(n) => out::count(n),
    };
    Check::info(id, value)
}

fn address_space() -> Check {
    match soft_limit(Resource::As) {
        Some(n) if n < SMALL_ADDRESS_SPACE => Check::limited(
            "RLIMIT_AS",
            out::bytes(n),
            "the reservation is smaller, and large requests fail sooner",
            "limit resident memory with a control group (memory.max) in place of 'ulimit -v'",
        ),
        Some(n) => Check::info("RLIMIT_AS", out::bytes(n)),
        None => Check::info("RLIMIT_AS", "unlimited"),
    }
}

fn data() -> Check {
    match soft_limit(Resource::Data) {
        Some(n) => Check::limited(
            "RLIMIT_DATA",
            out::bytes(n),
            "opened memory counts against it, dirty or not",
            "limit resident memory with a control group (memory.max) in place of 'ulimit -d'",
        ),
        None => Check::info("RLIMIT_DATA", "unlimited"),
    }
}

fn mappings() -> Check {
    match read_number("/proc/sys/vm/max_map_count") {
        Some(n) if n < FEW_MAPPINGS => Check::limited(
            "vm.max_map_count",
            out::count(n),
            "programs with many mappings may meet it",
            "sysctl -w vm.max_map_count=65530",
        ),
        Some(n) => Check::info("vm.max_map_count", out::count(n)),
        None => Check::info("vm.max_map_count", "unknown"),
    }
}

/// Where a process's memory control group is.
#[derive(Debug, PartialEq, Eq)]
enum Group {
    V1(PathBuf),
    V2(PathBuf),
}

/// The group that `/proc/self/cgroup` names; version 1 counts if it has the memory controller.
fn group_of(text: &str) -> Option<Group> {
    let mut v2 = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let path = PathBuf::from(path.trim_start_matches('/'));
        if controllers.split(',').any(|c| c == "memory") {
            return Some(Group::V1(path));
        }
        if controllers.is_empty() {
            v2 = Some(Group::V2(path));
        }
    }
    v2
}

/// The tightest limit named `file` from `dir` up to `root`.
fn tightest(root: &Path, dir: &Path, file: &str) -> Option<u64> {
    dir.ancestors()
        .take_while(|d| d.starts_with(root))
        .filter_map(|d| read_number(&d.join(file).to_string_lossy()))
        .min()
}

fn cgroup() -> Check {
    let text = read("/proc/self/cgroup").unwrap_or_default();
    let (version, root, group, limit, usage) = match group_of(&text) {
        Some(Group::V2(g)) => ("v2", "/sys/fs/cgroup", g, "memory.max", "memory.current"),
        Some(Group::V1(g)) => (
            "v1",
            "/sys/fs/cgroup/memory",
            g,
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        ),
        None => return Check::info("cgroup", "none"),
    };
    let root = Path::new(root);
    let mut dir = root.join(group);
    if !dir.is_dir() {
        // In a container the path may be one of the host's.
        dir = root.to_path_buf();
    }
    let limit = tightest(root, &dir, limit).filter(|n| *n < V1_UNLIMITED);
    let usage = read_number(&dir.join(usage).to_string_lossy());
    let text = format!(
        "{version}, limit {}, usage {}",
        limit.map_or("none".into(), out::bytes),
        usage.map_or("unknown".into(), out::bytes)
    );
    // Groups that account no memory have no usage, but they are to be seen.
    if usage.is_none() && read(&dir.join("cgroup.procs").to_string_lossy()).is_none() {
        return Check::limited(
            "cgroup",
            text,
            "distances to limits are not known; what the machine has left counts",
            "make the cgroup file system visible in the container",
        );
    }
    Check::info("cgroup", text)
}

/// What tells that the group is short of memory, beside the distance to its limit.
fn pressure_events() -> Check {
    const ID: &str = "cgroup_events";
    if let Some(path) = std::env::var_os("MEMORY_PRESSURE_WATCH") {
        let what = format!("MEMORY_PRESSURE_WATCH={}", path.display());
        return if path == "/dev/null" {
            Check::limited(
                ID,
                what,
                "no events are wanted; only the distance to limits counts",
                "MemoryPressureWatch=yes in the systemd unit, if that is not meant",
            )
        } else {
            Check::ok(ID, what, "gives everything back when it says so")
        };
    }
    let text = read("/proc/self/cgroup").unwrap_or_default();
    let (dir, file) = match group_of(&text) {
        Some(Group::V1(group)) => (
            Path::new("/sys/fs/cgroup/memory").join(group),
            "cgroup.event_control",
        ),
        Some(Group::V2(group)) => (Path::new("/sys/fs/cgroup").join(group), "memory.pressure"),
        None => return Check::info(ID, "no memory cgroup"),
    };
    let opened = std::fs::File::options()
        .write(file == "cgroup.event_control")
        .read(file == "memory.pressure")
        .open(dir.join(file));
    match opened {
        Ok(_) if file == "memory.pressure" => {
            Check::ok(ID, "memory.pressure", "the group's own pressure is noticed")
        }
        Ok(_) => Check::ok(
            ID,
            "memory.pressure_level",
            "noticed when the group is reclaimed from",
        ),
        Err(error) => Check::info(ID, format!("{file}: {error}; distances to limits count")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups() {
        assert_eq!(
            group_of("0::/user.slice/a\n"),
            Some(Group::V2("user.slice/a".into()))
        );
        let hybrid = "5:cpu,cpuacct:/x\n4:memory:/y:z\n0::/w\n";
        assert_eq!(group_of(hybrid), Some(Group::V1("y:z".into())));
        assert_eq!(group_of(""), None);
    }

    #[test]
    fn tightest_limit_of_the_ancestors() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(root.path().join("a/m"), "100\n").unwrap();
        std::fs::write(inner.join("m"), "max\n").unwrap();
        assert_eq!(tightest(root.path(), &inner, "m"), Some(100));
        std::fs::write(inner.join("m"), "50\n").unwrap();
        assert_eq!(tightest(root.path(), &inner, "m"), Some(50));
    }
}
