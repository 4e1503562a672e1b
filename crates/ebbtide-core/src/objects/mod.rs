//! Objects of size classes: per-CPU stacks, full batches, spans.

use crate::central::Central;
use crate::central::news::News;
use crate::central::transfer::Nodes;
use crate::cpu_cache::CpuCaches;
use crate::harden::quarantine::Quarantine;
use crate::pages::Pages;
use crate::reserve::Reserve;
use crate::size_class::CLASSES;
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
    pub news: News,
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
            news: News::new(),
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
