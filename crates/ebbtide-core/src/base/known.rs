//! Combinations that the library refuses at its start, because no request could ever be served.
//!
//! The program `ebbtide` knows more of them. It includes this file by its path, as it links no part of the manager.

/// A combination of kernel, C library and program under which Ebbtide does not work, or works with less. `what` is a noun
/// phrase; `happens` and `remedy` are clauses without a full stop.
#[derive(Debug)]
pub struct Known {
    /// Stable name, which `doctor` shows.
    pub id: &'static str,
    /// The combination.
    pub what: &'static str,
    /// What a program under Ebbtide does there.
    pub happens: &'static str,
    /// What the user can do.
    pub remedy: &'static str,
    /// Which part refuses it.
    pub refused: Refused,
}

/// Which part refuses a combination, with one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The library at its start: the process ends with status 127.
    ByLibrary,
    /// `ebbtide run`, before it starts the program.
    ByRun,
    /// Nobody: it works, with less.
    No,
}

/// What the library's line begins with, behind `ebbtide: `.
pub const REFUSED: &str = "cannot work here: ";

/// Checked before anything is reserved.
pub const PAGES: Known = Known {
    id: "pages",
    what: "a kernel whose pages are not 4 KiB",
    happens: "frames are 4 KiB throughout, and smaller than what such a kernel gives back",
    remedy: "boot a kernel with 4 KiB pages, or use another allocator",
    refused: Refused::ByLibrary,
};

/// Found by trying.
pub const ADDRESS_SPACE: Known = Known {
    id: "address_space",
    what: "too little address space",
    happens: "there is no room for the reservation, so no request could ever be served",
    remedy: "raise 'ulimit -v' to 64 MiB or more, and vm.max_map_count if that is low",
    refused: Refused::ByLibrary,
};
