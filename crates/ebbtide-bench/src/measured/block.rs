//! Measured processes with one large block: it is freed, released on request, or allocated and freed in a loop.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::measured::calls::{map_zeros, now_ns, page_bytes, symbol, usage};
use crate::measured::{Output, alloc, link, release};

/// The way to get and give up the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// `malloc` and `free`.
    Malloc,
    /// `mmap` and `munmap`: the minimum cost, that of the kernel.
    Munmap,
    /// `mmap` and `MADV_DONTNEED`.
    Madvise,
}

impl Method {
    fn take(self, bytes: usize) -> Result<*mut u8> {
        if self == Method::Malloc {
            return Ok(alloc(bytes));
        }
        let block = map_zeros(bytes, libc::MAP_NORESERVE)?;
        // SAFETY: advice on the mapping just made. The kernel refuses it if there are no huge pages.
        unsafe { libc::madvise(block.cast(), bytes, libc::MADV_HUGEPAGE) };
        Ok(block)
    }

    /// # Safety
    /// `block` came from `take` with these bytes, and is not used any more.
    unsafe fn give(self, block: *mut u8, bytes: usize) {
        // SAFETY: by contract.
        unsafe {
            match self {
                Method::Malloc => release(block),
                Method::Munmap => drop(libc::munmap(block.cast(), bytes)),
                Method::Madvise => drop(libc::madvise(block.cast(), bytes, libc::MADV_DONTNEED)),
            }
        }
    }
}

/// Writes to every page.
///
/// # Safety
/// The block has these bytes.
pub unsafe fn touch(block: *mut u8, bytes: usize) {
    for at in (0..bytes).step_by(page_bytes()) {
        // SAFETY: inside the block.
        unsafe { block.add(at).write_volatile(1) };
    }
}

/// Disables huge pages for this process from now on.
pub fn disable_thp() -> Result<()> {
    // SAFETY: takes numbers.
    let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    ensure!(done == 0, "PR_SET_THP_DISABLE is refused");
    Ok(())
}

/// The call by which this process's allocator releases everything at once.
#[derive(Clone, Copy)]
pub enum Trim {
    /// `ebb_release`, a built peer's `peer_release`, `MallocExtension_ReleaseFreeMemory`.
    Plain(extern "C" fn()),
    /// `mi_collect(force)`.
    Collect(extern "C" fn(bool)),
    /// `mallctl`.
    Control(Mallctl),
    /// `malloc_trim(0)`.
    Libc(extern "C" fn(usize) -> c_int),
    /// The allocator has no such call.
    Nothing,
}

type Mallctl = extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;

impl Trim {
    /// Finds the allocator's own call, else the C library's.
    pub fn find() -> Self {
        // SAFETY: the types are those of the libraries' headers; an ignored result is in a register.
        unsafe {
            symbol(c"ebb_release")
                .or_else(|| symbol(c"peer_release"))
                .or_else(|| symbol(c"MallocExtension_ReleaseFreeMemory"))
                .map(Trim::Plain)
                .or_else(|| symbol(c"mi_collect").map(Trim::Collect))
                .or_else(|| symbol(c"mallctl").map(Trim::Control))
                .or_else(|| symbol(c"malloc_trim").map(Trim::Libc))
                .unwrap_or(Trim::Nothing)
        }
    }

    /// Releases as much memory as possible.
    pub fn call(self) {
        match self {
            Trim::Plain(f) => f(),
            Trim::Collect(f) => f(true),
            Trim::Control(f) => {
                // 4096 means all arenas.
                let name = c"arena.4096.purge".as_ptr();
                f(name, ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0);
            }
            Trim::Libc(f) => drop(f(0)),
            Trim::Nothing => {}
        }
    }
}

fn ms(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns - from_ns) as f64 / 1e6
}

/// Fills a block and frees it; `at_once` also asks for the release.
pub fn freed(bytes: u64, method: Method, at_once: bool) -> Result<Output> {
    let trim = Trim::find();
    let size = bytes as usize;
    link::base();
    let block = method.take(size)?;
    // SAFETY: the block has `size` bytes and is given once.
    let (began, freed, ended) = unsafe {
        touch(block, size);
        link::filled(0);
        let began = now_ns();
        method.give(block, size);
        let freed = now_ns();
        if at_once {
            trim.call();
        }
        (began, freed, now_ns())
    };
    link::freed(began, ended);
    let mut metrics = vec![("free_ms", ms(began, freed))];
    if at_once {
        metrics.push(("both_ms", ms(began, ended)));
    }
    Ok(Output::new(bytes, metrics))
}

/// Number of rounds of the loop over temporaries.
pub const ROUNDS: usize = 10;

/// Allocates, touches and frees a block ten times, then does nothing.
pub fn temporaries(bytes: u64) -> Result<Output> {
    let size = bytes as usize;
    let (mut faults, mut times) = ([0.0; ROUNDS], [0.0; ROUNDS]);
    let minor_faults = || usage().ru_minflt as f64;
    link::base();
    for round in 0..ROUNDS {
        let (before, started) = (minor_faults(), now_ns());
        let block = alloc(size);
        // SAFETY: the block has `size` bytes and is freed once.
        unsafe {
            touch(block, size);
            if round + 1 == ROUNDS {
                faults[round] = minor_faults() - before;
                times[round] = ms(started, now_ns());
                link::filled(0);
                let began = now_ns();
                release(block);
                link::freed(began, now_ns());
            } else {
                release(block);
                faults[round] = minor_faults() - before;
                times[round] = ms(started, now_ns());
            }
        }
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let metrics = [
        ("faults_first", faults[0]),
        ("faults_later", mean(&faults[1..])),
        ("faults_last", faults[ROUNDS - 1]),
        ("round_later_ms", mean(&times[1..])),
    ];
    Ok(Output::new(bytes, metrics))
}

/// Touches memory and ends, so that the host of a virtual machine backs the memory from then on. With `is_held`, it
/// waits before it ends.
pub fn warm(bytes: u64, is_held: bool) -> Result<Output> {
    let started = now_ns();
    let block = Method::Munmap.take(bytes as usize)?;
    // SAFETY: the mapping has these bytes.
    unsafe { touch(block, bytes as usize) };
    let ended = now_ns();
    if is_held {
        link::base();
    }
    Ok(Output::new(bytes, [("warm_s", ms(started, ended) / 1e3)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_gives_and_takes() {
        for method in Method::value_variants() {
            let block = method.take(1 << 20).unwrap();
            // SAFETY: a block of this size, given once.
            unsafe {
                touch(block, 1 << 20);
                method.give(block, 1 << 20);
            }
        }
    }

    #[test]
    fn something_trims() {
        let trim = Trim::find();
        assert!(!matches!(trim, Trim::Nothing));
        trim.call();
    }

    #[test]
    fn warming_says_how_long() {
        assert!(warm(1 << 20, false).unwrap().metrics["warm_s"] >= 0.0);
    }
}
