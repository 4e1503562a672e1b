//! Makes the initial file system of an emulated machine, in the cpio format that kernels read ("newc"). A kernel
//! reads several archives in one file, one after the other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// An archive under construction. Names are absolute.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    directories: BTreeSet<PathBuf>,
}

impl Archive {
    /// Adds the first process, and `/dev/console`, which the kernel opens for it.
    pub(crate) fn init(&mut self) {
        self.file(Path::new("/init"), include_bytes!("../guest/init"));
        let console = Path::new("/dev/console");
        self.parents(console);
        self.entry(console, 0o020_600, (5, 1), &[]);
    }

    /// Adds a file that all users may read and execute.
    pub(crate) fn file(&mut self, name: &Path, content: &[u8]) {
        self.parents(name);
        self.entry(name, 0o100_755, (0, 0), content);
    }

    pub(crate) fn link(&mut self, name: &Path, target: &Path) {
        self.parents(name);
        self.entry(
            name,
            0o120_777,
            (0, 0),
            target.as_os_str().as_encoded_bytes(),
        );
    }

    /// Adds a directory that may stay empty.
    pub(crate) fn directory(&mut self, name: &Path) {
        self.parents(&name.join("x"));
    }

    fn parents(&mut self, name: &Path) {
        let above: Vec<PathBuf> = name.ancestors().skip(1).map(Path::to_owned).collect();
        for dir in above.into_iter().rev().filter(|dir| dir.parent().is_some()) {
            if !self.directories.contains(&dir) {
                self.entry(&dir, 0o040_755, (0, 0), &[]);
                self.directories.insert(dir);
            }
        }
    }

    fn entry(&mut self, name: &Path, mode: u32, device: (u32, u32), content: &[u8]) {
        let name = name.as_os_str().as_encoded_bytes();
        let name = name.strip_prefix(b"/").unwrap_or(name);
        let length = u32::try_from(content.len()).expect("a file below 4 GiB");
        let name_length = name.len() as u32 + 1;
        self.entries += 1;
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            length,
            0,
            0,
            device.0,
            device.1,
            name_length,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name);
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.entry(Path::new("TRAILER!!!"), 0, (0, 0), &[]);
        self.bytes
    }
}
