//! Unsplit blocks, claimed again: see [`crate::pages::unsplit`].

use crate::base::size_class::CLASSES;
use crate::pages::region::flag;
use crate::reclaim::Heap;
use core::sync::atomic::Ordering;
use ebbtide_zone::Block;

impl Heap {
    /// Lets unsplit blocks be claimed again when it is time.
    pub fn retry_unsplit(&self, now: u64) {
        if self.unsplit.is_time(now) {
            self.clear_unsplit();
        }
    }

    /// Nothing is unsplit from now on.
    pub fn clear_unsplit(&self) {
        self.unsplit.clear();
        for zone in self.live_zones() {
            let (first, end) = zone.with(self.region(), |zone| {
                zone.clear_unsplit();
                let state = zone.state();
                (state.open_end().0 - state.opened(), state.open_end().0)
            });
            for block in (first..end).map(Block) {
                // SAFETY: opened blocks.
                let flags = unsafe { self.region().flags(block) };
                if flags.load(Ordering::Relaxed) & flag::UNSPLIT != 0 {
                    flags.fetch_and(!flag::UNSPLIT, Ordering::Relaxed);
                }
            }
        }
        for class in 1..CLASSES {
            self.central[class].spans.lock().clear_unsplit(self, class);
        }
    }
}
