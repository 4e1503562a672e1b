//! The memory cgroup of this process: its place, its limits and its parents' limits, and its memory usage.
//!
//! `/proc/self/cgroup` has the group's name, and `/proc/self/mountinfo` has the place where the hierarchy is mounted.
//! In a container, the name may lead outside of the mount. Then the mount's own root is taken, which is the
//! container's group. A group that cannot be read is treated as missing.

use super::Room;
use crate::file::{self, PathText, Text};

/// Version 1 writes "no limit" as a number near the top.
const UNLIMITED: u64 = 1 << 60;
/// Maximum number of levels read, from the process's own group upwards.
const MAX_LEVELS: usize = 32;

/// The version of the cgroup file interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// `memory.limit_in_bytes` and the like.
    V1,
    /// `memory.max` and the like.
    V2,
}

/// The files from which a level's headroom is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Figure {
    /// The limit of the level.
    Limit,
    /// The usage above which the kernel slows the group down. Version 2 only.
    High,
    /// The memory in use.
    Usage,
    /// The memory in use by kind (`memory.stat`).
    Kinds,
}

impl Figure {
    /// All of these files.
    pub(crate) const ALL: [Self; 4] = [Self::Limit, Self::High, Self::Usage, Self::Kinds];

    fn name(self, version: Version) -> Option<&'static [u8]> {
        match (self, version) {
            (Self::Limit, Version::V1) => Some(b"/memory.limit_in_bytes"),
            (Self::Limit, Version::V2) => Some(b"/memory.max"),
            (Self::High, Version::V1) => None,
            (Self::High, Version::V2) => Some(b"/memory.high"),
            (Self::Usage, Version::V1) => Some(b"/memory.usage_in_bytes"),
            (Self::Usage, Version::V2) => Some(b"/memory.current"),
            (Self::Kinds, _) => Some(b"/memory.stat"),
        }
    }
}

/// A level of the hierarchy, whichever way its files are read.
pub(crate) trait Level {
    /// One of the level's files. `None`: there is none.
    fn text(&self, figure: Figure) -> Option<impl Text>;

    /// The version of its files.
    fn version(&self) -> Version;

    fn number(&self, figure: Figure) -> Option<u64> {
        self.text(figure)?.number()
    }

    /// The level's limit, if there is one.
    fn limit(&self) -> Option<u64> {
        let limits = [Figure::Limit, Figure::High].map(|figure| self.number(figure));
        let limit = limits.into_iter().flatten().min();
        limit.filter(|&limit| limit < UNLIMITED)
    }

    /// The headroom below the limit, if there is a limit.
    fn room(&self) -> Option<Room> {
        let (limit, usage) = (self.limit()?, self.number(Figure::Usage)?);
        let mut left = limit.saturating_sub(usage);
        if left < limit / 4 {
            // The kernel drops pages of files first, so a group that has read many files is not short of memory.
            left = left.saturating_add(self.file_cache()).min(limit);
        }
        Some(Room::new(left, limit))
    }

    /// Bytes of files that the kernel can drop: the inactive ones, and half of the others.
    fn file_cache(&self) -> u64 {
        let keys: [(&[u8], u32); 2] = match self.version() {
            Version::V1 => [(b"total_inactive_file ", 0), (b"total_active_file ", 1)],
            Version::V2 => [(b"inactive_file ", 0), (b"active_file ", 1)],
        };
        let kinds = self.text(Figure::Kinds);
        kinds.and_then(|kinds| sum(&kinds, &keys)).unwrap_or(0)
    }
}

/// The limit with the least headroom, of all levels.
pub(crate) fn nearest(levels: impl Iterator<Item = impl Level>) -> Option<Room> {
    let rooms = levels.filter_map(|level| level.room());
    rooms.fold(None, |nearest, room| Some(room.nearer(nearest)))
}

/// The sum of the numbers with these keys in a text, each shifted right. `None`: the text cannot be read.
fn sum(text: &impl Text, keys: &[(&[u8], u32)]) -> Option<u64> {
    let mut sum = 0u64;
    let there = text.lines(|line| {
        for (key, shift) in keys {
            let value = line.strip_prefix(*key).and_then(file::parse_number);
            sum = sum.wrapping_add(value.unwrap_or(0) >> shift);
        }
        true
    });
    there.then_some(sum)
}

/// A level of a group, identified by the length of its path. Its files are opened for each reading.
struct AtPath<'a>(&'a Group, usize);

impl Level for AtPath<'_> {
    fn text(&self, figure: Figure) -> Option<impl Text> {
        let Self(group, len) = *self;
        group.path_of(len, figure.name(group.version)?)
    }

    fn version(&self) -> Version {
        self.0.version
    }
}

/// See the module's header.
#[derive(Clone, PartialEq, Eq)]
pub struct Group {
    version: Version,
    /// Its directory.
    path: PathText,
    /// Length of the mount point, the first part of the path.
    mount: usize,
    /// The levels that had a limit at the last check, one bit each; the own level is the first bit.
    limited: u32,
}

/// The cgroups of this process.
pub struct Groups {
    /// The group that accounts for the memory of this process. `None`: none is visible.
    pub memory: Option<Group>,
    /// The group of version 2, whether or not it accounts for memory: it has PSI in any case. `None`: there is none,
    /// or it is the root, whose PSI is the machine's.
    pub unified: Option<Group>,
}

impl Groups {
    /// Finds the cgroups of this process.
    pub fn find() -> Self {
        let unified = Group::place(Version::V2);
        let with_memory = |group: &Group| group.has_memory();
        let memory = unified.clone().filter(with_memory);
        let mut memory = memory.or_else(|| Group::place(Version::V1).filter(with_memory));
        if let Some(group) = &mut memory {
            group.look_for_limits();
        }
        Self {
            memory,
            unified: unified.filter(Group::is_below_the_root),
        }
    }
}

impl Group {
    /// A group whose files are in `path`; its parents reach up to the first `mount` bytes of it. `None`: the path is
    /// too long.
    #[doc(hidden)]
    pub fn at(version: Version, path: &[u8], mount: usize) -> Option<Self> {
        let mut group = Self {
            version,
            path: PathText::join(&[path])?,
            mount,
            limited: 0,
        };
        group.look_for_limits();
        Some(group)
    }

    fn has_memory(&self) -> bool {
        // Without the memory controller in this group, a parent may still account for its memory.
        let usage = Figure::Usage.name(self.version);
        usage.is_some_and(|usage| self.levels().any(|len| self.file(len, usage).is_some()))
    }

    /// Whether the group has events. Only the root has none. A container's or a namespace's mount point is not the
    /// root.
    fn is_below_the_root(&self) -> bool {
        let len = self.path.as_bytes().len();
        len > self.mount || self.file(len, b"/cgroup.events").is_some()
    }

    fn place(version: Version) -> Option<Self> {
        let name = named(version)?;
        let name = name.as_bytes();
        let at = |at: &[u8], inside: &[u8]| {
            let path = PathText::join(&[at, inside])?;
            let (mount, limited) = (at.len(), 0);
            let group = Self {
                version,
                path,
                mount,
                limited,
            };
            group.is_there().then_some(group)
        };
        let mut found: Option<Self> = None;
        // The number of bytes of the name that are below the mount.
        let mut seen = None;
        file::lines(c"/proc/self/mountinfo", |line| {
            let Some((root, mount)) = parse_mount(line, version) else {
                return true;
            };
            let inside = below(name, root);
            let sees = inside.map(<[u8]>::len);
            // The mount that shows most of the hierarchy wins. If the name leads outside of all mounts, the mount's
            // own root is the container's group. A mount may be hidden by other mounts over it.
            if (found.is_none() || sees > seen)
                && let Some(group) = at(mount, inside.unwrap_or(b""))
            {
                (found, seen) = (Some(group), sees);
            }
            seen != Some(name.len())
        });
        found.or_else(|| {
            // Without mountinfo, use the usual place.
            let usual: &[u8] = match version {
                Version::V1 => b"/sys/fs/cgroup/memory",
                Version::V2 => b"/sys/fs/cgroup",
            };
            at(usual, name).or_else(|| at(usual, b""))
        })
    }

    /// Whether the group is visible and has not been removed.
    pub fn is_there(&self) -> bool {
        let sign: &[u8] = match self.version {
            Version::V1 => b"/cgroup.procs",
            // A threaded group does not list its processes.
            Version::V2 => b"/cgroup.controllers",
        };
        self.file(self.path.as_bytes().len(), sign).is_some()
    }

    /// Whether both are the same group.
    pub fn is_at(&self, other: &Self) -> bool {
        self.version == other.version && self.path.as_bytes() == other.path.as_bytes()
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The path of one of the group's files.
    pub(crate) fn own_file(&self, name: &[u8]) -> Option<PathText> {
        PathText::join(&[self.path.as_bytes(), name])
    }

    /// Finds the levels that have a limit. Until the next call, the other levels are not read.
    pub fn look_for_limits(&mut self) {
        let with = self.levels().enumerate();
        let with = with.filter(|&(_, len)| self.limit(len).is_some());
        self.limited = with.fold(0, |mask, (level, _)| mask | 1 << level);
    }

    /// The limit with the least headroom, of all levels.
    pub fn nearest(&self) -> Option<Room> {
        nearest(self.limited_levels().map(|len| AtPath(self, len)))
    }

    /// The smallest limit of all levels.
    pub fn smallest_limit(&self) -> Option<u64> {
        self.limited_levels()
            .filter_map(|len| self.limit(len))
            .min()
    }

    /// Paths of the files of the own level and of each level with a limit.
    pub(super) fn to_keep(&self) -> impl Iterator<Item = [Option<PathText>; 4]> + '_ {
        let levels = self.levels().enumerate();
        let kept = levels.filter(|&(level, _)| level == 0 || self.limited >> level & 1 == 1);
        kept.map(|(_, len)| Figure::ALL.map(|figure| self.path_of(len, figure.name(self.version)?)))
    }

    /// How often a limit was hit so far, on all levels that have one. Hits of other groups below the same parents do
    /// not count.
    pub fn hits(&self) -> u64 {
        self.limited_levels()
            .map(|len| match self.version {
                Version::V1 => self
                    .path_of(len, b"/memory.failcnt")
                    .and_then(|path| path.number())
                    .unwrap_or(0),
                Version::V2 => self.events(len),
            })
            .fold(0, u64::wrapping_add)
    }

    fn events(&self, len: usize) -> u64 {
        let keys: [(&[u8], u32); 2] = [(b"high ", 0), (b"max ", 0)];
        let is_own = len == self.path.as_bytes().len();
        // Before Linux 5.2 there is only the file that also counts the groups below.
        let sum_of = |name| self.path_of(len, name).and_then(|path| sum(&path, &keys));
        let all = || is_own.then(|| sum_of(b"/memory.events"));
        sum_of(b"/memory.events.local")
            .or_else(|| all().flatten())
            .unwrap_or(0)
    }

    /// Lengths of the paths from the own group up to the mount.
    fn levels(&self) -> impl Iterator<Item = usize> + '_ {
        let path = self.path.as_bytes();
        let up = move |&len: &usize| {
            let end = path[..len].iter().rposition(|&byte| byte == b'/')?;
            (end >= self.mount && len > self.mount).then_some(end)
        };
        core::iter::successors(Some(path.len()), up).take(MAX_LEVELS)
    }

    fn limited_levels(&self) -> impl Iterator<Item = usize> + '_ {
        let limited = self.limited;
        let with = move |&(level, _): &(usize, usize)| limited >> level & 1 == 1;
        self.levels().enumerate().filter(with).map(|(_, len)| len)
    }

    fn limit(&self, len: usize) -> Option<u64> {
        AtPath(self, len).limit()
    }

    fn path_of(&self, len: usize, name: &[u8]) -> Option<PathText> {
        PathText::join(&[&self.path.as_bytes()[..len], name])
    }

    /// `Some` if the file can be read.
    fn file(&self, len: usize, name: &[u8]) -> Option<()> {
        let path = self.path_of(len, name)?;
        file::read(path.as_c_str(), &mut [0; 8]).ok().map(|_| ())
    }
}

/// The group's name in `/proc/self/cgroup`: "0::/path" is version 2, "7:memory:/path" is version 1.
fn named(version: Version) -> Option<PathText> {
    let mut found = None;
    file::lines(c"/proc/self/cgroup", |line| {
        let mut parts = line.splitn(3, |&byte| byte == b':');
        if let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        {
            let ours = match version {
                Version::V1 => has_memory(controllers),
                Version::V2 => controllers.is_empty(),
            };
            // The group is outside of the namespace of /proc, so it cannot be found from here.
            if ours && !path.starts_with(b"/..") {
                found = PathText::join(&[path.strip_suffix(b"/").unwrap_or(path)]);
            }
        }
        found.is_none()
    });
    found
}

fn has_memory(list: &[u8]) -> bool {
    list.split(|&byte| byte == b',')
        .any(|name| name == b"memory")
}

/// Root and mount point in a line of mountinfo, if it is a cgroup mount of this version:
/// `35 31 0:32 /root /at rw,relatime shared:1 - cgroup cgroup rw,memory`.
pub(crate) fn parse_mount(line: &[u8], version: Version) -> Option<(&[u8], &[u8])> {
    let mut words = line.split(|&byte| byte == b' ');
    let (root, at) = (words.nth(3)?, words.next()?);
    let mut behind = words.skip_while(|&word| word != b"-").skip(1);
    let (kind, _device, options) = (behind.next()?, behind.next()?, behind.next()?);
    let ours = match version {
        Version::V1 => kind == b"cgroup" && has_memory(options),
        Version::V2 => kind == b"cgroup2",
    };
    (ours && !at.contains(&b'\\')).then_some((root.strip_suffix(b"/").unwrap_or(root), at))
}

/// A group's name relative to a mount of `root`. `None`: the group is not below that.
fn below<'a>(name: &'a [u8], root: &[u8]) -> Option<&'a [u8]> {
    let rest = name.strip_prefix(root)?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

#[cfg(test)]
mod tests;
