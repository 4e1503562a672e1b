//! A thread leaves the program's table of descriptors for an empty one of its own.
//!
//! The kernel has no call for an empty table. `close_range` with `CLOSE_RANGE_UNSHARE` copies the first 64
//! descriptors, which fit into the new table itself, and closes these copies. Of more descriptors it copies none.
//!
//! Each of these closes runs the file's *flush* operation, in the name of the process. Most files have none. But a
//! message queue removes the process's `mq_notify`, FUSE, NFS and others write to their server, and a driver may do
//! anything. While such a file is among the first 64, a worker keeps the program's table, and opens nothing
//! ([decision 0067](../../../../docs/decisions/0067-workers-copy-no-file-that-notices-a-close.md)).

use crate::call::{Errno, Sysno, syscall};
use core::sync::atomic::Ordering;

/// Number of descriptors that are copied, whatever range is closed: the kernel's `NR_OPEN_DEFAULT`.
const COPIED: usize = usize::BITS as usize;

/// Replaces the program's descriptor table by an empty one for this thread alone. Returns `false` if refused; then
/// the table is still the program's.
pub fn leave_descriptors() -> bool {
    crate::file::SOME_LEFT_DESCRIPTORS.store(true, Ordering::Relaxed);
    has_close_range() && close_range(0, u32::MAX).is_ok()
}

/// The same for a thread of the program's process. Also returns `false` if a file among those that the kernel copies
/// could notice that a copy of it is closed. A query about a file on a server may wait for that server.
pub fn leave_descriptors_unnoticed() -> bool {
    has_close_range() && (0..COPIED).all(is_closed_unnoticed) && leave_descriptors()
}

/// Calls `close_range` with an empty range: a kernel with the call reports an error, while a filter may claim
/// success.
fn has_close_range() -> bool {
    close_range(1, 0) == Err(Errno::EINVAL)
}

fn close_range(first: u32, last: u32) -> Result<usize, Errno> {
    const CLOSE_RANGE_UNSHARE: u32 = 2;
    // SAFETY: the flag makes the table that is emptied this thread's own.
    unsafe { syscall!(Sysno::close_range, first, last, CLOSE_RANGE_UNSHARE) }
}

/// Whether the descriptor is closed, or its file has no flush operation.
fn is_closed_unnoticed(fd: usize) -> bool {
    match kind_of(fd) {
        Err(error) => error == Errno::EBADF,
        Ok((libc::S_IFSOCK | libc::S_IFIFO | libc::S_IFDIR | libc::S_IFLNK | libc::S_IFBLK, _)) => {
            true
        }
        Ok((libc::S_IFCHR, device)) => is_quiet_device(device),
        // Regular files, and files without a kind, such as timers and epoll.
        Ok(_) => file_system_of(fd).is_ok_and(|magic| QUIET_FILE_SYSTEMS.contains(&magic)),
    }
}

/// The kind of the open file, and a device's major and minor number. No server is asked.
fn kind_of(fd: usize) -> Result<(u32, (u32, u32)), Errno> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: zero is a valid statx, a place to write to; the path ends with a NUL.
    let about = unsafe {
        let mut about: libc::statx = core::mem::zeroed();
        let path = c"".as_ptr();
        syscall!(
            Sysno::statx,
            fd,
            path,
            flags,
            libc::STATX_TYPE,
            &raw mut about
        )?;
        about
    };
    let kind = u32::from(about.stx_mode) & libc::S_IFMT;
    Ok((kind, (about.stx_rdev_major, about.stx_rdev_minor)))
}

fn file_system_of(fd: usize) -> Result<u32, Errno> {
    // SAFETY: zero is a valid statfs, a place to write to.
    unsafe {
        let mut about: libc::statfs64 = core::mem::zeroed();
        syscall!(Sysno::fstatfs, fd, &raw mut about)?;
        Ok(about.f_type as u32)
    }
}

/// Devices whose drivers have no flush operation: memory, terminals, virtual machines, networks, and file systems in
/// user space. All others count as unknown.
fn is_quiet_device((major, minor): (u32, u32)) -> bool {
    const MEMORY: u32 = 1;
    const TERMINALS: [u32; 2] = [4, 5];
    const PSEUDO_TERMINALS: core::ops::RangeInclusive<u32> = 136..=143;
    const MISC: u32 = 10;
    const TUN: u32 = 200;
    const FUSE: u32 = 229;
    const KVM: u32 = 232;
    major == MEMORY
        || TERMINALS.contains(&major)
        || PSEUDO_TERMINALS.contains(&major)
        || major == MISC && [TUN, FUSE, KVM].contains(&minor)
}

/// The numbers of file systems whose files have no flush operation, from the kernel's `magic.h`.
const QUIET_FILE_SYSTEMS: [u32; 27] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0xf2f5_2010, // f2fs
    0xca45_1a4e, // bcachefs
    0x2fc1_2fc1, // zfs
    0x794c_7630, // overlay, which passes a flush on to what lies below
    0x0102_1994, // tmpfs, memfd
    0x8584_58f6, // ramfs
    0x9584_58f6, // hugetlbfs
    0x5345_434d, // memfd_secret
    0x444d_4142, // dma-buf
    0x0904_1934, // files without a name: epoll, timers, rings
    0x5049_4446, // pidfd
    0x6e73_6673, // namespaces
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0xcafe_4a11, // bpf
    0x4d44,      // vfat
    0x2011_bab0, // exfat
    0x9660,      // iso9660
    0x7371_7368, // squashfs
    0xe0f5_e1e2, // erofs
];

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::os::fd::AsRawFd;

    fn opened(path: &str) -> Option<bool> {
        let file = std::fs::File::open(path).ok()?;
        Some(is_closed_unnoticed(file.as_raw_fd() as usize))
    }

    #[test]
    fn ordinary_files_do_not_notice() {
        assert_eq!(kind_of(1 << 20).err(), Some(Errno::EBADF));
        assert!(is_closed_unnoticed(1 << 20), "nothing is open");
        for path in ["/dev/null", "/proc/self/status", "/proc", "/tmp"] {
            assert_eq!(opened(path), Some(true), "{path}");
        }
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(is_closed_unnoticed(reader.as_raw_fd() as usize));
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        assert!(is_closed_unnoticed(socket.as_raw_fd() as usize));
        // SAFETY: numbers and a name.
        unsafe {
            let epoll = syscall!(Sysno::epoll_create1, libc::O_CLOEXEC).unwrap();
            let memory = syscall!(Sysno::memfd_create, c"test".as_ptr(), 1).unwrap();
            assert!(is_closed_unnoticed(epoll) && is_closed_unnoticed(memory));
            let _ = syscall!(Sysno::close, epoll);
            let _ = syscall!(Sysno::close, memory);
        }
    }

    #[test]
    fn a_message_queue_notices() {
        let name = std::format!("ebbtide-test-{}\0", std::process::id());
        let flags = libc::O_RDWR | libc::O_CREAT;
        let none = core::ptr::null::<u8>();
        // SAFETY: the name ends with a NUL; no attributes.
        unsafe {
            let Ok(queue) = syscall!(Sysno::mq_open, name.as_ptr(), flags, 0o600, none) else {
                std::eprintln!("skipped: no message queues");
                return;
            };
            let _ = syscall!(Sysno::mq_unlink, name.as_ptr());
            assert!(!is_closed_unnoticed(queue));
            let _ = syscall!(Sysno::close, queue);
        }
    }

    #[test]
    fn devices_that_are_not_known_may_notice() {
        assert!(is_quiet_device((1, 3)) && is_quiet_device((136, 0)));
        assert!(is_quiet_device((10, 229)) && !is_quiet_device((10, 228)));
        assert!(!is_quiet_device((226, 128)) && !is_quiet_device((195, 0)));
    }
}
