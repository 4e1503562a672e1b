//! The clocks that Ebbtide reads: monotonic time, coarse and precise, through the vDSO, and the CPU time of a thread
//! from the kernel.

/// Milliseconds since some fixed moment; never decreases. A read costs a few nanoseconds; the resolution is about 4
/// ms.
pub fn now_ms() -> u64 {
    now_ns(libc::CLOCK_MONOTONIC_COARSE) / 1_000_000
}

/// Nanoseconds since some fixed moment, for measuring durations (about 25 ns a read).
pub fn precise_ns() -> u64 {
    now_ns(libc::CLOCK_MONOTONIC)
}

/// CPU time of this thread in nanoseconds. A read is a system call and costs 100 to 400 ns.
pub fn thread_cpu_ns() -> u64 {
    now_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Nanoseconds since 1970.
pub fn unix_ns() -> u64 {
    now_ns(libc::CLOCK_REALTIME)
}

fn now_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place to write to. All these clocks exist on every supported kernel,
    // so the call succeeds and leaves `errno` alone.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_moves_forward() {
        let (start, coarse) = (super::precise_ns(), super::now_ms());
        // In a machine whose host is busy, the tick that moves the coarse clock may be late.
        while super::now_ms() == coarse {
            assert!(super::precise_ns() - start < 10_000_000_000);
        }
        assert!(super::now_ms() > coarse && super::precise_ns() > start);
    }
}
