//! Combinations of kernel, C library and program under which Ebbtide does not work, or works with less: one table.
//!
//! The library refuses some of them at its start, because no request could ever be served. `ebbtide run` refuses others, and `ebbtide doctor`
//! reports all of them. `docs/doctor.md` shows the table, and `scripts/check-docs` compares the two.

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

/// The sizes of a kernel's pages with which the library works, in bytes.
pub const PAGE_SIZES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

/// Checked before anything is reserved.
pub const PAGES: Known = Known {
    id: "pages",
    what: "a kernel whose pages are not 4, 16 or 64 KiB",
    happens: "the library is laid out for these sizes only, for x86-64 for 4 KiB only",
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

/// See [`Known::what`].
pub const STATIC: Known = Known {
    id: "static",
    what: "a statically linked program",
    happens: "no loader runs, so nothing can be preloaded",
    remedy: "link it dynamically, or link Ebbtide into it",
    refused: Refused::ByRun,
};

/// See [`Known::what`].
pub const PRIVILEGE: Known = Known {
    id: "privilege",
    what: "a program that is set-user-ID or set-group-ID, or has file capabilities",
    happens: "the loader ignores preloaded libraries",
    remedy: "run it as the user it changes to, or preload system-wide with /etc/ld.so.preload",
    refused: Refused::ByRun,
};

/// See [`Known::what`].
pub const MACHINE: Known = Known {
    id: "machine",
    what: "a 32-bit program, or one for another processor",
    happens: "the loader ignores the library, with a line on stderr",
    remedy: "use a 64-bit build of it for this machine",
    refused: Refused::ByRun,
};

/// See [`Known::what`].
pub const OWN_MALLOC: Known = Known {
    id: "own_malloc",
    what: "a program that defines malloc itself",
    happens: "its calls reach Ebbtide only if it passes them on",
    remedy: "build it without its own allocator",
    refused: Refused::ByRun,
};

/// Seen with 7.2: lost output in 7 of 8 runs of an x86-64 program, in none with `workers=0`; the crash on aarch64.
pub const EMULATOR: Known = Known {
    id: "emulator",
    what: "qemu-user, which emulates system calls",
    happens: "a program with a worker may lose its output, and realloc of a large allocation may crash",
    remedy: "set EBBTIDE_CONF=syscalls=basic, or emulate a whole machine (qemu-system)",
    refused: Refused::ByRun,
};

/// See [`Known::what`].
pub const NO_RSEQ: Known = Known {
    id: "no_rseq",
    what: "a kernel without rseq, or a filter that refuses it",
    happens: "the portable mode: locks in place of restartable sequences",
    remedy: "use Linux 5.10 or later, and allow rseq in the sandbox",
    refused: Refused::No,
};

/// See [`Known::what`].
pub const OTHER_RSEQ: Known = Known {
    id: "other_rseq",
    what: "an rseq registration by another library",
    happens: "the portable mode: Ebbtide uses only its own registration and that of glibc",
    remedy: "remove glibc.pthread.rseq=0 from GLIBC_TUNABLES, or the other library",
    refused: Refused::No,
};

/// See [`Known::what`].
pub const NO_FENCE: Known = Known {
    id: "no_fence",
    what: "a kernel before 5.10, or a filter that refuses membarrier",
    happens: "the portable mode: caches of other CPUs could not be emptied",
    remedy: "run kernel 5.10 or later, and allow membarrier in the sandbox",
    refused: Refused::No,
};

/// The versions are upstream's; [`crate::kernels`] has what the library does exactly.
pub const UNABORTED: Known = Known {
    id: "unaborted",
    what: "aarch64 with upstream Linux 6.19 to 7.0.13, or a candidate of 7.1",
    happens: "the portable mode: these kernels do not abort a restartable sequence on preemption",
    remedy: "run kernel 7.0.14, 7.1 or later, or 6.18 or earlier; a repaired kernel with an old number counts as faulty",
    refused: Refused::No,
};

/// See [`Known::what`].
pub const OLD_KERNEL: Known = Known {
    id: "old_kernel",
    what: "a kernel before 5.18",
    happens: "no lazy release, as MADV_FREE races with direct reads; locked memory is not given back",
    remedy: "run kernel 5.18 or later",
    refused: Refused::No,
};

/// `aligned_alloc` and the like of the first one are found, `free_sized` and `pvalloc` of some are not.
pub const OTHER_FIRST: Known = Known {
    id: "other_first",
    what: "another allocator before Ebbtide in LD_PRELOAD",
    happens: "it serves malloc and Ebbtide is idle; a function that only Ebbtide defines, such as free_sized, aborts",
    remedy: "name one allocator in LD_PRELOAD; 'ebbtide run' puts Ebbtide first",
    refused: Refused::No,
};

/// See [`Known::what`].
pub const CHECKER: Known = Known {
    id: "checker",
    what: "valgrind, AddressSanitizer and the like",
    happens: "they replace malloc themselves, or end the program because they do not come first",
    remedy: "run them without Ebbtide; harden=on finds some mistakes",
    refused: Refused::No,
};

/// See [`Known::what`].
pub const OTHER_KERNEL: Known = Known {
    id: "other_kernel",
    what: "gVisor or WSL 1, which are not Linux kernels",
    happens: "not tested; without rseq the portable mode",
    remedy: "use a Linux kernel, or EBBTIDE_CONF=syscalls=basic",
    refused: Refused::No,
};

/// All, in the order of the table.
pub const ALL: [&Known; 15] = [
    &PAGES,
    &ADDRESS_SPACE,
    &STATIC,
    &PRIVILEGE,
    &MACHINE,
    &OWN_MALLOC,
    &EMULATOR,
    &NO_RSEQ,
    &OTHER_RSEQ,
    &NO_FENCE,
    &UNABORTED,
    &OLD_KERNEL,
    &OTHER_FIRST,
    &CHECKER,
    &OTHER_KERNEL,
];
