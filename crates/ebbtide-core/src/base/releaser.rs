//! Names the thread that releases memory, and which means it may use: a thread of the program, or a worker.

use crate::base::stats::{self, word};
use ebbtide_sys::pages::PageMap;

/// The owner of a gather: a thread of the program, or a worker. For a worker it can be checked whether the thread
/// is gone. No two workers are the same owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(pub u64);

impl Owner {
    /// A thread of the program.
    pub const PROGRAM: Self = Self(0);

    /// The `made`th worker in place `number`. `made` begins with 1.
    pub fn worker(number: usize, made: u32) -> Self {
        Self(u64::from(made) << 32 | number as u64)
    }

    /// Place and count of a worker. `None`: a thread of the program.
    pub fn place(self) -> Option<(usize, u32)> {
        (self != Self::PROGRAM).then_some((self.0 as u32 as usize, (self.0 >> 32) as u32))
    }
}

/// The kind of thread that releases, which decides which means it may use.
#[derive(Clone, Copy)]
pub enum Releaser<'a> {
    /// A thread of the program, on a stack of the program's. Its call asks for a release, or would fail without
    /// one. It leaves the splitting of huge pages to a worker, and waits while workers have too much to do.
    Explicit,
    /// A thread of the program on a slow path. It waits for no other thread.
    SlowPath,
    /// A thread of the program on a tick, or for a small backlog. It waits for no other thread, and no worker is
    /// made.
    Tick,
    /// A worker.
    Worker {
        /// The pagemap, if it could be opened.
        map: Option<&'a PageMap>,
        /// The worker, as an owner of gathers.
        owner: Owner,
    },
}

impl Releaser<'_> {
    /// Whether it is a worker.
    pub fn is_worker(self) -> bool {
        matches!(self, Self::Worker { .. })
    }

    /// The owner of the ranges that this thread claims.
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
