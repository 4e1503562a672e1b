//! Versions and kernel features, each really tried.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;

use super::advice::{self, PAGE_BYTES, Pages};
use super::{Check, reason};

const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;
const PIDFD_SELF_THREAD_GROUP: libc::c_int = -10001;
/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 3 << 30 | 96 << 16 | (b'f' as libc::c_ulong) << 8 | 16;
const MEMBARRIER_CMD_QUERY: libc::c_int = 0;
const MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 7;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 8;

/// Every probe.
pub fn all() -> Vec<Check> {
    let mut checks = vec![
        kernel(),
        glibc(),
        rseq(),
        membarrier(),
        process_madvise(),
        pidfd(),
        psi(),
        close_range(),
        pagemap_scan(),
    ];
    checks.extend(advice::all());
    checks
}

/// The versions that decide what there is.
pub fn versions() -> Vec<Check> {
    vec![kernel(), glibc()]
}

/// Release of the running kernel, such as `6.12.3-amd64`.
fn release() -> String {
    // SAFETY: utsname is plain data; the call fills it with NUL-terminated strings.
    unsafe {
        let mut name: libc::utsname = mem::zeroed();
        if libc::uname(&mut name) != 0 {
            return "unknown".into();
        }
        std::ffi::CStr::from_ptr(name.release.as_ptr())
            .to_string_lossy()
            .into_owned()
    }
}

/// Major and minor number of a release.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether the kernel is of this version or a later one.
pub fn is_at_least(version: (u32, u32)) -> bool {
    version_of(&release()).is_some_and(|v| v >= version)
}

fn kernel() -> Check {
    let release = release();
    match version_of(&release) {
        Some(v) if v >= (5, 18) => {
            Check::ok("kernel", release, "new enough for every base feature")
        }
        Some(v) if v >= (4, 18) => Check::limited(
            "kernel",
            release,
            "before 5.18 MADV_FREE races with O_DIRECT, so lazy release stays off",
            "run kernel 5.18 or later (6.13 for every feature)",
        ),
        _ => Check::missing(
            "kernel",
            release,
            "older than the oldest kernel Ebbtide is made for",
            "run kernel 5.18 or later (6.13 for every feature)",
        ),
    }
}

fn glibc() -> Check {
    // SAFETY: glibc returns a static NUL-terminated string.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    let version = version.to_string_lossy().into_owned();
    match version_of(&version) {
        Some(v) if v >= (2, 35) => Check::ok("glibc", version, "registers rseq for every thread"),
        _ => Check::limited(
            "glibc",
            version,
            "does not register rseq: the portable model is used",
            "use a distribution with glibc 2.35 or later",
        ),
    }
}

fn rseq() -> Check {
    const EFFECT: &str = "per-CPU caches without locks";
    // SAFETY: dlsym with a NUL-terminated name; the symbol, if there, is a const unsigned int.
    let registered_bytes = unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr());
        (!symbol.is_null()).then(|| *symbol.cast::<libc::c_uint>())
    };
    // SAFETY: a plain call; an unknown type gives 0.
    let feature_bytes = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) };
    match registered_bytes {
        Some(n) if n > 0 => {
            let kernel = match feature_bytes {
                0 => "kernel before 6.3".to_owned(),
                n => format!("kernel offers {n} bytes"),
            };
            Check::ok("rseq", format!("registered by glibc ({kernel})"), EFFECT)
        }
        Some(_) => Check::limited(
            "rseq",
            "not registered",
            "the portable model under locks is used",
            "unset glibc.pthread.rseq=0 in GLIBC_TUNABLES; outside a sandbox that refuses it, run kernel 4.18 or later",
        ),
        None => Check::limited(
            "rseq",
            "glibc before 2.35",
            "the portable model under locks is used",
            "use a distribution with glibc 2.35 or later",
        ),
    }
}

fn membarrier() -> Check {
    let call = |command: libc::c_int| {
        // SAFETY: membarrier takes no pointers.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
    };
    let known = call(MEMBARRIER_CMD_QUERY);
    let offered = known >= 0 && known & i64::from(MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ) != 0;
    let works = offered
        && call(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ) == 0
        && call(MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ) == 0;
    if works {
        Check::ok("membarrier_rseq", "works", "drains another CPU's cache")
    } else {
        Check::limited(
            "membarrier_rseq",
            "refused",
            "caches of idle CPUs are not drained",
            "run kernel 5.10 or later, with CONFIG_MEMBARRIER and CONFIG_RSEQ, and allow membarrier in the sandbox",
        )
    }
}

/// One vectored call over two ranges of this process, and whether it cleared them.
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

fn open_pidfd() -> io::Result<libc::c_int> {
    // SAFETY: plain calls without pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    if fd < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(fd as libc::c_int)
    }
}

fn close(fd: libc::c_int) {
    // SAFETY: `fd` was opened here and is used by nobody else.
    unsafe { libc::close(fd) };
}

fn process_madvise() -> Check {
    const EFFECT: &str = "releases up to 1,024 ranges in one call";
    if try_process_madvise(PIDFD_SELF_THREAD_GROUP).is_ok() {
        return Check::ok(
            "process_madvise",
            "works on self, without a descriptor",
            EFFECT,
        );
    }
    let tried = open_pidfd().and_then(|fd| {
        let tried = try_process_madvise(fd);
        close(fd);
        tried
    });
    match tried {
        Ok(()) => Check::ok("process_madvise", "works on self, through a pidfd", EFFECT),
        Err(e) => Check::limited(
            "process_madvise",
            reason(&e),
            "one madvise call per range is used",
            "run kernel 6.13 or later, and allow process_madvise in the sandbox",
        ),
    }
}

fn pidfd() -> Check {
    match open_pidfd() {
        Ok(fd) => {
            close(fd);
            Check::ok(
                "pidfd",
                "works",
                "waits for a process to be gone (exit=detached)",
            )
        }
        Err(e) => Check::limited(
            "pidfd",
            reason(&e),
            "exit=detached is not available",
            "run kernel 5.3 or later, and allow pidfd_open in the sandbox",
        ),
    }
}

fn psi() -> Check {
    match std::fs::read("/proc/pressure/memory") {
        Ok(_) => Check::ok(
            "psi",
            "readable",
            "gives everything back when others need memory",
        ),
        Err(e) => Check::limited(
            "psi",
            reason(&e),
            "the pressure of other processes is noticed by what the machine has left only",
            "boot with psi=1 (kernel with CONFIG_PSI); in a container, make /proc/pressure visible",
        ),
    }
}

fn close_range() -> Check {
    // SAFETY: closes only the highest possible number, which no descriptor has.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, u32::MAX - 1, u32::MAX - 1, 0) };
    if rc == 0 {
        Check::ok(
            "close_range",
            "works",
            "workers hold no descriptor of the program",
        )
    } else {
        let error = io::Error::last_os_error();
        Check::limited(
            "close_range",
            reason(&error),
            "descriptors are closed one by one",
            "run kernel 5.9 or later, and allow close_range in the sandbox",
        )
    }
}

/// Looks for a page that is there.
fn try_pagemap_scan() -> io::Result<()> {
    const PRESENT: u64 = 1 << 3;
    let pages = Pages::new(PAGE_BYTES)?;
    let map = File::open("/proc/self/pagemap")?;
    let (start, mut found) = (pages.at as u64, [0u64; 3]);
    let (end, found_at) = (start + PAGE_BYTES as u64, found.as_mut_ptr() as u64);
    // `struct pm_scan_arg` of linux/fs.h: size, flags, start, end, walk_end, vec, vec_len, max_pages, categories
    // inverted, wanted, any of, returned.
    let mut argument: [u64; 12] = [96, 0, start, end, 0, found_at, 1, 1, 0, PRESENT, 0, PRESENT];
    // SAFETY: the argument, and the one region that it names, are valid places to write to.
    match unsafe { libc::ioctl(map.as_raw_fd(), PAGEMAP_SCAN, argument.as_mut_ptr()) } {
        1 if found[0] == start => Ok(()),
        count if count >= 0 => Err(io::Error::other("wrong result")),
        _ => Err(io::Error::last_os_error()),
    }
}

fn pagemap_scan() -> Check {
    match try_pagemap_scan() {
        Ok(()) => Check::ok(
            "pagemap_scan",
            "works",
            "tells whether a huge page was split",
        ),
        Err(e) => Check::limited(
            "pagemap_scan",
            reason(&e),
            "nobody checks that a huge page was split before a part of it counts as given back",
            "run kernel 6.7 or later with CONFIG_PROC_PAGE_MONITOR, or use thp=off",
        ),
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
        assert!(version_of(&release()).is_some());
    }
}
