//! The processors for which machines are emulated, and the differences between them.

use std::path::{Path, PathBuf};

use crate::run::target_dir;

/// The kind of processor of an emulated machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Processor {
    /// The processor of this machine; it runs the programs that run here too.
    X86_64,
    /// `scripts/aarch64` makes everything for it.
    Aarch64,
}

impl Processor {
    /// The emulator, and Debian's package with it.
    pub(crate) fn emulator(self) -> (&'static str, &'static str) {
        match self {
            Processor::X86_64 => ("qemu-system-x86_64", "qemu-system-x86"),
            Processor::Aarch64 => ("qemu-system-aarch64", "qemu-system-arm"),
        }
    }

    /// Arguments for the emulator: the board, a port for the kernel's log, which goes to a file, and the port
    /// `port` for commands.
    pub(crate) fn board(self, log: &Path) -> Vec<String> {
        let log = format!("file:{}", log.display());
        let parts: &[&str] = match self {
            Processor::X86_64 => &["-cpu", "max", "-serial", &log, "-serial", "chardev:port"],
            // Without pointer authentication, whose emulation takes most of the time.
            Processor::Aarch64 => &[
                "-machine",
                "virt,gic-version=3",
                "-cpu",
                "neoverse-n1",
                "-serial",
                &log,
                "-device",
                "pci-serial,chardev=port",
            ],
        };
        parts.iter().map(|&part| part.to_owned()).collect()
    }

    /// The kernel's console, and the port for commands, which the kernel passes on to the first process.
    pub(crate) fn ports(self) -> &'static str {
        match self {
            Processor::X86_64 => "console=ttyS0 PORT=ttyS1",
            Processor::Aarch64 => "console=ttyAMA0 PORT=ttyS0",
        }
    }

    /// Whether this machine has that processor.
    pub(crate) fn is_native(self) -> bool {
        match self {
            Processor::X86_64 => cfg!(target_arch = "x86_64"),
            Processor::Aarch64 => cfg!(target_arch = "aarch64"),
        }
    }
}

/// A file that `scripts/aarch64` has made or fetched.
pub(crate) fn for_aarch64(name: &str) -> Result<PathBuf, String> {
    let path = target_dir().join("aarch64").join(name);
    path.canonicalize()
        .map_err(|_| format!("{} is missing: scripts/aarch64 fetch", path.display()))
}
