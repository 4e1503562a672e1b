extern crate std;
use super::*;
use std::os::unix::ffi::OsStrExt;

#[test]
fn mounts_are_told_apart() {
    let v1 = b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
    let cpu = b"32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu";
    let v2 = b"41 31 0:38 /docker/x /sys/fs/cgroup rw shared:4 master:2 - cgroup2 cgroup2 rw";
    let there = Some((&b""[..], &b"/sys/fs/cgroup/memory"[..]));
    assert_eq!(parse_mount(v1, Version::V1), there);
    assert_eq!(parse_mount(v1, Version::V2), None);
    assert_eq!(parse_mount(cpu, Version::V1), None);
    let there = Some((&b"/docker/x"[..], &b"/sys/fs/cgroup"[..]));
    assert_eq!(parse_mount(v2, Version::V2), there);
    assert_eq!(parse_mount(b"1 2 3", Version::V2), None);
}

#[test]
fn names_are_seen_from_the_mount() {
    assert_eq!(below(b"/docker/x/y", b"/docker/x"), Some(&b"/y"[..]));
    assert_eq!(below(b"/docker/x", b"/docker/x"), Some(&b""[..]));
    assert_eq!(below(b"/docker/xy", b"/docker/x"), None);
    assert_eq!(below(b"/a/b", b""), Some(&b"/a/b"[..]));
    // A cgroup namespace writes "outside" this way.
    assert_eq!(below(b"/../../x", b"/y"), None);
}

#[test]
fn levels_go_up_to_the_mount() {
    let path = PathText::join(&[b"/sys/fs/cgroup", b"/a/b"]).unwrap();
    let group = Group {
        version: Version::V2,
        path,
        mount: 14,
        limited: 0b101,
    };
    let texts: [&[u8]; 3] = [
        b"/sys/fs/cgroup/a/b",
        b"/sys/fs/cgroup/a",
        b"/sys/fs/cgroup",
    ];
    assert!(group.levels().map(|len| &path.as_bytes()[..len]).eq(texts));
    assert!(group.limited_levels().eq([18, 14]));
}

/// A directory with files in the kernel's format.
struct Files(std::path::PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let name = std::format!("ebbtide-{name}-{}", std::process::id());
        let files = Self(std::env::temp_dir().join(name));
        std::fs::create_dir_all(files.0.join("own")).unwrap();
        files
    }

    fn write(&self, name: &str, text: &str) -> &Self {
        std::fs::write(self.0.join(name), text).unwrap();
        self
    }

    fn group(&self, version: Version) -> Group {
        let own = self.0.join("own");
        let mount = self.0.as_os_str().len();
        Group::at(version, own.as_os_str().as_bytes(), mount).unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const MIB: u64 = 1 << 20;

fn mib(mib: u64) -> std::string::String {
    std::format!("{}\n", mib * MIB)
}

#[test]
fn every_level_counts_for_itself() {
    let files = Files::new("levels");
    files
        .write("memory.max", &mib(8192))
        .write("memory.current", &mib(1000));
    files
        .write("memory.high", "max\n")
        .write("own/memory.high", &mib(512));
    files
        .write("own/memory.max", &mib(1024))
        .write("own/memory.current", &mib(100));
    let room = |files: &Files| {
        let room = files.group(Version::V2).nearest().unwrap();
        (room.left / MIB, room.limit / MIB)
    };
    assert_eq!(room(&files), (412, 512));
    assert_eq!(files.group(Version::V2).smallest_limit(), Some(512 * MIB));
    // The large limit has less headroom left than is required.
    files.write("memory.current", &mib(8192 - 450));
    assert_eq!(room(&files), (450, 8192));
    // File pages that can go: the inactive ones, and half of the others.
    let stat = std::format!(
        "anon 7\ninactive_file {}\nactive_file {}\n",
        200 * MIB,
        100 * MIB
    );
    files.write("memory.stat", &stat);
    assert_eq!(room(&files), (700, 8192));
    assert_eq!(files.group(Version::V2).smallest_limit(), Some(512 * MIB));
}

#[test]
fn limits_that_others_meet_are_not_hits() {
    let files = Files::new("hits");
    files
        .write("memory.max", &mib(8192))
        .write("own/memory.max", &mib(1024));
    files.write("memory.events", "low 0\nhigh 70\nmax 80\noom 0\n");
    files.write("own/memory.events", "low 9\nhigh 1\nmax 2\noom 5\n");
    // On an old kernel, the parent's file does not count its own hits.
    assert_eq!(files.group(Version::V2).hits(), 3);
    files.write("own/memory.events.local", "low 9\nhigh 1\nmax 1\noom 5\n");
    files.write("memory.events.local", "low 0\nhigh 10\nmax 20\noom 0\n");
    assert_eq!(files.group(Version::V2).hits(), 32);
    // Without a limit there are no hits.
    files.write("memory.max", "max\n");
    assert_eq!(files.group(Version::V2).hits(), 2);
}

#[test]
fn version_1() {
    let files = Files::new("v1");
    files.write("memory.limit_in_bytes", "9223372036854771712\n");
    files
        .write("memory.failcnt", "100\n")
        .write("own/memory.failcnt", "3\n");
    files.write("own/memory.limit_in_bytes", &mib(100));
    files.write("own/memory.usage_in_bytes", &mib(90));
    files.write(
        "own/memory.stat",
        &std::format!("total_inactive_file {}\n", 5 * MIB),
    );
    let group = files.group(Version::V1);
    let room = Room::new(15 * MIB, 100 * MIB);
    assert_eq!((group.nearest(), group.hits()), (Some(room), 3));
    assert!(group.has_memory());
}

#[test]
fn a_mount_point_may_be_below_the_root() {
    let files = Files::new("root");
    let path = files.0.as_os_str().as_bytes();
    let group = Group::at(Version::V2, path, path.len()).unwrap();
    assert!(!group.is_below_the_root());
    files.write("cgroup.events", "populated 1\n");
    assert!(group.is_below_the_root());
    assert!(files.group(Version::V2).is_below_the_root());
}

/// Wherever the tests run: a group that is found can be read, or none is found.
#[test]
fn the_own_group_is_readable() {
    let groups = Groups::find();
    if let Some(group) = groups.memory {
        assert!(
            AtPath(&group, group.path.as_bytes().len())
                .number(Figure::Usage)
                .is_some()
        );
        let _ = (group.nearest(), group.hits());
    }
    if let Some(group) = groups.unified {
        assert_eq!(group.version(), Version::V2);
    }
}
