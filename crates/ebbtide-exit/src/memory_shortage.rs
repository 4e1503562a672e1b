//! Whether memory is short, for the machine or for the cgroup that the dying process is in.
//!
//! The same files as workers read, opened before the helper locked itself in ([`Kept`]), and the same rule
//! ([`plan::pressure`](ebbtide_zone::plan::pressure)). The helper does not hear of what only its program was told of: the
//! environment's file or socket, the pressure level and the hits of version 1.

use ebbtide_sys::helper;
use ebbtide_sys::pressure::Kept;
use ebbtide_sys::pressure::source::Trigger;
use ebbtide_zone::plan::pressure::{Look, Policy, Stalls, is_ours};

/// What it reads, and what it made of it.
pub struct MemoryShortage<'a> {
    files: &'a Kept,
    stalls: Stalls,
    policy: Policy,
}

impl<'a> MemoryShortage<'a> {
    /// Begins to look: what was lost long before does not count.
    pub fn begin(files: &'a Kept) -> Self {
        let mut shortage = Self {
            files,
            stalls: Trigger::DEFAULT.stalls(),
            policy: Policy::new(),
        };
        shortage.has_stalled(helper::now_ms());
        shortage
    }

    /// Whether memory is short now.
    pub fn is_pressing(&mut self) -> bool {
        let now_ms = helper::now_ms();
        let (machine, group) = (self.files.machine(), self.files.group());
        let told = self.has_stalled(now_ms) && is_ours(self.files.stalls_are_machines(), machine);
        let look = Look {
            now_ms,
            room: machine.map(|machine| machine.nearer(group)).or(group),
            // Nothing grows any more.
            potential: 0,
            resident: 0,
            told,
        };
        self.policy.look(&look).pressed
    }

    fn has_stalled(&mut self, now_ms: u64) -> bool {
        let stalled = self.files.stalled_us(Trigger::DEFAULT.who);
        stalled.is_some_and(|stalled| self.stalls.look(now_ms, stalled))
    }
}
