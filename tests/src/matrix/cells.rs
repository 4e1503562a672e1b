//! Selects which kernel is combined with which C library, on which processor, and under which conditions.

use super::suites::{self, Kernel, Root};
use crate::Processor;

/// Suites whose kernels are booted, oldest first. The last one counts only if it is newer than the one before.
pub(super) const KERNELS: [&str; 5] = ["bullseye", "bookworm", "trixie", "sid", "experimental"];
/// C libraries that are run on x86-64, with the programs of their suites.
pub(super) const LIBCS: [Libc; 5] = [
    Libc::Glibc("bullseye"),
    Libc::Glibc("bookworm"),
    Libc::Glibc("trixie"),
    Libc::Glibc("sid"),
    Libc::Musl("sid"),
];
/// The suite of the newest kernel that is not a release candidate, and of the newest C library.
pub(super) const NEWEST: &str = "sid";

/// The pairs that run on x86-64. The interface between kernel and libc changed in few versions: libc registers rseq
/// (2.35), with more than 32 bytes (2.41); the kernel checks its own fields there (7.0.10). A container may bring an
/// older or a newer libc than its host was made for.
///
/// So these pairs run: those that were shipped together, every libc on the newest kernels, and the newest libc on
/// every kernel. Six pairs with glibc in between are left out. An old kernel treats all libcs from 2.36 on alike, and
/// 2.31, which does not register rseq, runs on the oldest kernel and on the two newest. musl, which does not either,
/// runs on the oldest kernel and on the newest.
const PAIRS: [&str; 5] = [
    // 2.31 2.36 2.41 2.43 musl
    "x..xx", // 5.10
    ".x.x.", // 6.1
    "..xx.", // 6.12
    "xxxxx", // 7.2
    "xxxx.", // next
];

/// Sizes of pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pages {
    K4,
    K16,
    K64,
}

pub(super) const PAGES: [Pages; 3] = [Pages::K4, Pages::K16, Pages::K64];

/// The kernels that run on aarch64: their suite, that of their C library, and their sizes of pages. With 16 KiB there
/// are kernels from trixie on. One with 64 KiB takes long to build, so there is one.
pub(super) const AARCH64: [(&str, &str, &str); 4] = [
    // 4 16 64
    ("bookworm", "bookworm", "x.."),
    ("trixie", "trixie", "xxx"),
    ("sid", "sid", "xx."),
    ("experimental", "sid", "xx."),
];

/// A C library of a suite.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Libc {
    Glibc(&'static str),
    Musl(&'static str),
}

/// A special condition of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    Plain,
    /// A filter of system calls, `tests/matrix/NAME.filter`.
    Filter(&'static str),
    /// The kernel checks the rseq area of every thread, whatever its length.
    RseqDebug,
}

/// Cells with a special condition, each on one pair of x86-64.
const VARIANTS: [(&str, &str, Variant); 3] = [
    ("sid", "sid", Variant::Filter("docker")),
    ("sid", "sid", Variant::Filter("system-service")),
    // libc registers 32 bytes, which the kernel checks only with rseq debugging.
    ("sid", "bookworm", Variant::RseqDebug),
];

impl Pages {
    pub fn kib(self) -> u32 {
        match self {
            Pages::K4 => 4,
            Pages::K16 => 16,
            Pages::K64 => 64,
        }
    }
}

impl Libc {
    pub fn name(self) -> &'static str {
        match self {
            Libc::Glibc(_) => "glibc",
            Libc::Musl(_) => "musl",
        }
    }

    pub fn suite(self) -> &'static str {
        let (Libc::Glibc(suite) | Libc::Musl(suite)) = self;
        suite
    }
}

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
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Cell {
    pub processor: Processor,
    pub kernel: &'static str,
    pub pages: Pages,
    pub libc: Libc,
    pub variant: Variant,
}

/// The newest pair.
pub(super) const NEWEST_CELL: Cell = native(NEWEST, Libc::Glibc(NEWEST), Variant::Plain);

/// The same on another processor, with larger pages.
pub(super) const NEWEST_ON_AARCH64: Cell = Cell {
    processor: Processor::Aarch64,
    pages: Pages::K16,
    ..NEWEST_CELL
};

const fn native(kernel: &'static str, libc: Libc, variant: Variant) -> Cell {
    Cell {
        processor: Processor::X86_64,
        kernel,
        pages: Pages::K4,
        libc,
        variant,
    }
}

/// All cells, the newest pair first.
pub(super) fn all() -> Vec<Cell> {
    let pairs = KERNELS.iter().zip(PAIRS).flat_map(|(kernel, row)| {
        let chosen = LIBCS.iter().zip(row.bytes()).filter(|(_, x)| *x == b'x');
        chosen.map(|(&libc, _)| native(kernel, libc, Variant::Plain))
    });
    let variants = VARIANTS
        .iter()
        .map(|&(kernel, libc, variant)| native(kernel, Libc::Glibc(libc), variant));
    let other = AARCH64.iter().flat_map(|&(kernel, libc, row)| {
        let chosen = PAGES.iter().zip(row.bytes()).filter(|(_, x)| *x == b'x');
        chosen.map(move |(&pages, _)| Cell {
            processor: Processor::Aarch64,
            pages,
            ..native(kernel, Libc::Glibc(libc), Variant::Plain)
        })
    });
    let mut cells: Vec<Cell> = pairs.chain(variants).chain(other).collect();
    cells.sort_by_key(|cell| *cell != NEWEST_CELL);
    cells
}

impl Cell {
    /// The name by suites, for file names: `sid-sid+docker`, `sid-musl`, `sid-sid+arm64-16k`.
    pub fn id(&self) -> String {
        let libc = match self.libc {
            Libc::Glibc(suite) => suite,
            Libc::Musl(_) => "musl",
        };
        format!("{}-{libc}{}", self.kernel, self.conditions())
    }

    /// The name by versions: `7.2/2.43+docker`, `7.2/musl-1.2.5`, `7.2/2.43+arm64-16k`.
    pub fn label(&self, kernel: &Kernel, root: &Root) -> String {
        let libc = match self.libc {
            Libc::Glibc(_) => "",
            Libc::Musl(_) => "musl-",
        };
        let kernel = suites::short(&kernel.release);
        format!("{kernel}/{libc}{}{}", root.libc, self.conditions())
    }

    fn conditions(&self) -> String {
        let mut text = String::new();
        if self.processor == Processor::Aarch64 {
            text += &format!("+{}-{}k", self.processor.debian(), self.pages.kib());
        }
        if let Some(name) = self.variant.name() {
            text += &format!("+{name}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_and_every_libc_has_a_cell() {
        let cells = all();
        let runs = |kernel, libc| {
            let wanted = native(kernel, libc, Variant::Plain);
            cells.contains(&wanted)
        };
        assert!(
            KERNELS
                .iter()
                .all(|kernel| runs(kernel, Libc::Glibc(NEWEST)))
        );
        assert!(LIBCS.iter().all(|&libc| runs(NEWEST, libc)));
        assert!(PAGES.iter().all(|&pages| {
            let fits = |cell: &Cell| cell.processor == Processor::Aarch64 && cell.pages == pages;
            cells.iter().any(fits)
        }));
        assert!(cells[0] == NEWEST_CELL && cells.contains(&NEWEST_ON_AARCH64));
    }

    #[test]
    fn no_two_cells_have_one_name() {
        let mut names: Vec<String> = all().iter().map(Cell::id).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
