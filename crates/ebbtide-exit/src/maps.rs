//! What is mapped: lines of `/proc/self/maps`.

use ebbtide_sys::file::{each_line, parse_number};
use ebbtide_sys::helper::Descriptor;

/// A mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its first byte.
    pub start: usize,
    /// Behind its last byte.
    pub end: usize,
    /// What stands behind it.
    pub kind: Kind,
}

/// What stands behind a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Memory of this process alone. `reserved`: it cannot be touched, so it is mostly empty.
    Anonymous {
        /// See there.
        reserved: bool,
    },
    /// A file, by device and number, or memory that may be shared.
    File {
        /// Major and minor number.
        device: (usize, usize),
        /// The file's number on it.
        inode: u64,
    },
    /// A ring of requests by io_setup(2), which unmapping does not end.
    Requests,
    /// The kernel's own: the vDSO and its data.
    Kernel,
}

/// Calls `each` for every mapping in ascending order until it says `false`. It may take mappings away, those it
/// has been told of.
pub fn for_each(maps: &Descriptor, buffer: &mut [u8], mut each: impl FnMut(Mapping) -> bool) {
    maps.rewind();
    let read = |rest: &mut [u8]| maps.read(rest);
    each_line(buffer, read, |line| parse(line).is_none_or(&mut each));
}

/// `start-end perms offset major:minor inode   path`
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (start, end) = numbers(fields.next()?, b'-')?;
    let permissions = fields.next()?;
    let _offset = fields.next()?;
    let device = numbers(fields.next()?, b':')?;
    let inode = parse_number(fields.next()?)?;
    let name = fields.find(|field| !field.is_empty()).unwrap_or(b"");
    let shared = permissions.get(3) == Some(&b's');
    let kind = if name == b"/[aio]" {
        Kind::Requests
    } else if shared || inode != 0 || name.starts_with(b"/") {
        Kind::File { device, inode }
    } else if name.is_empty()
        || name.starts_with(b"[heap]")
        || name.starts_with(b"[stack")
        || name.starts_with(b"[anon:")
    {
        Kind::Anonymous {
            reserved: permissions.starts_with(b"---"),
        }
    } else {
        Kind::Kernel
    };
    (start < end).then_some(Mapping { start, end, kind })
}

/// Two hexadecimal numbers.
fn numbers(text: &[u8], between: u8) -> Option<(usize, usize)> {
    let (first, second) = core::str::from_utf8(text)
        .ok()?
        .split_once(char::from(between))?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(first)?, number(second)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_kind() {
        let kind = |line: &str| parse(line.as_bytes()).map(|mapping| mapping.kind);
        let file = Kind::File {
            device: (0xfe, 1),
            inode: 77,
        };
        let anonymous = |reserved| Some(Kind::Anonymous { reserved });
        assert_eq!(
            parse(b"7f00-8000 r-xp 00001000 fe:01 77   /usr/lib/a b.so"),
            Some(Mapping {
                start: 0x7f00,
                end: 0x8000,
                kind: file
            })
        );
        assert_eq!(kind("1000-2000 rw-p 00000000 00:00 0 "), anonymous(false));
        assert_eq!(kind("1000-2000 ---p 00000000 00:00 0"), anonymous(true));
        assert_eq!(
            kind("1000-2000 rw-p 00000000 00:00 0     [heap]"),
            anonymous(false)
        );
        assert_eq!(
            kind("1000-2000 rw-p 00000000 00:00 0     [anon:x y]"),
            anonymous(false)
        );
        assert_eq!(
            kind("1000-2000 r-xp 00000000 00:00 0     [vdso]"),
            Some(Kind::Kernel)
        );
        let shared = kind("1000-2000 rw-s 00000000 00:01 5 /dev/zero (deleted)");
        assert!(matches!(shared, Some(Kind::File { .. })));
        assert_eq!(
            kind("1000-2000 rw-s 00000000 00:0f 5 /[aio] (deleted)"),
            Some(Kind::Requests)
        );
        assert_eq!(kind("nonsense"), None);
        assert_eq!(kind("2000-1000 rw-p 0 00:00 0"), None);
    }

    #[test]
    fn this_process() {
        let maps = Descriptor::open(c"/proc/self/maps").unwrap();
        let mut buffer = [0; 4600];
        let here = &raw const buffer as usize;
        let (mut last, mut found) = (0, false);
        for_each(&maps, &mut buffer, |mapping| {
            assert!(mapping.start >= last);
            last = mapping.end;
            found |= (mapping.start..mapping.end).contains(&here)
                && matches!(mapping.kind, Kind::Anonymous { .. });
            true
        });
        assert!(found);
    }
}
