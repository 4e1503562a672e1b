//! The processors for which machines are emulated, and the differences between them.

use std::path::Path;

/// The kind of processor of an emulated machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Processor {
    /// Intel's and AMD's, with 64 bits.
    X86_64,
    /// Arm's with 64 bits.
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

    /// Debian's name of it.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Processor::X86_64 => "amd64",
            Processor::Aarch64 => "arm64",
        }
    }

    /// The directory of its libraries with glibc, below `/usr/lib`.
    pub(crate) fn libraries(self) -> &'static str {
        match self {
            Processor::X86_64 => "x86_64-linux-gnu",
            Processor::Aarch64 => "aarch64-linux-gnu",
        }
    }

    /// Arguments for the emulator: the board, a port for the kernel's log, which goes to a file, and the port
    /// `port` for commands.
    pub(crate) fn board(self, log: &Path) -> Vec<String> {
        let log = format!("file:{}", log.display());
        let parts: &[&str] = match self {
            Processor::X86_64 => &["-cpu", "max", "-serial", &log, "-serial", "chardev:port"],
            // It has pages of all three sizes, and no pointer authentication, whose emulation takes most of the time.
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
