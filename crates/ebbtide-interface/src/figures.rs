//! The figures that a process under Ebbtide has: name, unit, kind and meaning of each, in one table.
//!
//! From the table come `struct ebb_stats` of `include/ebbtide.h`, the words of the statistics page, and what the tools know of
//! a figure. A new figure is a new entry. Its place in the table is its place in the struct and on the page.

/// How the values of several processes make one, and whether the value can fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An amount at this time: rises and falls; the sum.
    Now,
    /// Counted since the process began: only rises; the sum.
    Total,
    /// The longest or largest since the process began; the largest.
    Peak,
    /// A property of the one process: no sum.
    Fact,
}

/// What the table says of a figure.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name, the same everywhere. It ends with the unit, if that is bytes, nanoseconds or milliseconds.
    pub name: &'static str,
    /// How several processes are summed.
    pub kind: Kind,
    /// One line, without a full stop.
    pub meaning: &'static str,
}

/// How many figures there are.
pub const COUNT: usize = size_of::<Figures>() / 8;

macro_rules! figures {
    ($($kind:ident $name:ident: $meaning:literal;)*) => {
        /// `struct ebb_stats` of `include/ebbtide.h`: the figures of a process, each a word.
        ///
        /// They are taken one after the other while the program runs: each is right, their sum is as of no one moment. Live, cached, in spans,
        /// dirty, lazy, pending and metadata together are what the kernel counts, within what was never touched of each part and what huge
        /// pages hold beside it.
        #[repr(C)]
        #[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
        pub struct Figures {
            $(#[doc = $meaning] pub $name: u64,)*
        }

        /// The table.
        pub const FIGURES: [Figure; COUNT] =
            [$(Figure { name: stringify!($name), kind: Kind::$kind, meaning: $meaning }),*];

        impl Figures {
            /// The values in the order of the table.
            pub fn values(&self) -> [u64; COUNT] {
                [$(self.$name),*]
            }

            /// From values in the order of the table; values that are missing are 0.
            pub fn from_values(mut value: impl FnMut(usize) -> u64) -> Self {
                Self { $($name: value(core::mem::offset_of!(Self, $name) / 8),)* }
            }
        }
    };
}

figures! {
    Fact version: "version of this struct and of the statistics page; a later one only adds fields at the end";
    // Computed when they are asked for, and when the page is written.
    Now live_bytes: "in use by the program, rounded up to size classes and pages";
    Now large_bytes: "of that, allocations above 256 KiB";
    Now cached_bytes: "free objects in per-CPU caches and full batches, spare runs, quarantine (harden=on)";
    Now in_spans_bytes: "free objects in spans, and what objects leave over there";
    Now dirty_bytes: "free pages that may be resident";
    Now lazy_bytes: "free pages that the kernel may take (MADV_FREE)";
    Now pending_bytes: "free pages that are being released now";
    Now unsplit_bytes: "free, but in huge pages that could not be split at the last attempt";
    Now metadata_bytes: "the allocator's own records";
    Now opened_bytes: "address space made usable so far";
    Now percpu_bytes: "per-CPU data: pages of it that may be resident, on all CPUs";
    Now percpu_sidelined_chunks: "per-CPU data: chunks that gave pages back and serve when others are full";
    Total percpu_depopulated_bytes: "per-CPU data: released pages of chunks in use, on all CPUs, since the process began";
    Now lazy_zones: "zones whose freed memory becomes lazy first, decided from the next two";
    Now reused_bytes: "released lately and wanted again within 10 s; older evidence counts less";
    Now unused_bytes: "released lately and not wanted again in that time";
    Now pinned_bytes: "of dirty, lazy and per-CPU bytes: free, but in a page of the kernel (16 or 64 KiB) with something in use";
    // Counted as they come.
    Total released_bytes: "released to the kernel since the process began";
    Total release_calls: "system calls that released memory";
    Total refaulted_bytes: "empty pages of spans that were released and then needed again";
    Total lazied_bytes: "made lazy since the process began";
    Total lazy_reused_bytes: "lazy pages that were needed again; the kernel had taken some of them";
    Total lazy_taken_bytes: "lazy pages that the kernel had taken when a worker came to release them; a lower bound: it had taken some of the reused ones too";
    Total paid_bytes: "released by calls that had taken more fresh memory than a limit had room for";
    Total worker_ns: "time that workers spent releasing";
    Peak longest_stall_ns: "longest time that a thread of the program spent releasing at once";
    Total fallovers: "runs of pages that another zone than the CPU's own provided";
    Total exits_detached: "ends whose memory a helper released (exit=detached): 0 while the process lives";
    Total exits_fallen_back: "ends that should have been detached and were not; without a helper, ends by a signal are not seen";
    Total pressure_events: "checks that found memory short";
    Fact pressure_state: "0: never checked, 1: calm, 2: short, so nothing is kept for reuse";
    Fact pressure_sources: "what is watched, a bit each: machine, cgroup limit, PSI, pressure level, event channel, events not wanted";
    Fact limit_left_bytes: "left of the nearest limit (cgroup or machine) at the last check; 0 with limit_bytes 0: unknown";
    Fact limit_bytes: "that limit";
    // Locks: zeros without EBBTIDE_CONF=dev=lockstat:on.
    Total lock_acquisitions: "acquisitions of all locks (lockstat)";
    Total lock_contended: "of these, acquisitions that had to wait";
    Total lock_wait_ns: "time spent waiting for locks";
    Total lock_hold_ns: "time during which locks were held";
    Total zone_acquisitions: "of the lock figures, those of zones: acquisitions";
    Total zone_contended: "acquisitions that had to wait";
    Total zone_wait_ns: "time spent waiting";
    Total zone_hold_ns: "time held";
    // The process.
    Fact pid: "the process; 0: unknown";
    Fact pid_namespace: "its process namespace, by the kernel's number; 0: unknown";
    Fact rseq_mode: "1: per-CPU caches by restartable sequences, 0: portable mode under locks";
    Fact worked: "optional kernel features that were tried and worked, a bit each";
    Fact refused: "optional kernel features that were tried and refused, a bit each";
    Fact helper: "the process that releases memory after the end (exit=detached); 0: none";
    Fact end_ns: "when the end began, if it was in order, on CLOCK_MONOTONIC";
    Fact left_ns: "when the main thread left the memory at the end, as the helper saw it, on CLOCK_MONOTONIC";
    Fact request_done: "the number of the last request of an observer that was done; 0: none";
    Fact request_result: "its result: bytes released, or for a key 0: changed, 1: no such key or value, 2: fixed at the start, 3: failed";
    Fact retain_ms: "for how long a recent peak keeps freed memory (key retain_ms)";
    Fact written_ms: "when the page was last written, on CLOCK_MONOTONIC";
    // The kernel walks the page tables for these: only for a caller that asks, and never on the page.
    Now rss_bytes: "resident, as the kernel counts it; 0: unknown";
    Now rss_without_lazy_bytes: "of that, what the kernel cannot take at once";
}

/// [`Figures::version`].
pub const VERSION: u64 = 5;

impl Figures {
    /// Adds the figures of another process, each by its kind; facts become 0.
    pub fn add(&mut self, other: &Self) {
        let (mine, theirs) = (self.values(), other.values());
        *self = Self::from_values(|at| match FIGURES[at].kind {
            // A page can hold any number.
            Kind::Now | Kind::Total => mine[at].saturating_add(theirs[at]),
            Kind::Peak => mine[at].max(theirs[at]),
            Kind::Fact => 0,
        });
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::word;
    use std::string::String;
    use std::vec::Vec;

    #[test]
    fn values_keep_their_order() {
        let figures = Figures::from_values(|at| at as u64);
        assert_eq!(figures.version, 0);
        assert_eq!(figures.live_bytes, 1);
        let values = figures.values();
        assert!(
            values
                .iter()
                .enumerate()
                .all(|(at, &value)| at as u64 == value)
        );
        assert_eq!(
            FIGURES[word!(dirty_bytes) - crate::page::FIRST].name,
            "dirty_bytes"
        );
    }

    #[test]
    fn figures_of_processes_add_by_kind() {
        let mut sum = Figures {
            live_bytes: 1,
            longest_stall_ns: 9,
            pid: 7,
            ..Figures::default()
        };
        sum.add(&Figures {
            live_bytes: 2,
            longest_stall_ns: 4,
            pid: 8,
            ..Figures::default()
        });
        assert_eq!((sum.live_bytes, sum.longest_stall_ns, sum.pid), (3, 9, 0));
    }

    /// The header's struct, which people read, is the table.
    #[test]
    fn the_header_has_the_same_figures() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include/ebbtide.h");
        let header = std::fs::read_to_string(path).expect("include/ebbtide.h");
        let (_, rest) = header
            .split_once("struct ebb_stats {\n")
            .expect("the struct");
        let (body, _) = rest.split_once("};").expect("its end");
        let version = std::format!("#define EBB_STATS_VERSION {VERSION}\n");
        assert!(header.contains(&version), "{version}");
        let lines: Vec<String> = FIGURES
            .iter()
            .map(|figure| {
                std::format!(
                    "    uint64_t {:<23}/* {} */\n",
                    std::format!("{};", figure.name),
                    figure.meaning
                )
            })
            .collect();
        assert_eq!(
            body,
            lines.concat(),
            "the struct of include/ebbtide.h should read:\n{}",
            lines.concat()
        );
    }
}
