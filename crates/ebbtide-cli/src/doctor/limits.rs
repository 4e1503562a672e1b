//! Checks resource limits and control groups.

use std::fs::File;
use std::path::{Path, PathBuf};

use ebbtide_tools::machine::read;
use ebbtide_tools::out;
use rustix::process::{Resource, getrlimit};

use super::Check;
use super::machine::read_number;

/// Below this many mappings, a large heap with huge pages may reach the limit.
const FEW_MAPPINGS: u64 = 65_530;

/// A reservation below this leaves no room to grow.
const SMALL_ADDRESS_SPACE: u64 = 64 << 30;

/// Version 1 writes "no limit" as a number near 2^63.
const V1_UNLIMITED: u64 = 1 << 60;

/// The checks of all limits.
pub fn all() -> Vec<Check> {
    let soft = |resource| getrlimit(resource).current;
    let bytes = |id, resource, low| limit(id, soft(resource), low, out::bytes);
    let mappings = read_number("/proc/sys/vm/max_map_count");
    vec![
        bytes("RLIMIT_AS", Resource::As, SMALL_ADDRESS_SPACE),
        bytes("RLIMIT_DATA", Resource::Data, u64::MAX),
        bytes("RLIMIT_MEMLOCK", Resource::Memlock, 0),
        bytes("RLIMIT_CORE", Resource::Core, 0),
        limit("RLIMIT_NPROC", soft(Resource::Nproc), 0, out::count),
        match mappings {
            Some(_) => limit("vm.max_map_count", mappings, FEW_MAPPINGS, out::count),
            None => Check::info("vm.max_map_count", "unknown"),
        },
        cgroup(),
        pressure_events(),
    ]
}

/// A limit; `None` is unlimited. Values below `low` reduce the effect of Ebbtide.
fn limit(id: &'static str, value: Option<u64>, low: u64, show: fn(u64) -> String) -> Check {
    match value {
        None => Check::info(id, "unlimited"),
        Some(n) if n < low => Check::limited(id, show(n)),
        Some(n) => Check::info(id, show(n)),
    }
}

/// A process's memory control group: the version, the root of all groups, and the path below it.
type Group = (&'static str, &'static str, PathBuf);

fn own_group() -> Option<Group> {
    group_of(&read("/proc/self/cgroup")?)
}

/// The group that `/proc/self/cgroup` names; version 1 counts if it has the memory controller.
fn group_of(text: &str) -> Option<Group> {
    let mut v2 = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let path = PathBuf::from(path.trim_start_matches('/'));
        if controllers.split(',').any(|c| c == "memory") {
            return Some(("v1", "/sys/fs/cgroup/memory", path));
        }
        if controllers.is_empty() {
            v2 = Some(("v2", "/sys/fs/cgroup", path));
        }
    }
    v2
}

/// The tightest limit named `file` from `dir` up to `root`.
fn tightest(root: &Path, dir: &Path, file: &str) -> Option<u64> {
    dir.ancestors()
        .take_while(|d| d.starts_with(root))
        .filter_map(|d| read_number(d.join(file)))
        .min()
}

fn cgroup() -> Check {
    let Some((version, root, group)) = own_group() else {
        return Check::info("cgroup", "none");
    };
    let (limit, usage) = match version {
        "v1" => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        _ => ("memory.max", "memory.current"),
    };
    let root = Path::new(root);
    let mut dir = root.join(group);
    if !dir.is_dir() {
        // In a container, the path may be a path of the host.
        dir = root.to_path_buf();
    }
    let limit = tightest(root, &dir, limit).filter(|n| *n < V1_UNLIMITED);
    let usage = read_number(dir.join(usage));
    let text = format!(
        "{version}, limit {}, usage {}",
        limit.map_or("none".into(), out::bytes),
        usage.map_or("unknown".into(), out::bytes)
    );
    // A group that does not account for memory has no usage file, but it is visible.
    if usage.is_none() && read(dir.join("cgroup.procs")).is_none() {
        return Check::limited("cgroup", text);
    }
    Check::info("cgroup", text)
}

/// Checks for events of memory pressure, besides the headroom below the limit.
fn pressure_events() -> Check {
    const ID: &str = "cgroup_events";
    if let Some(path) = std::env::var_os("MEMORY_PRESSURE_WATCH") {
        let what = format!("MEMORY_PRESSURE_WATCH={}", path.display());
        return match path == "/dev/null" {
            true => Check::limited(ID, what),
            false => Check::ok(ID, what),
        };
    }
    let Some((version, root, group)) = own_group() else {
        return Check::info(ID, "no memory cgroup");
    };
    let is_v1 = version == "v1";
    let file = if is_v1 {
        "cgroup.event_control"
    } else {
        "memory.pressure"
    };
    let path = Path::new(root).join(group).join(file);
    match File::options().write(is_v1).read(!is_v1).open(path) {
        Err(error) => {
            let value = format!("{file}: {error}; only the headroom below limits counts");
            Check::info(ID, value)
        }
        Ok(_) if is_v1 => Check::ok(ID, "memory.pressure_level")
            .with_effect("an event when the kernel reclaims memory from the group"),
        Ok(_) => Check::ok(ID, file).with_effect("the group's own pressure is noticed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups() {
        assert_eq!(
            group_of("0::/user.slice/a\n"),
            Some(("v2", "/sys/fs/cgroup", "user.slice/a".into()))
        );
        let hybrid = "5:cpu,cpuacct:/x\n4:memory:/y:z\n0::/w\n";
        let v1 = ("v1", "/sys/fs/cgroup/memory", "y:z".into());
        assert_eq!(group_of(hybrid), Some(v1));
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
