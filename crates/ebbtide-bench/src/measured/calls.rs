//! Calls of the C library and facts from the kernel that several measured processes use.

use std::ffi::{CStr, c_int, c_void};
use std::{mem, ptr};

use anyhow::{Result, ensure};
use ebbtide_tools::proc::{self, kib_field};

/// Nanoseconds of a clock.
pub fn clock_ns(clock: libc::clockid_t) -> u64 {
    // SAFETY: zeros are a time, and the call fills it in.
    let now = unsafe {
        let mut now: libc::timespec = mem::zeroed();
        libc::clock_gettime(clock, &mut now);
        now
    };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of the monotonic clock, which all processes share.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Bytes of a page.
pub fn page_bytes() -> usize {
    // SAFETY: takes a number, returns a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// A new mapping of a file, or of none for -1.
pub fn map(len: usize, access: c_int, flags: c_int, file: c_int) -> Result<*mut u8> {
    // SAFETY: a new mapping, no address asked for.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, file, 0) };
    ensure!(start != libc::MAP_FAILED, "mmap: out of memory");
    Ok(start.cast())
}

/// A new mapping of zeros, for this process alone, with these flags besides.
pub fn map_zeros(len: usize, more_flags: c_int) -> Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | more_flags;
    map(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
}

/// The function of this name in the process, if there is one.
///
/// # Safety
/// `F` is a function pointer type that fits the function.
pub unsafe fn symbol<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: by contract, and both are one pointer.
    (!found.is_null()).then(|| unsafe { mem::transmute_copy(&found) })
}

/// A field of `/proc/self/status` in bytes, such as `VmRSS`; 0 if it is not there.
pub fn status_bytes(name: &str) -> u64 {
    proc::text("/proc/self/status")
        .and_then(|text| kib_field(&text, name))
        .unwrap_or(0)
}

/// The resources that this process has used.
pub fn usage() -> libc::rusage {
    // SAFETY: zeros are a valid value, and the call fills it in.
    unsafe {
        let mut usage = mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    }
}

/// Microseconds of user and system time together.
pub fn cpu_us(usage: &libc::rusage) -> u64 {
    let us = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

/// Waits for a child. Returns its status, and the resources that it used, with the processes that it waited for.
pub fn wait_with_usage(pid: u32, flags: c_int) -> Option<(c_int, libc::rusage)> {
    let (pid, mut status) = (pid as libc::pid_t, 0);
    // SAFETY: zeros are a valid usage; the call fills in both.
    let (found, usage) = unsafe {
        let mut usage = mem::zeroed();
        let found = libc::wait4(pid, &mut status, flags, &mut usage);
        (found, usage)
    };
    (found == pid).then_some((status, usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_goes_forward() {
        let before = now_ns();
        assert!(now_ns() >= before && before > 0);
    }

    #[test]
    fn symbols_and_fields_are_found_or_missing() {
        // SAFETY: the type is that of the C library.
        let getpid = unsafe { symbol::<extern "C" fn() -> c_int>(c"getpid") };
        assert_eq!(getpid.unwrap()() as u32, std::process::id());
        // SAFETY: there is no such function.
        assert!(unsafe { symbol::<extern "C" fn()>(c"no_such_function") }.is_none());
        assert!(status_bytes("VmRSS") > 0);
        assert_eq!(status_bytes("VmNone"), 0);
    }

    #[test]
    fn a_child_is_waited_for_once() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let (status, usage) = wait_with_usage(child.id(), 0).unwrap();
        assert!(status == 0 && cpu_us(&usage) < 60_000_000);
        assert!(wait_with_usage(child.id(), 0).is_none());
        assert!(child.wait().is_err());
    }
}
