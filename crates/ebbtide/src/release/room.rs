//! How much memory is left: what bounds the memory kept for reuse.
//!
//! The nearest of: what the machine has available, and the distance to the limits of the process's memory
//! cgroup (version 2, else 1), its own and its parents' up to the mount.

use core::ffi::CStr;
use ebbtide_sys::file;

/// Bytes that may still be used before somebody runs short; `None` when nothing tells.
pub fn available() -> Option<u64> {
    let machine = machine();
    let group = group();
    match (machine, group) {
        (Some(machine), Some(group)) => Some(machine.min(group)),
        (one, other) => one.or(other),
    }
}

fn machine() -> Option<u64> {
    let mut buffer = [0; 512];
    let text = file::read(c"/proc/meminfo", &mut buffer).ok()?;
    let key = b"MemAvailable:";
    let line = text
        .split(|&byte| byte == b'\n')
        .find(|line| line.starts_with(key))?;
    file::parse_number(&line[key.len()..]).map(|kib| kib * 1024)
}

fn group() -> Option<u64> {
    let mut buffer = [0; 2048];
    let text = file::read(c"/proc/self/cgroup", &mut buffer).ok()?;
    let mut nearest = None;
    for line in text.split(|&byte| byte == b'\n') {
        // "0::/path" is version 2, "7:memory:/path" is version 1.
        let mut parts = line.splitn(3, |&byte| byte == b':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (root, limit, usage): (&[u8], &[u8], &[u8]) = if controllers.is_empty() {
            (b"/sys/fs/cgroup", b"/memory.max\0", b"/memory.current\0")
        } else if controllers
            .split(|&byte| byte == b',')
            .any(|name| name == b"memory")
        {
            (
                b"/sys/fs/cgroup/memory",
                b"/memory.limit_in_bytes\0",
                b"/memory.usage_in_bytes\0",
            )
        } else {
            continue;
        };
        let mut path = path;
        loop {
            if let Some(left) = distance(root, path, limit, usage) {
                nearest = Some(nearest.map_or(left, |nearest: u64| nearest.min(left)));
            }
            match path.iter().rposition(|&byte| byte == b'/') {
                Some(at) if path.len() > 1 => path = &path[..at.max(1)],
                _ => break,
            }
        }
    }
    nearest
}

fn distance(root: &[u8], path: &[u8], limit: &[u8], usage: &[u8]) -> Option<u64> {
    let limit = number(root, path, limit)?;
    // Version 1 says "no limit" with a number near the top.
    if limit >= 1 << 60 {
        return None;
    }
    Some(limit.saturating_sub(number(root, path, usage)?))
}

fn number(root: &[u8], path: &[u8], name: &[u8]) -> Option<u64> {
    let mut buffer = [0; 1024];
    let mut len = 0;
    for part in [root, path.strip_suffix(b"/").unwrap_or(path), name] {
        buffer.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    file::read_number(CStr::from_bytes_until_nul(&buffer[..len]).ok()?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_machine_has_some() {
        let available = super::available().unwrap();
        let total = ebbtide_sys::process::memory_total().unwrap().0 as u64;
        assert!(available > 0 && available <= total);
    }
}
