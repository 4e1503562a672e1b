//! Selects which kernel is combined with which C library, and under which conditions.

use super::suites::{self, Kernel, Root};

/// Suites whose kernels are booted, oldest first. The last one counts only if it is newer than the one before.
pub(super) const KERNELS: [&str; 5] = ["bullseye", "bookworm", "trixie", "sid", "experimental"];
/// Suites whose C library and programs are run.
pub(super) const LIBCS: [&str; 4] = ["bullseye", "bookworm", "trixie", "sid"];
/// The newest kernel that is not a release candidate, and the newest C library.
pub(super) const NEWEST: (&str, &str) = ("sid", "sid");

/// The pairs that run. The interface between kernel and libc changed in few versions: libc registers rseq (2.35),
/// with more than 32 bytes (2.41); the kernel checks its own fields there (7.0.10). A container may bring an older or
/// a newer libc than its host was made for.
///
/// So these pairs run: those that were shipped together, every libc on the newest kernels, and the newest libc on
/// every kernel. Six pairs in between are left out. An old kernel treats all libcs from 2.36 on alike, and 2.31,
/// which has no rseq, runs on the oldest kernel and on the two newest.
const PAIRS: [&str; 5] = [
    // 2.31 2.36 2.41 2.43
    "x..x", // 5.10
    ".x.x", // 6.1
    "..xx", // 6.12
    "xxxx", // 7.2
    "xxxx", // next
];

/// A special condition of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    Plain,
    /// A filter of system calls, `tests/matrix/NAME.filter`.
    Filter(&'static str),
    /// The kernel checks the rseq area of every thread, whatever its length.
    RseqDebug,
}

/// Cells with a special condition, each on one pair.
const VARIANTS: [(&str, &str, Variant); 3] = [
    ("sid", "sid", Variant::Filter("docker")),
    ("sid", "sid", Variant::Filter("system-service")),
    // libc registers 32 bytes, which the kernel checks only with rseq debugging.
    ("sid", "bookworm", Variant::RseqDebug),
];

impl Variant {
    pub fn name(self) -> Option<&'static str> {
        match self {
            Variant::Plain => None,
            Variant::Filter(name) => Some(name),
            Variant::RseqDebug => Some("rseq-debug"),
        }
    }

    /// The kernel's boot argument.
    pub fn boot_argument(self) -> &'static str {
        match self {
            Variant::RseqDebug => "rseq_debug=1",
            _ => "",
        }
    }
}

/// One machine to boot.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    pub kernel: &'static str,
    pub libc: &'static str,
    pub variant: Variant,
}

/// All cells, the newest pair first.
pub(super) fn all() -> Vec<Cell> {
    let pairs = KERNELS.iter().zip(PAIRS).flat_map(|(kernel, row)| {
        let chosen = LIBCS.iter().zip(row.bytes()).filter(|(_, x)| *x == b'x');
        chosen.map(|(libc, _)| Cell {
            kernel,
            libc,
            variant: Variant::Plain,
        })
    });
    let variants = VARIANTS.iter().map(|&(kernel, libc, variant)| Cell {
        kernel,
        libc,
        variant,
    });
    let mut cells: Vec<Cell> = pairs.chain(variants).collect();
    cells.sort_by_key(|cell| !cell.is_newest());
    cells
}

impl Cell {
    pub fn is_newest(&self) -> bool {
        (self.kernel, self.libc) == NEWEST && self.variant == Variant::Plain
    }

    /// The name by suites, for file names.
    pub fn id(&self) -> String {
        let variant = self
            .variant
            .name()
            .map_or(String::new(), |n| format!("+{n}"));
        format!("{}-{}{variant}", self.kernel, self.libc)
    }

    /// The name by versions: `7.2/2.43+docker`.
    pub fn label(&self, kernel: &Kernel, root: &Root) -> String {
        let variant = self
            .variant
            .name()
            .map_or(String::new(), |n| format!("+{n}"));
        format!("{}/{}{variant}", suites::short(&kernel.release), root.libc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_and_every_libc_has_a_cell() {
        let cells = all();
        for kernel in KERNELS {
            assert!(cells.iter().any(|cell| cell.kernel == kernel));
            assert!(
                cells
                    .iter()
                    .any(|cell| cell.kernel == kernel && cell.libc == NEWEST.1)
            );
        }
        for libc in LIBCS {
            assert!(
                cells
                    .iter()
                    .any(|cell| cell.libc == libc && cell.kernel == NEWEST.0)
            );
        }
        assert!(cells[0].is_newest());
    }
}
