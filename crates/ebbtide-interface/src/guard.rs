//! The bounds of guarded allocations.

/// How many objects are guarded at most, and with how much memory.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// Slots for objects of a page, and for larger ones.
    pub slots: [usize; 2],
    /// Bytes of the pages of live objects.
    pub live_bytes: usize,
}

/// With `guard=on` or a number.
pub const SAMPLED: Most = Most {
    slots: [768, 256],
    live_bytes: 64 << 20,
};
/// With `guard=all`. Each live object splits a mapping in three, so these are a quarter of the mappings that the kernel allows a process.
pub const ALL: Most = Most {
    slots: [6 << 10, 2 << 10],
    live_bytes: 1 << 30,
};
