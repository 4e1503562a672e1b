//! Objects of size classes: per-CPU stacks, full batches, spans.
//!
//! | module | what it is |
//! |---|---|
//! | [`central`] | per class: full batches, and spans by fullness |
//! | [`cpu_cache`] | per-CPU stacks of objects; refill and overflow |
//! | [`harden`] | mistakes found at once |
//! | [`reserve`] | for threads that allocate while another one forks |
//! | [`find`] | what an address is |

pub mod central;
pub mod cpu_cache;
pub mod find;
pub mod harden;
pub mod reserve;

use crate::base::size_class::CLASSES;
use crate::objects::central::Central;
use crate::objects::central::reclaimable::ReclaimableClasses;
use crate::objects::central::transfer::Nodes;
use crate::objects::cpu_cache::CpuCaches;
use crate::objects::harden::quarantine::Quarantine;
use crate::objects::reserve::Reserve;
use crate::pages::Pages;
use core::ops::Deref;

/// All objects of the process, and who has them.
pub struct Objects {
    pages: Pages,
    /// Serves requests while another thread forks.
    pub reserve: Reserve,
    /// By class.
    pub central: [Central; CLASSES],
    /// Where their full batches are.
    pub nodes: Nodes,
    /// Which of them have spans to look at.
    pub reclaimable: ReclaimableClasses,
    /// Objects freed lately, with `harden=on`.
    pub quarantine: Quarantine,
    /// Per-CPU caches.
    pub caches: CpuCaches,
}

impl Objects {
    /// None.
    pub const fn new() -> Self {
        Self {
            pages: Pages::new(),
            reserve: Reserve::new(),
            central: [const { Central::new() }; CLASSES],
            nodes: Nodes::new(),
            reclaimable: ReclaimableClasses::new(),
            quarantine: Quarantine::new(),
            caches: CpuCaches::new(),
        }
    }
}

impl Deref for Objects {
    type Target = Pages;

    #[inline]
    fn deref(&self) -> &Pages {
        &self.pages
    }
}
