//! The files that a worker opens to watch memory pressure, and one sample of them.
//!
//! A watcher exists while there is memory to return. It belongs to the worker that waits for the window, and its files
//! are in that thread's own descriptor table.

use ebbtide_sys::pressure::source::{Stalled, Trigger};
use ebbtide_sys::pressure::{
    self, EventChannel, Group, Groups, Level, PressureEnvironment, Psi, Room, Watch,
};
use ebbtide_zone::plan::pressure::{Stalls, is_ours};

/// The cgroup is looked up again after this time: a process may be moved, a limit may be set.
const FIND_MS: u64 = 1000;
/// The machine's free memory is read again after this time.
const MACHINE_MS: u64 = 200;

/// See the module's header.
pub struct Watcher {
    hits: Hits,
    own: OwnSources,
    /// The file that the environment names, watched instead of the process's own groups.
    psi: Option<(Psi, Stalled, Stalls)>,
    channel: Option<EventChannel>,
    watch: Watched,
    machine: Option<Room>,
    /// The group had a limit at the last sample.
    is_limited: bool,
    found_ms: u64,
    machine_ms: u64,
}

/// The origin of pressure events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watched {
    /// The process's own groups, and the machine.
    Own,
    /// The file or socket that the environment names.
    Environment,
    /// There are no events: only the distance to the limits counts.
    Nothing,
}

impl Watcher {
    /// Opens the files that exist.
    pub fn open(environment: &PressureEnvironment, now_ms: u64) -> Self {
        let groups = Groups::find();
        let mut watcher = Self {
            hits: Hits::default(),
            own: OwnSources::default(),
            psi: None,
            channel: None,
            watch: Watched::Environment,
            machine: pressure::machine(),
            is_limited: false,
            found_ms: now_ms,
            machine_ms: now_ms,
        };
        match environment.watch() {
            Watch::Off => watcher.watch = Watched::Nothing,
            Watch::Psi(psi, trigger) => watcher.psi = Some((psi, trigger.who, trigger.stalls())),
            Watch::Channel(at) => watcher.channel = EventChannel::open(&at),
            Watch::Unset => {
                watcher.watch = Watched::Own;
                watcher.own.open(&groups);
            }
        }
        watcher.hits.follow(groups.memory);
        watcher
    }

    /// Samples the nearest limit, and whether an event of pressure came since the last sample.
    pub fn sample(&mut self, now_ms: u64) -> (Option<Room>, bool) {
        let mut had_event = false;
        if now_ms.wrapping_sub(self.found_ms) >= FIND_MS {
            self.found_ms = now_ms;
            let groups = Groups::find();
            if self.watch == Watched::Own {
                self.own.follow(&groups);
            }
            had_event = self.hits.follow(groups.memory);
        }
        if now_ms.wrapping_sub(self.machine_ms) >= MACHINE_MS {
            self.machine_ms = now_ms;
            self.machine = pressure::machine();
        }
        let group = self.hits.group.as_ref().and_then(Group::nearest);
        self.is_limited = group.is_some();
        let room = self.machine.map(|machine| machine.nearer(group)).or(group);
        had_event |= self.had_event_now(now_ms);
        (room, had_event && self.watch != Watched::Nothing)
    }

    /// The base of a percentage: the smallest limit of the process's groups. `None`: no group has a limit.
    pub fn limit(&self) -> Option<u64> {
        self.hits.group.as_ref().and_then(Group::smallest_limit)
    }

    fn had_event_now(&mut self, now_ms: u64) -> bool {
        let hit = self.hits.sample();
        let stalled = is_stalled(&mut self.psi, now_ms);
        let own =
            is_stalled(&mut self.own.psi, now_ms) && is_ours(self.own.is_machines, self.machine);
        let level = self.own.is_reclaimed_from();
        let channel = self.channel.as_ref().is_some_and(EventChannel::happened);
        hit || stalled || own || level || channel
    }

    /// The files that are sampled, one bit each: `/proc/meminfo`, a memory cgroup with a limit, a PSI file, version
    /// 1's `memory.pressure_level`, a FIFO or socket of systemd's protocol. One more bit says whether the
    /// environment wants no events.
    pub fn sources(&self) -> u64 {
        let have = [
            (self.machine.is_some(), 1),
            (self.is_limited, 2),
            (self.psi.is_some() || self.own.psi.is_some(), 4),
            (self.own.level.is_some(), 8),
            (self.channel.is_some(), 16),
            (self.watch == Watched::Nothing, 32),
        ];
        have.map(|(there, bit)| u64::from(there) * bit).iter().sum()
    }
}

fn is_stalled(psi: &mut Option<(Psi, Stalled, Stalls)>, now_ms: u64) -> bool {
    psi.as_mut().is_some_and(|(psi, who, stalls)| {
        psi.stalled_us(*who)
            .is_some_and(|stalled| stalls.sample(now_ms, stalled))
    })
}

/// The limits of the process's group, and how often they have been met.
#[derive(Default)]
struct Hits {
    group: Option<Group>,
    seen: Option<u64>,
}

impl Hits {
    /// The process is in `group` now. Returns whether a limit of its previous group was met since the last sample.
    fn follow(&mut self, group: Option<Group>) -> bool {
        // The same levels have a limit: hits between two samples are not lost.
        if group == self.group {
            return false;
        }
        let had_event = self.sample();
        self.seen = group.as_ref().map(Group::hits);
        self.group = group;
        had_event
    }

    /// Whether a limit has been met since the last sample.
    fn sample(&mut self) -> bool {
        let hits = self.group.as_ref().map(Group::hits);
        let before = core::mem::replace(&mut self.seen, hits);
        matches!((hits, before), (Some(now), Some(before)) if now > before)
    }
}

/// The files that report events of the process's own groups.
#[derive(Default)]
struct OwnSources {
    unified: Option<Group>,
    memory: Option<Group>,
    psi: Option<(Psi, Stalled, Stalls)>,
    /// PSI is the machine's: the process takes part in its events only if the machine is short.
    is_machines: bool,
    level: Option<Level>,
}

impl OwnSources {
    fn open(&mut self, groups: &Groups) {
        let psi = Psi::own(groups.unified.as_ref());
        self.is_machines = psi.as_ref().is_none_or(|(_, is_machines)| *is_machines);
        let Trigger { who, .. } = Trigger::DEFAULT;
        self.psi = psi.map(|(psi, _)| (psi, who, Trigger::DEFAULT.stalls()));
        self.level = groups.memory.as_ref().and_then(Level::open);
        (self.unified, self.memory) = (groups.unified.clone(), groups.memory.clone());
    }

    /// A group that is removed after the process has left it reports the same event.
    fn is_reclaimed_from(&mut self) -> bool {
        let happened = self.level.as_ref().is_some_and(Level::happened);
        let is_there = || self.memory.as_ref().is_some_and(Group::is_there);
        if happened && !is_there() {
            self.level = None;
            return false;
        }
        happened
    }

    /// The process may have been moved.
    fn follow(&mut self, groups: &Groups) {
        let same = |a: &Option<Group>, b: &Option<Group>| match (a, b) {
            (Some(a), Some(b)) => a.is_at(b),
            (a, b) => a.is_none() && b.is_none(),
        };
        if !same(&self.unified, &groups.unified) || !same(&self.memory, &groups.memory) {
            self.open(groups);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use ebbtide_sys::pressure::group::Version;
    use std::os::unix::ffi::OsStrExt;
    use std::path::{Path, PathBuf};

    /// A group with a limit, its PSI, and an end.
    struct Fake(PathBuf);

    impl Fake {
        fn new(name: &str) -> Self {
            let name = std::format!("ebbtide-watcher-{name}-{}", std::process::id());
            let fake = Self(std::env::temp_dir().join(name));
            std::fs::create_dir_all(&fake.0).unwrap();
            fake.write("memory.max", 1 << 30);
            fake.hit(7);
            fake.stall(100);
            fake
        }

        fn write(&self, name: &str, text: impl std::fmt::Display) {
            std::fs::write(self.0.join(name), std::format!("{text}\n")).unwrap();
        }

        fn hit(&self, times: u64) {
            self.write("memory.events.local", std::format!("high 3\nmax {times}"));
        }

        fn stall(&self, us: u64) {
            self.write(
                "memory.pressure",
                std::format!("some avg10=0.00 total={us}"),
            );
        }

        fn path(&self) -> &Path {
            &self.0
        }

        fn group(&self) -> Option<Group> {
            let path = self.path().as_os_str().as_bytes();
            Group::at(Version::V2, path, path.len())
        }

        fn groups(&self) -> Groups {
            Groups {
                memory: self.group(),
                unified: self.group(),
            }
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn no_hit_is_lost_when_the_group_is_found_again() {
        let fake = Fake::new("hits");
        let mut hits = Hits::default();
        assert!(!hits.follow(fake.group()) && !hits.sample());
        fake.hit(8);
        assert!(!hits.follow(fake.group()), "it is the same group");
        assert!(hits.sample() && !hits.sample());
        // The group's limit is removed, or the process is moved: hits of its own group before that count, hits of
        // the other group before that do not.
        fake.hit(9);
        fake.write("memory.max", "max");
        assert!(hits.follow(fake.group()) && !hits.sample());
        let other = Fake::new("other");
        other.hit(1000);
        assert!(!hits.follow(other.group()) && !hits.sample());
        other.hit(1001);
        assert!(hits.follow(None) && !hits.sample());
    }

    #[test]
    fn sources_follow_a_process_that_is_moved() {
        let (first, second) = (Fake::new("first"), Fake::new("second"));
        let mut own = OwnSources::default();
        own.open(&first.groups());
        assert!(!is_stalled(&mut own.psi, 1000));
        own.follow(&first.groups());
        first.stall(400_100);
        assert!(is_stalled(&mut own.psi, 1040), "the same window goes on");
        own.follow(&second.groups());
        drop(first);
        assert!(!is_stalled(&mut own.psi, 2000));
        second.stall(400_100);
        assert!(is_stalled(&mut own.psi, 2040));
        assert!(!own.is_machines);
        own.follow(&Groups {
            memory: None,
            unified: None,
        });
        assert!(own.is_machines);
    }
}
