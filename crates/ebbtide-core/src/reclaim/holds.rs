//! Blocks that are held, claimed again: see [`crate::pages::held`].

use crate::base::size_class::CLASSES;
use crate::pages::region::flag;
use crate::reclaim::Heap;
use core::sync::atomic::Ordering;
use ebbtide_zone::Block;

impl Heap {
    /// Lets held blocks be claimed again when it is time.
    pub fn look_at_held(&self, now: u64) {
        if self.held.is_time(now) {
            self.end_holds();
        }
    }

    /// Nothing is held from now on.
    pub fn end_holds(&self) {
        self.held.clear();
        for zone in self.live_zones() {
            let (first, end) = zone.with(self.region(), |zone| {
                zone.end_holds();
                let state = zone.state();
                (state.open_end().0 - state.opened(), state.open_end().0)
            });
            for block in (first..end).map(Block) {
                // SAFETY: opened blocks.
                let flags = unsafe { self.region().flags(block) };
                if flags.load(Ordering::Relaxed) & flag::HELD != 0 {
                    flags.fetch_and(!flag::HELD, Ordering::Relaxed);
                }
            }
        }
        for class in 1..CLASSES {
            self.central[class].spans.lock().end_holds(self, class);
        }
    }
}
