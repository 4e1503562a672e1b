//! The eyes: what a worker opens to look at pressure, and one look.
//!
//! Exists while there is memory to give, in the worker that waits for the window, in that thread's own
//! descriptor table.

use super::policy::Stalls;
use ebbtide_sys::pressure::source::Trigger;
use ebbtide_sys::pressure::{self, Group, Level, Notice, Psi, Room, Watch};

/// The group is looked for again after this: a process may be moved, a limit may be set.
const FIND_MS: u64 = 1000;
/// The machine's memory is read as often.
const MACHINE_MS: u64 = 200;

/// Sources of [`Watcher::sources`], one bit each.
pub mod source {
    /// `/proc/meminfo`.
    pub const MACHINE: u64 = 1;
    /// A memory cgroup with a limit.
    pub const LIMIT: u64 = 2;
    /// A PSI file.
    pub const PSI: u64 = 4;
    /// Version 1's `memory.pressure_level`.
    pub const LEVEL: u64 = 8;
    /// A FIFO or socket of systemd's protocol.
    pub const NOTICE: u64 = 16;
    /// The environment wants no events.
    pub const OFF: u64 = 32;
}

/// See the module's header.
pub struct Watcher {
    group: Option<Group>,
    psi: Option<(Psi, Stalls)>,
    /// PSI is the machine's: it has a part in it only if the machine is short.
    of_machine: bool,
    level: Option<Level>,
    notice: Option<Notice>,
    /// Whether events count, or only distance.
    events: bool,
    hits: Option<u64>,
    machine: Option<Room>,
    /// The group had a limit at the last look.
    is_limited: bool,
    found_ms: u64,
    machine_ms: u64,
}

impl Watcher {
    /// Opens what there is.
    pub fn open(now_ms: u64) -> Self {
        let group = Group::find();
        let watch = Watch::from_environment();
        let mut watcher = Self {
            psi: None,
            of_machine: false,
            level: None,
            notice: None,
            events: true,
            hits: group.as_ref().map(Group::hits),
            machine: pressure::machine(),
            is_limited: false,
            found_ms: now_ms,
            machine_ms: now_ms,
            group,
        };
        let stalls = Stalls::new;
        match watch {
            Watch::Off => watcher.events = false,
            Watch::Psi(psi, trigger) => watcher.psi = Some((psi, stalls(trigger))),
            Watch::Notice(at) => watcher.notice = Notice::open(&at),
            Watch::Unset => {
                let own = Group::unified().and_then(|group| Psi::of_group(&group));
                watcher.of_machine = own.is_none();
                let psi = own.or_else(Psi::of_machine);
                watcher.psi = psi.map(|psi| (psi, stalls(Trigger::DEFAULT)));
                watcher.level = watcher.group.as_ref().and_then(Level::open);
            }
        }
        watcher
    }

    /// The nearest limit, and whether somebody told of pressure since the last look.
    pub fn look(&mut self, now_ms: u64) -> (Option<Room>, bool) {
        if now_ms.wrapping_sub(self.found_ms) >= FIND_MS {
            self.found_ms = now_ms;
            self.group = Group::find();
        }
        if now_ms.wrapping_sub(self.machine_ms) >= MACHINE_MS {
            self.machine_ms = now_ms;
            self.machine = pressure::machine();
        }
        let group = self.group.as_ref().and_then(Group::nearest);
        self.is_limited = group.is_some();
        let room = match self.machine {
            Some(machine) => Some(machine.nearer(group)),
            None => group,
        };
        (room, self.events && self.is_told(now_ms))
    }

    fn is_told(&mut self, now_ms: u64) -> bool {
        let hits = self.group.as_ref().map(Group::hits);
        // Another number of levels is not a hit.
        let hit = matches!((hits, self.hits), (Some(now), Some(before)) if now > before)
            && self.found_ms != now_ms;
        self.hits = hits;
        let stalled = self.psi.as_mut().is_some_and(|(psi, stalls)| {
            psi.stalled_us()
                .is_some_and(|stalled| stalls.look(now_ms, stalled))
        });
        // Who stalls at the limit of another group gains nothing by what this process gives.
        let plenty = |room: Room| room.left > room.limit / 4;
        let stalled = stalled && !(self.of_machine && self.machine.is_some_and(plenty));
        let level = self.level.as_ref().is_some_and(Level::happened);
        let notice = self.notice.as_ref().is_some_and(Notice::happened);
        hit || stalled || level || notice
    }

    /// What there was to look at.
    pub fn sources(&self) -> u64 {
        let have = [
            (self.machine.is_some(), source::MACHINE),
            (self.is_limited, source::LIMIT),
            (self.psi.is_some(), source::PSI),
            (self.level.is_some(), source::LEVEL),
            (self.notice.is_some(), source::NOTICE),
            (!self.events, source::OFF),
        ];
        have.iter()
            .filter(|(there, _)| *there)
            .fold(0, |mask, (_, bit)| mask | bit)
    }
}
