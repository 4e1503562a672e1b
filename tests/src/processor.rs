//! The processors that machines are emulated for, and what differs between them.

use std::path::{Path, PathBuf};

use crate::run::target_dir;

/// The kind of processor of an emulated machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Processor {
    /// That of this machine; the programs are those that run here too.
    X86_64,
    /// Everything for it is made by `scripts/aarch64`.
    Aarch64,
}

impl Processor {
    /// The emulator, and Debian's package that holds it.
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

    /// What the kernel is told: its console. And what it hands on to the first process: where commands come from.
    pub(crate) fn ports(self) -> &'static str {
        match self {
            Processor::X86_64 => "console=ttyS0 PORT=ttyS1",
            Processor::Aarch64 => "console=ttyAMA0 PORT=ttyS0",
        }
    }

    /// Whether this machine has it.
    pub(crate) fn is_native(self) -> bool {
        match self {
            Processor::X86_64 => cfg!(target_arch = "x86_64"),
            Processor::Aarch64 => cfg!(target_arch = "aarch64"),
        }
    }
}

/// What `scripts/aarch64` has made or fetched.
pub(crate) fn for_aarch64(name: &str) -> Result<PathBuf, String> {
    let path = target_dir().join("aarch64").join(name);
    path.canonicalize()
        .map_err(|_| format!("{} is missing: scripts/aarch64 fetch", path.display()))
}
