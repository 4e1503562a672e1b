//! Whether memory is short, for the machine or for the cgroup of the dying process.
//!
//! The helper reads the same files as workers do, opened before it restricted itself ([`Kept`]), and applies the same rule
//! ([`plan::pressure`](ebbtide_zone::plan::pressure)). Some sources of events reach only the program, not the helper: the
//! file or socket that the environment names, and the pressure level and limit hits of cgroup version 1.

use ebbtide_sys::helper;
use ebbtide_sys::pressure::Kept;
use ebbtide_sys::pressure::source::Trigger;
use ebbtide_zone::plan::pressure::{Policy, Sample, Stalls, is_ours};

/// The files that the helper reads, and the state of its decision.
pub struct MemoryShortage<'a> {
    files: &'a Kept,
    stalls: Stalls,
    policy: Policy,
}

impl<'a> MemoryShortage<'a> {
    /// Begins: stalls from before do not count.
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
        let had_event =
            self.has_stalled(now_ms) && is_ours(self.files.stalls_are_machines(), machine);
        let sample = Sample {
            now_ms,
            room: machine.map(|machine| machine.nearer(group)).or(group),
            // The heap no longer grows.
            potential: 0,
            resident: 0,
            had_event,
        };
        self.policy.sample(&sample).pressed
    }

    fn has_stalled(&mut self, now_ms: u64) -> bool {
        let stalled = self.files.stalled_us(Trigger::DEFAULT.who);
        stalled.is_some_and(|stalled| self.stalls.sample(now_ms, stalled))
    }
}
