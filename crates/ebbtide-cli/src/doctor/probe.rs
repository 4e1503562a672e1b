//! Checks versions and kernel features. It tries each feature with a real call.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use ebbtide_tools::machine;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::{
    MembarrierCommand, MembarrierQuery, membarrier as membarrier_call, membarrier_query,
};

use super::advice::{self, PAGE_BYTES, Pages};
use super::{Check, State, rseq};
use ebbtide_interface::known;

const PIDFD_SELF_THREAD_GROUP: libc::c_int = -10001;
/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 3 << 30 | 96 << 16 | (b'f' as libc::c_ulong) << 8 | 16;

/// All checks of kernel features.
pub fn all() -> Vec<Check> {
    let owner = rseq::owner();
    let mut checks = vec![
        kernel(),
        Check::info("kernel_version", machine::kernel().1),
        glibc(),
        other_libc(),
        rseq::check(&owner),
        rseq::enforcement(&owner),
        membarrier(),
        Check::tried("process_madvise", process_madvise()),
        Check::tried("pidfd", open_pidfd().map(|_| "works")),
        Check::tried("psi", fs::read("/proc/pressure/memory").map(|_| "readable")),
        Check::tried("close_range", close_range()),
        Check::tried("pagemap_scan", pagemap_scan()),
    ];
    checks.extend(advice::all());
    checks
}

/// Major and minor number of the running kernel.
pub fn kernel_numbers() -> Option<(u32, u32)> {
    version_of(&machine::kernel().0)
}

/// Major and minor number of a release.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether the kernel is of this version or a later one.
pub fn is_at_least(version: (u32, u32)) -> bool {
    kernel_numbers().is_some_and(|v| v >= version)
}

fn kernel() -> Check {
    let release = machine::kernel().0;
    match version_of(&release) {
        Some(v) if v >= (5, 18) => Check::ok("kernel", release),
        Some(v) if v >= (4, 18) => Check::limited("kernel", release).known(&known::OLD_KERNEL),
        _ => Check::missing("kernel", release),
    }
}

fn glibc() -> Check {
    let version = machine::glibc();
    match version_of(&version) {
        Some(v) if v >= (2, 35) => Check::ok("glibc", version),
        _ => Check::ok("glibc", version)
            .with_effect("registers no rseq: Ebbtide registers each thread"),
    }
}

/// Checks for another C library: this program uses glibc, but other programs here may not.
fn other_libc() -> Check {
    let entries = fs::read_dir("/lib").into_iter().flatten().flatten();
    let mut names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
    let loader = names.find(|name| name.starts_with("ld-musl-"));
    let value = loader.map_or("none seen".into(), |name| {
        format!("musl (/lib/{name}): the library serves its programs too")
    });
    Check::info("other_libc", value)
}

/// Whether Ebbtide can drain the caches of other CPUs.
pub fn fences() -> bool {
    membarrier().state == State::Ok
}

fn membarrier() -> Check {
    let call = |command| membarrier_call(command).is_ok();
    let works = membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED_RSEQ)
        && call(MembarrierCommand::RegisterPrivateExpeditedRseq)
        && call(MembarrierCommand::PrivateExpeditedRseq);
    match works {
        true => Check::ok("membarrier_rseq", "works"),
        false => Check::limited("membarrier_rseq", "refused").known(&known::NO_FENCE),
    }
}

/// Makes one call for two ranges of this process, and checks that it cleared exactly these.
fn try_process_madvise(pidfd: libc::c_int) -> io::Result<()> {
    let pages = Pages::new(4 * PAGE_BYTES)?;
    let range = |page: usize| libc::iovec {
        // SAFETY: pages 0 and 2 lie in the mapping.
        iov_base: unsafe { pages.at.byte_add(page * PAGE_BYTES) },
        iov_len: PAGE_BYTES,
    };
    let ranges = [range(0), range(2)];
    // SAFETY: the ranges belong to `pages`, which nothing else uses.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd,
            ranges.as_ptr(),
            ranges.len(),
            libc::MADV_DONTNEED,
            0,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    let cleared = pages.byte(0) == 0 && pages.byte(2 * PAGE_BYTES) == 0;
    let kept = pages.byte(PAGE_BYTES) == 1 && pages.byte(3 * PAGE_BYTES) == 1;
    if done as usize == 2 * PAGE_BYTES && cleared && kept {
        Ok(())
    } else {
        Err(io::Error::other("wrong result"))
    }
}

fn open_pidfd() -> io::Result<OwnedFd> {
    Ok(pidfd_open(getpid(), PidfdFlags::empty())?)
}

fn process_madvise() -> io::Result<&'static str> {
    if try_process_madvise(PIDFD_SELF_THREAD_GROUP).is_ok() {
        return Ok("works on self, without a descriptor");
    }
    try_process_madvise(open_pidfd()?.as_raw_fd())?;
    Ok("works on self, through a pidfd")
}

fn close_range() -> io::Result<&'static str> {
    // SAFETY: closes only the highest possible number, which no descriptor has.
    match unsafe { libc::syscall(libc::SYS_close_range, u32::MAX - 1, u32::MAX - 1, 0) } {
        0 => Ok("works"),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Scans for a page that is resident.
fn pagemap_scan() -> io::Result<&'static str> {
    const PRESENT: u64 = 1 << 3;
    let pages = Pages::new(PAGE_BYTES)?;
    let map = File::open("/proc/self/pagemap")?;
    let (start, mut found) = (pages.at as u64, [0u64; 3]);
    let (end, found_at) = (start + PAGE_BYTES as u64, found.as_mut_ptr() as u64);
    // `struct pm_scan_arg` of linux/fs.h: size, flags, start, end, walk_end, vec, vec_len, max_pages, categories
    // inverted, wanted, any of, returned.
    let mut argument: [u64; 12] = [96, 0, start, end, 0, found_at, 1, 1, 0, PRESENT, 0, PRESENT];
    // SAFETY: the argument, and the one region that it points to, can be written to.
    match unsafe { libc::ioctl(map.as_raw_fd(), PAGEMAP_SCAN, argument.as_mut_ptr()) } {
        1 if found[0] == start => Ok("works"),
        count if count >= 0 => Err(io::Error::other("wrong result")),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(version_of("6.18.44-rc1"), Some((6, 18)));
        assert_eq!(version_of("2.36"), Some((2, 36)));
        assert_eq!(version_of("5"), None);
        assert!(kernel_numbers().is_some());
    }
}
