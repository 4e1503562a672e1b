//! Texts that depend on the process.

use crate::explain::runtimes::Runtime;

/// What the texts need to know beside the amounts.
#[derive(Debug, Default)]
pub struct About {
    /// Whether the process runs under Ebbtide.
    pub has_ebbtide: bool,
    /// The window, if it is known.
    pub retain_ms: Option<u64>,
    /// The runtime of the program.
    pub runtime: Option<Runtime>,
}

impl About {
    /// Of memory that is kept.
    pub fn kept(&self) -> String {
        match self.retain_ms {
            Some(ms) => format!("free; a recent peak keeps it for up to {ms} ms (retain_ms)"),
            None => "free; a recent peak keeps it for the time retain_ms".into(),
        }
    }

    /// Of the heap by brk.
    pub fn brk(&self) -> String {
        match self.has_ebbtide {
            true => "libc's own heap, from before Ebbtide or beside it".into(),
            false => "the heap of libc's malloc".into(),
        }
    }

    /// Of other anonymous memory.
    pub fn other(&self) -> String {
        match self.runtime {
            _ if !self.has_ebbtide => {
                "large allocations, arenas of threads, the program's own mappings".into()
            }
            Some(runtime) => format!("not from malloc, mostly {}", runtime.memory),
            None => "not from malloc: the program's own mappings, or another allocator".into(),
        }
    }
}
