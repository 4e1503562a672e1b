//! The rights of the main thread, as any other thread can read them.

use crate::call::{Sysno, syscall};
use crate::file;

/// Signals that programs send to all their threads: those that the C library keeps, which libpsx uses too, and
/// `SIGSYS`.
pub const SIGNAL_TO_ALL: u64 = 1 << (33 - 1) | 1 << (libc::SIGSYS - 1);

/// The main thread's user, groups and filters.
pub struct Rights {
    /// Changes when the user, the groups or the filters change.
    pub digest: u32,
    /// Whether a seccomp(2) filter, or its strict mode, binds the main thread.
    pub is_filtered: bool,
    /// Signals pending for the process, not for one of its threads.
    pub pending: u64,
    user: u64,
    group: u64,
}

impl Rights {
    /// Reads `/proc/self/status`, which describes the main thread. Reading a thread's own file there would slow down
    /// the end of the process ([decision
    /// 0049](../../../../docs/decisions/0049-the-command-line-reads-no-threads-in-proc.md)). The calling thread
    /// should have a descriptor table of its own. `None`: it cannot be read.
    pub fn of_main_thread() -> Option<Self> {
        let mut rights = Self {
            digest: DIGEST_START,
            is_filtered: false,
            pending: 0,
            user: u64::MAX,
            group: u64::MAX,
        };
        let is_read = file::lines(c"/proc/self/status", |line| {
            rights.take(line);
            true
        });
        (is_read && rights.user != u64::MAX).then_some(rights)
    }

    fn take(&mut self, line: &[u8]) {
        let Some(at) = line.iter().position(|&byte| byte == b':') else {
            return;
        };
        let (name, value) = (&line[..at], &line[at + 1..]);
        match name {
            b"Uid" => self.user = effective(value),
            b"Gid" => self.group = effective(value),
            b"Groups" | b"Seccomp_filters" => {}
            b"Seccomp" => self.is_filtered = file::parse_number(value) != Some(0),
            b"ShdPnd" => return self.pending = hexadecimal(value),
            _ => return,
        }
        self.digest = line.iter().fold(self.digest, |digest, &byte| {
            (digest ^ u32::from(byte)).wrapping_mul(DIGEST_PRIME)
        });
    }

    /// Whether the calling thread has the same user and group. The kernel keeps them per thread.
    pub fn has_own_user(&self) -> bool {
        // SAFETY: no arguments.
        let (user, group) = unsafe { (syscall!(Sysno::geteuid), syscall!(Sysno::getegid)) };
        // If a filter refuses these calls, it binds this thread too.
        user.is_ok_and(|user| user as u64 == self.user)
            && group.is_ok_and(|group| group as u64 == self.group)
    }
}

/// FNV-1a.
const DIGEST_START: u32 = 0x811c_9dc5;
const DIGEST_PRIME: u32 = 0x0100_0193;

/// The second of four numbers: real, effective, saved and file system's.
fn effective(value: &[u8]) -> u64 {
    let mut numbers = value
        .split(|&byte| byte == b'\t')
        .filter(|text| !text.is_empty());
    numbers
        .nth(1)
        .and_then(file::parse_number)
        .unwrap_or(u64::MAX)
}

fn hexadecimal(value: &[u8]) -> u64 {
    let text = core::str::from_utf8(value.trim_ascii()).unwrap_or("");
    u64::from_str_radix(text, 16).unwrap_or(0)
}

/// Signals that are pending for this thread or for the process, and blocked here.
pub fn pending_signals() -> u64 {
    let mut pending = 0u64;
    let size = size_of::<u64>();
    // SAFETY: `pending` is a valid place to write to, of the size given.
    let _ = unsafe { syscall!(Sysno::rt_sigpending, &raw mut pending, size) };
    pending
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Rights {
        let mut rights = Rights {
            digest: DIGEST_START,
            is_filtered: false,
            pending: 0,
            user: u64::MAX,
            group: u64::MAX,
        };
        text.lines().for_each(|line| rights.take(line.as_bytes()));
        rights
    }

    #[test]
    fn what_counts_and_what_does_not() {
        let text = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 \nShdPnd:\t0000000100000000\n\
                    Threads:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n";
        let before = of(text);
        assert_eq!((before.user, before.group, before.pending), (2, 6, 1 << 32));
        assert!(before.is_filtered);
        assert!(!of("Seccomp:\t0").is_filtered);
        for (old, new, counts) in [
            ("Threads:\t1", "Threads:\t2", false),
            ("ShdPnd:\t00", "ShdPnd:\t10", false),
            ("filters:\t3", "filters:\t4", true),
            ("\t9 ", "\t", true),
            ("\t1\t2", "\t1\t3", true),
            ("\t5\t6", "\t4\t6", true),
        ] {
            assert_ne!(text.replace(old, new), text);
            let after = of(&text.replace(old, new));
            assert_eq!(after.digest != before.digest, counts, "{new}");
        }
    }

    #[test]
    fn this_process_s() {
        let Some(rights) = Rights::of_main_thread() else {
            return;
        };
        assert!(rights.has_own_user());
        assert_eq!(
            rights.digest,
            Rights::of_main_thread().map_or(0, |now| now.digest)
        );
        assert_eq!(pending_signals() & SIGNAL_TO_ALL, 0);
    }
}
