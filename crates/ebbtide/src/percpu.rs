//! Per-CPU data: areas with a copy for each CPU, and the types that use them.
//!
//! | module | contents |
//! |---|---|
//! | `cells` | [`PerCpu`]: a value for each CPU |
//! | `counter` | [`Counter`] |
//! | `refcount` | [`RefCount`] |
//!
//! The crate `ebbtide_percpu` is the engine below.

mod cells;
mod counter;
mod refcount;

pub use cells::{PerCpu, PlainData};
pub use counter::Counter;
pub use ebbtide_percpu::{Handle, Problem, Stats, add, allocate_nowait, free, pointer, stats, sum};
pub use refcount::RefCount;

/// Allocates an area of `size` bytes, zeroed, for each CPU.
///
/// # Errors
/// See [`Problem`].
pub fn allocate(size: usize, align: usize) -> Result<Handle, Problem> {
    let front = crate::heap().ok_or(Problem::NoMemory)?;
    ebbtide_percpu::allocate(front, size, align)
}

/// The number of copies of an area. CPU numbers are below it.
pub fn cpus() -> usize {
    crate::heap().map_or(1, |front| ebbtide_percpu::cpus(front))
}
