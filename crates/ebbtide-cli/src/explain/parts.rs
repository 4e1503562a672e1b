//! The parts of a process's resident memory: the heap's own view, reconciled with what the kernel counts.
//!
//! The sum of the parts is the kernel's count, mapping by mapping. Within the heap, the records say which page is what. The process runs
//! on between two readings, so the heap's parts are scaled to the kernel's count of the heap ([`fit`]).

mod about;

use ebbtide_interface::Figures;
use ebbtide_interface::records::Owner;
use ebbtide_tools::out;
use serde::Serialize;

use super::heap::{Bytes, Sorted};
use super::owners::{Kind, Sides};
use crate::smaps::Counted;
pub use about::About;

/// The name of the memory that the program has.
pub const LIVE: &str = "live";
/// The name of free memory between live objects.
pub const IN_SPANS: &str = "in_spans";
/// The name of free memory that is kept.
pub const DIRTY: &str = "dirty";
/// The name of free memory that the kernel may take.
pub const LAZY: &str = "lazy";
/// The name of free objects in CPUs' caches.
pub const CACHED: &str = "cached";
/// The name of spare runs and memory that is being released.
pub const WAITING: &str = "waiting";
/// The name of a heap of Ebbtide that is not told apart.
pub const UNKNOWN: &str = "ebbtide";
/// The name of free memory in larger pages with something in use.
pub const PINNED: &str = "pinned";
/// The name of unused memory inside huge pages.
pub const HUGE_FILL: &str = "huge_fill";

/// The name of guarded objects.
pub const GUARDED: &str = "guarded";

/// A part of the resident memory.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Part {
    /// Its name, for programs.
    pub name: &'static str,
    /// Its name, for people.
    #[serde(skip)]
    pub title: &'static str,
    /// Resident bytes.
    pub bytes: u64,
    /// Bytes that are swapped out.
    pub swapped_bytes: u64,
    /// One line.
    pub about: String,
}

/// How the parts of the heap are known.
#[derive(Debug)]
pub enum View {
    /// The heap's records were read: exact.
    Records(Box<Sorted>),
    /// Only the figures of the statistics page: the parts are estimates, and which memory was never touched is unknown.
    Figures(Box<Figures>),
    /// Neither.
    Nothing,
}

/// All parts that are not empty.
pub fn all(sides: &Sides, view: &View, about: &About) -> Vec<Part> {
    let heap = sides.of(Kind::Ebbtide(Owner::Heap));
    let mut parts = match view {
        View::Records(sorted) => of_records(sorted, &heap, about),
        View::Figures(figures) => of_figures(figures, &heap, about),
        View::Nothing => vec![part(
            UNKNOWN,
            "memory of Ebbtide",
            Bytes {
                resident: heap.resident,
                swapped: heap.swapped,
            },
            "in use or free: not told apart, see the note",
        )],
    };
    let shared = |kind| match sides.of(kind).shared {
        0 => String::new(),
        bytes => format!("; {} of it with other processes", out::bytes(bytes)),
    };
    let rest = [
        (
            Owner::Guarded,
            GUARDED,
            "guarded objects",
            "live objects of guard, each in pages of its own",
        ),
        (
            Owner::PerCpu,
            "percpu",
            "per-CPU data",
            "areas of ebb_percpu_alloc on all CPUs",
        ),
        (
            Owner::Records,
            "metadata",
            "records of Ebbtide",
            "records of pages and objects, and the stacks of CPUs' caches",
        ),
        (
            Owner::Profile,
            "profile",
            "the profile",
            "stacks and counts of sampled objects",
        ),
        (
            Owner::Reserve,
            "reserve",
            "reserve of Ebbtide",
            "serves other threads during a fork",
        ),
    ];
    for (owner, name, title, what) in rest {
        parts.push(counted(
            sides,
            Kind::Ebbtide(owner),
            name,
            title,
            what.into(),
        ));
    }
    parts.extend([
        counted(
            sides,
            Kind::Other,
            "other_heaps",
            "other anonymous memory",
            about.other(),
        ),
        counted(sides, Kind::Brk, "brk_heap", "heap by brk", about.brk()),
        counted(
            sides,
            Kind::Stack,
            "stacks",
            "stacks",
            "as deep as threads ever used them".into(),
        ),
        counted(
            sides,
            Kind::File,
            "files",
            "files and code",
            format!(
                "program, libraries, their data, mapped files{}",
                shared(Kind::File)
            ),
        ),
        counted(
            sides,
            Kind::Shared,
            "shared_memory",
            "shared memory",
            format!(
                "shm, memfd, shared anonymous memory{}",
                shared(Kind::Shared)
            ),
        ),
    ]);
    parts.retain(|part| part.bytes > 0 || part.swapped_bytes > 0);
    parts
}

fn part(name: &'static str, title: &'static str, bytes: Bytes, about: &str) -> Part {
    Part {
        name,
        title,
        bytes: bytes.resident,
        swapped_bytes: bytes.swapped,
        about: about.into(),
    }
}

fn counted(
    sides: &Sides,
    kind: Kind,
    name: &'static str,
    title: &'static str,
    about: String,
) -> Part {
    let counted = sides.of(kind);
    let bytes = Bytes {
        resident: counted.resident,
        swapped: counted.swapped,
    };
    part(name, title, bytes, &about)
}

/// The heap's parts by its records.
fn of_records(sorted: &Sorted, heap: &Counted, about: &About) -> Vec<Part> {
    let live = Bytes {
        resident: sorted.small.resident + sorted.large.resident,
        swapped: sorted.small.swapped + sorted.large.swapped,
    };
    let large = out::bytes(sorted.large.resident);
    let huge = out::bytes(heap.huge);
    let mut parts = vec![
        part(
            LIVE,
            "in use by the program",
            live,
            &format!("allocated and touched; {large} in allocations above 256 KiB"),
        ),
        part(
            IN_SPANS,
            "free between live objects",
            sorted.in_spans,
            &format!(
                "{} in pages without a live object",
                out::bytes(sorted.empty_pages.resident)
            ),
        ),
        part(DIRTY, "kept for reuse", sorted.dirty, &about.kept()),
        part(
            LAZY,
            "lazy",
            sorted.lazy,
            "free; the kernel takes it when memory is short",
        ),
        part(
            CACHED,
            "caches of CPUs",
            sorted.cached,
            "free objects that the next malloc takes",
        ),
        part(
            WAITING,
            "spare or on its way",
            sorted.waiting,
            "the last runs that CPUs freed, and pages that are being released",
        ),
        part(
            PINNED,
            "free beside memory in use",
            sorted.pinned,
            "its page of 16 or 64 KiB also holds something in use",
        ),
        part(
            HUGE_FILL,
            "filling of huge pages",
            sorted.clean,
            &format!("unused, but inside one of the heap's huge pages ({huge})"),
        ),
    ];
    let mut resident: Vec<u64> = parts.iter().map(|part| part.bytes).collect();
    let mut swapped: Vec<u64> = parts.iter().map(|part| part.swapped_bytes).collect();
    fit(&mut resident, heap.resident);
    fit(&mut swapped, heap.swapped);
    for (part, (bytes, swapped_bytes)) in parts.iter_mut().zip(resident.into_iter().zip(swapped)) {
        (part.bytes, part.swapped_bytes) = (bytes, swapped_bytes);
    }
    parts
}

/// The heap's parts by its figures. The kernel knows what is lazy. The other figures may include memory that was never touched, so they
/// are scaled down to what is resident; what is resident beyond them is in huge pages.
fn of_figures(figures: &Figures, heap: &Counted, about: &About) -> Vec<Part> {
    let lazy = heap.lazy.min(heap.resident);
    let rest = heap.resident - lazy;
    let mut amounts = [
        figures.live_bytes,
        figures.in_spans_bytes,
        figures.dirty_bytes,
        figures.cached_bytes,
        figures.pending_bytes,
    ];
    let known: u64 = amounts.iter().sum();
    if known > rest {
        fit(&mut amounts, rest);
    }
    let fill = rest.saturating_sub(known);
    let [live, in_spans, dirty, cached, pending] = amounts;
    let swapped = Bytes {
        resident: live,
        swapped: heap.swapped,
    };
    let resident = |resident| Bytes {
        resident,
        swapped: 0,
    };
    vec![
        part(
            LIVE,
            "in use by the program",
            swapped,
            "allocated; an estimate, see the note",
        ),
        part(
            IN_SPANS,
            "free between live objects",
            resident(in_spans),
            "an estimate",
        ),
        part(DIRTY, "kept for reuse", resident(dirty), &about.kept()),
        part(
            LAZY,
            "lazy",
            resident(lazy),
            "free; the kernel takes it when memory is short",
        ),
        part(
            CACHED,
            "caches of CPUs",
            resident(cached),
            "free objects, and spare runs",
        ),
        part(
            WAITING,
            "on its way",
            resident(pending),
            "pages that are being released",
        ),
        part(
            HUGE_FILL,
            "filling of huge pages",
            resident(fill),
            &format!(
                "unused, but inside one of the heap's huge pages ({})",
                out::bytes(heap.huge)
            ),
        ),
    ]
}

/// Scales amounts so that their sum is `total`. Without any amount, the first gets all.
pub fn fit(amounts: &mut [u64], total: u64) {
    let sum: u64 = amounts.iter().sum();
    if sum == total {
        return;
    }
    for amount in amounts.iter_mut() {
        *amount = u64::try_from(u128::from(*amount) * u128::from(total) / u128::from(sum.max(1)))
            .expect("no more than the total");
    }
    let left = total - amounts.iter().sum::<u64>();
    let largest = (0..amounts.len()).rev().max_by_key(|&at| amounts[at]);
    if let Some(largest) = largest {
        amounts[largest] += left;
    }
}

#[cfg(test)]
mod tests;
