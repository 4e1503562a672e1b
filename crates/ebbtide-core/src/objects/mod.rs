//! Objects of size classes: per-CPU stacks, full batches, spans.
//!
//! | module | contents |
//! |---|---|
//! | [`central`] | the central lists of a class: full batches, and spans by fullness |
//! | [`cpu_cache`] | per-CPU stacks of objects; refill and overflow |
//! | [`guarded`] | a few objects between pages without access |
//! | [`harden`] | detection of heap misuse |
//! | [`reserve`] | memory for threads that allocate while another thread forks |
//! | [`find`] | the kind of allocation at an address |

pub mod central;
pub mod cpu_cache;
pub mod find;
pub mod guarded;
pub mod harden;
pub mod reserve;

use crate::base::size_class::CLASSES;
use crate::objects::central::Central;
use crate::objects::central::reclaimable::ReclaimableClasses;
use crate::objects::central::transfer::Nodes;
use crate::objects::cpu_cache::CpuCaches;
use crate::objects::guarded::Guarded;
use crate::objects::harden::empty::Empties;
use crate::objects::harden::quarantine::Quarantine;
use crate::objects::reserve::Reserve;
use crate::pages::Pages;
use core::ops::Deref;

/// All objects of the process, and their places.
pub struct Objects {
    pages: Pages,
    /// Serves requests while another thread forks.
    pub reserve: Reserve,
    /// Objects between pages without access, with `guard`.
    pub guarded: Guarded,
    /// By class.
    pub central: [Central; CLASSES],
    /// The storage of their full batches.
    pub nodes: Nodes,
    /// The classes whose spans are worth a scan.
    pub reclaimable: ReclaimableClasses,
    /// Objects freed lately, with `harden=on`.
    pub quarantine: Quarantine,
    /// Allocations of 0 bytes, with `harden=on`.
    pub empties: Empties,
    /// Per-CPU caches.
    pub caches: CpuCaches,
}

impl Objects {
    /// None.
    pub const fn new() -> Self {
        Self {
            pages: Pages::new(),
            reserve: Reserve::new(),
            guarded: Guarded::new(),
            central: [const { Central::new() }; CLASSES],
            nodes: Nodes::new(),
            reclaimable: ReclaimableClasses::new(),
            quarantine: Quarantine::new(),
            empties: Empties::new(),
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
