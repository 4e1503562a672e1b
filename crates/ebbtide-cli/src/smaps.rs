//! The mappings of a process, as the kernel counts them: `/proc/PID/smaps`.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;

use anyhow::{Result, anyhow};
use ebbtide_tools::proc::kib_field;

/// One mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The first address.
    pub start: u64,
    /// The address behind the last byte.
    pub end: u64,
    /// Such as `rw-p`.
    pub permissions: String,
    /// Where its first byte is in the file.
    pub offset: u64,
    /// The file, or a name in brackets; empty for anonymous memory.
    pub path: String,
    /// What the kernel counts of it, in bytes.
    pub counted: Counted,
}

/// What the kernel counts of a mapping, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Resident.
    pub resident: u64,
    /// Swapped out.
    pub swapped: u64,
    /// Of what is resident, in huge pages.
    pub huge: u64,
    /// Of what is resident, what the kernel may take (`MADV_FREE`).
    pub lazy: u64,
    /// Of what is resident, what other processes have mapped too.
    pub shared: u64,
}

impl Counted {
    /// Adds another mapping's counts.
    pub fn add(&mut self, other: &Self) {
        self.resident += other.resident;
        self.swapped += other.swapped;
        self.huge += other.huge;
        self.lazy += other.lazy;
        self.shared += other.shared;
    }
}

impl Mapping {
    /// Whether it can be read and written, and belongs to this process alone.
    pub fn is_private_data(&self) -> bool {
        self.permissions.starts_with("rw") && self.permissions.ends_with('p')
    }

    /// Whether no file is behind it.
    pub fn is_anonymous(&self) -> bool {
        self.path.is_empty()
    }

    /// The last part of the path.
    pub fn file_name(&self) -> &str {
        let path = self.path.strip_suffix(" (deleted)").unwrap_or(&self.path);
        path.rsplit('/').next().unwrap_or_default()
    }

    /// Parses `START-END PERMISSIONS OFFSET DEVICE INODE PATH`.
    fn head(line: &str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        Some(Mapping {
            start: address(start)?,
            end: address(end)?,
            permissions: fields.next()?.into(),
            offset: address(fields.next()?)?,
            path: fields.nth(2).unwrap_or_default().trim().into(),
            counted: Counted::default(),
        })
    }
}

/// Reads the mappings of a process from `maps`, or with counts from `smaps`. Another user's process refuses that.
pub fn read(pid: u32, file: &str) -> Result<Vec<Mapping>> {
    let refused = |error: io::Error| match error.kind() {
        ErrorKind::PermissionDenied => {
            let owner = fs::metadata(format!("/proc/{pid}")).map_or(0, |about| about.uid());
            anyhow!(
                "process {pid} belongs to user {owner}, or forbids reading its memory: run this command as that user, or as root"
            )
        }
        _ => anyhow::Error::new(error).context(format!("process {pid} has ended")),
    };
    let text = fs::read(format!("/proc/{pid}/{file}")).map_err(refused)?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

/// Parses the file. Each mapping is a line with addresses, and lines `Name: value` below it.
pub fn parse(text: &str) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        // Addresses are in small letters; names of counts begin with a capital one.
        if let Some(mapping) = Mapping::head(line).filter(|_| !line.starts_with(char::is_uppercase))
        {
            mappings.push(mapping);
        } else if let Some(last) = mappings.last_mut() {
            last.counted.count(line);
        }
    }
    mappings
}

impl Counted {
    fn count(&mut self, line: &str) {
        let Some((name, _)) = line.split_once(':') else {
            return;
        };
        let field = match name {
            "Rss" => &mut self.resident,
            "Swap" => &mut self.swapped,
            "AnonHugePages" => &mut self.huge,
            "LazyFree" => &mut self.lazy,
            "Shared_Clean" | "Shared_Dirty" => &mut self.shared,
            _ => return,
        };
        *field += kib_field(line, name).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
7f0000000000-7f0000200000 rw-p 00000000 00:00 0 
Size:               2048 kB
Rss:                1024 kB
Shared_Clean:          4 kB
Shared_Dirty:          8 kB
AnonHugePages:       512 kB
LazyFree:             16 kB
Swap:                 64 kB
SwapPss:              64 kB
VmFlags: rd wr mr mw me ac sd
7f1000000000-7f1000001000 r-xp 00001000 08:01 42                         /opt/a b/lib.so (deleted)
Rss:                   4 kB
";

    #[test]
    fn mappings_have_their_counts() {
        let mappings = parse(TEXT);
        assert_eq!(mappings.len(), 2);
        let counted = Counted {
            resident: 1 << 20,
            swapped: 64 << 10,
            huge: 512 << 10,
            lazy: 16 << 10,
            shared: 12 << 10,
        };
        assert_eq!(mappings[0].counted, counted);
        assert!(mappings[0].is_private_data() && mappings[0].is_anonymous());
        assert_eq!(mappings[1].file_name(), "lib.so");
        assert_eq!(mappings[1].end - mappings[1].start, 4096);
        assert_eq!(mappings[1].offset, 4096);
        assert!(!mappings[1].is_private_data());
    }

    #[test]
    fn other_text_is_no_mapping() {
        assert_eq!(parse("Rss: 4 kB\nnothing\n"), []);
    }
}
