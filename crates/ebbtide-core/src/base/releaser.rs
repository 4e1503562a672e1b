//! Who releases memory.

use crate::base::stats::{self, word};
use ebbtide_sys::pages::PageMap;

/// Who owns a gather: a thread of the program, or a worker, of which one knows whether it is gone. No two workers are
/// the same owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(pub u64);

impl Owner {
    /// A thread of the program.
    pub const PROGRAM: Self = Self(0);

    /// The worker that was the `made`th in place `number`, from 1 on.
    pub fn worker(number: usize, made: u32) -> Self {
        Self(u64::from(made) << 32 | number as u64)
    }

    /// That place and that count, of a worker.
    pub fn place(self) -> Option<(usize, u32)> {
        (self != Self::PROGRAM).then_some((self.0 as u32 as usize, (self.0 >> 32) as u32))
    }
}

/// Who releases: what it may use.
#[derive(Clone, Copy)]
pub enum Releaser<'a> {
    /// A thread of the program, with a stack of its making, whose call asks for a release, or would fail without. It
    /// leaves the splitting of huge pages to a worker, and waits while workers have too much to do.
    Explicit,
    /// The same on a slow path: it waits for nobody.
    SlowPath,
    /// The same where no worker is made: on a tick, or for little.
    Tick,
    /// A worker.
    Worker {
        /// The pagemap if it could be opened.
        map: Option<&'a PageMap>,
        /// What it is called as an owner of gathers.
        owner: Owner,
    },
}

impl Releaser<'_> {
    /// Whether it is a worker.
    pub fn is_worker(self) -> bool {
        matches!(self, Self::Worker { .. })
    }

    /// Who owns what it claims.
    pub fn owner(self) -> Owner {
        match self {
            Self::Worker { owner, .. } => owner,
            Self::Explicit | Self::SlowPath | Self::Tick => Owner::PROGRAM,
        }
    }

    /// Counts how long a release took.
    pub fn count(self, ns: u64) {
        if self.is_worker() {
            stats::count(word!(worker_ns), ns);
        } else {
            stats::raise(word!(longest_stall_ns), ns);
        }
    }
}
