//! Measured processes with one large block: freed, released on request, or made
//! and dropped again and again.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::ptr;

use anyhow::{Result, bail, ensure};

use crate::measured::link::{self, now_ns, page_bytes};
use crate::measured::{Output, alloc, release};

/// How the block is had and given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `malloc` and `free`.
    Malloc,
    /// `mmap` and `munmap`: what the kernel needs at least.
    Munmap,
    /// `mmap` and `MADV_DONTNEED`.
    Madvise,
}

impl Method {
    /// By its name.
    pub fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "malloc" => Method::Malloc,
            "munmap" => Method::Munmap,
            "madvise" => Method::Madvise,
            _ => bail!("unknown method '{name}'"),
        })
    }

    fn take(self, bytes: usize) -> Result<*mut u8> {
        if self == Method::Malloc {
            return Ok(alloc(bytes));
        }
        // SAFETY: a new mapping, no address asked for.
        let block = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        ensure!(block != libc::MAP_FAILED, "mmap: out of memory");
        // SAFETY: advice on the mapping just made. Refused where there are no huge pages.
        unsafe { libc::madvise(block, bytes, libc::MADV_HUGEPAGE) };
        Ok(block.cast())
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

/// From now on the process gets no huge pages.
pub fn disable_thp() -> Result<()> {
    // SAFETY: takes numbers.
    let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    ensure!(done == 0, "PR_SET_THP_DISABLE is refused");
    Ok(())
}

/// The call by which the allocator here gives back everything at once.
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
    /// There is none.
    Nothing,
}

type Mallctl = extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;

/// # Safety
/// `F` is a function pointer type that fits the symbol, if it is there.
unsafe fn symbol<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: by contract, and both are one pointer.
    (!found.is_null()).then(|| unsafe { mem::transmute_copy(&found) })
}

impl Trim {
    /// The allocator's own call before the C library's.
    pub fn find() -> Self {
        // SAFETY: the types are those of the libraries' headers; a result that is
        // not looked at is in a register.
        unsafe {
            for name in [
                c"ebb_release",
                c"peer_release",
                c"MallocExtension_ReleaseFreeMemory",
            ] {
                if let Some(f) = symbol(name) {
                    return Trim::Plain(f);
                }
            }
            if let Some(f) = symbol(c"mi_collect") {
                return Trim::Collect(f);
            }
            if let Some(f) = symbol(c"mallctl") {
                return Trim::Control(f);
            }
            symbol(c"malloc_trim").map_or(Trim::Nothing, Trim::Libc)
        }
    }

    /// Gives back everything that it can.
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

fn output(checksum: u64, metrics: &[(&str, f64)]) -> Output {
    Output {
        checksum,
        metrics: metrics.iter().map(|(k, v)| ((*k).into(), *v)).collect(),
        ..Output::default()
    }
}

fn ms(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns - from_ns) as f64 / 1e6
}

/// Fills a block and frees it; `at_once` asks for the release too.
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
        metrics.push(("release_ms", ms(freed, ended)));
        metrics.push(("both_ms", ms(began, ended)));
    }
    Ok(output(bytes, &metrics))
}

/// Rounds of the loop over temporaries.
pub const ROUNDS: usize = 10;

/// Makes, touches and drops a block ten times, then does nothing.
pub fn temporaries(bytes: u64) -> Result<Output> {
    let size = bytes as usize;
    let (mut faults, mut times) = ([0.0; ROUNDS], [0.0; ROUNDS]);
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
    Ok(output(
        bytes,
        &[
            ("faults_first", faults[0]),
            ("faults_later", mean(&faults[1..])),
            ("faults_last", faults[ROUNDS - 1]),
            ("round_first_ms", times[0]),
            ("round_later_ms", mean(&times[1..])),
        ],
    ))
}

fn minor_faults() -> f64 {
    // SAFETY: zeros are a valid value, and the call fills it.
    unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage.ru_minflt as f64
    }
}

/// Touches memory that goes back when the process ends: the host backs it from then on. If it is to be held, it waits
/// before it ends.
pub fn warm(bytes: u64, is_held: bool) -> Result<Output> {
    let started = now_ns();
    let block = Method::Munmap.take(bytes as usize)?;
    // SAFETY: the mapping has these bytes.
    unsafe { touch(block, bytes as usize) };
    let ended = now_ns();
    if is_held {
        link::base();
    }
    Ok(output(bytes, &[("warm_s", ms(started, ended) / 1e3)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_gives_and_takes() {
        for name in ["malloc", "munmap", "madvise"] {
            let method = Method::named(name).unwrap();
            let block = method.take(1 << 20).unwrap();
            // SAFETY: a block of this size, given once.
            unsafe {
                touch(block, 1 << 20);
                method.give(block, 1 << 20);
            }
        }
        assert!(Method::named("magic").is_err());
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
