//! The C API beyond `malloc`: `include/ebbtide.h`.

use crate::standard::set_errno;
use core::ffi::{CStr, c_char, c_int, c_void};
use ebbtide::KeyProblem;
use ebbtide::stats::Figures;

/// Releases all free memory of the process. Returns the bytes released.
#[unsafe(no_mangle)]
pub extern "C" fn ebb_release() -> usize {
    ebbtide::release_all()
}

/// Unmaps a mapping of the program's own, beside it. Returns 0, or -1 with the error of munmap(2).
///
/// # Safety
/// As munmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebb_unmap(address: *mut c_void, len: usize) -> c_int {
    // SAFETY: by contract.
    match unsafe { ebbtide::unmap(address.cast(), len) } {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// Longest text of a key and its value.
const ITEM_BYTES: usize = 256;

/// Changes a key that can change while the program runs. Returns 0, or -1 with `EINVAL` or `EOPNOTSUPP`.
///
/// # Safety
/// Both are null, or texts that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebb_set(key: *const c_char, value: *const c_char) -> c_int {
    let mut item = [0; ITEM_BYTES];
    // SAFETY: by contract.
    let texts = unsafe { (text(key), text(value)) };
    let done = match texts {
        (Some(key), Some(value)) => joined(&mut item, &[key, b"=", value])
            .ok_or(KeyProblem::Unknown)
            .and_then(ebbtide::set),
        _ => Err(KeyProblem::Unknown),
    };
    told(done)
}

/// Stores the value of such a key. Returns 0, or -1 with `EINVAL` or `EOPNOTSUPP`.
///
/// # Safety
/// `key` is null, or a text that ends with a NUL. `*value` can be written to, unless it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebb_get(key: *const c_char, value: *mut u64) -> c_int {
    // SAFETY: by contract.
    let name = unsafe { text(key) }.filter(|_| !value.is_null());
    told(name.ok_or(KeyProblem::Unknown).and_then(|name| {
        let found = ebbtide::get(name)?;
        // SAFETY: by contract.
        unsafe { value.write(found) };
        Ok(())
    }))
}

/// Switches sampling on: a sample for `rate` allocated bytes on average, 0 for 512 KiB. Returns 0, or -1 with `EINVAL` or `EIO`.
#[unsafe(no_mangle)]
pub extern "C" fn ebb_profile_start(rate: usize) -> c_int {
    told(ebbtide::profile::start(rate))
}

/// Switches sampling off.
#[unsafe(no_mangle)]
pub extern "C" fn ebb_profile_stop() {
    ebbtide::profile::stop();
}

/// Writes the profile to a file. Returns 0, or -1 with the error.
///
/// # Safety
/// `path` is null, or a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebb_profile_dump(path: *const c_char) -> c_int {
    // SAFETY: by contract.
    let done = match unsafe { text(path) } {
        Some(path) => ebbtide::profile::dump(path),
        None => Err(libc::EINVAL),
    };
    done.map_or_else(
        |error| {
            set_errno(error);
            -1
        },
        |()| 0,
    )
}

/// # Safety
/// It is null, or ends with a NUL.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: by contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

fn joined<'a>(item: &'a mut [u8], parts: &[&[u8]]) -> Option<&'a [u8]> {
    let mut len = 0;
    for part in parts {
        item.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    Some(&item[..len])
}

fn told(done: Result<(), KeyProblem>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(problem) => {
            set_errno(match problem {
                KeyProblem::Unknown => libc::EINVAL,
                KeyProblem::Fixed => libc::EOPNOTSUPP,
                KeyProblem::Failed => libc::EIO,
            });
            -1
        }
    }
}

/// Fills the first `size` bytes of `*result`. Returns the bytes filled, or -1 with `EINVAL` for a null pointer or a
/// size too small for the version.
///
/// # Safety
/// `result` can be written to for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebb_stats(result: *mut Figures, size: usize) -> c_int {
    // SAFETY: by contract.
    unsafe { fill(result, size, || figures(size)) }
}

/// The statistics. The figures that only the kernel knows are included only if `size` has space for them: they need
/// a walk of the page tables.
fn figures(size: usize) -> Figures {
    let mut figures = ebbtide::stats::figures();
    if size > core::mem::offset_of!(Figures, rss_bytes) {
        let (rss, lazy) = ebbtide_sys::process::resident().unwrap_or_default();
        figures.rss_bytes = rss;
        figures.rss_without_lazy_bytes = rss.saturating_sub(lazy);
    }
    figures
}

/// Fills the first `size` bytes of `*result`. Returns the bytes filled, or -1 with `EINVAL` for a null pointer or a
/// size too small for a word.
///
/// # Safety
/// `result` can be written to for `size` bytes.
pub(crate) unsafe fn fill<T>(result: *mut T, size: usize, figures: impl FnOnce() -> T) -> c_int {
    if result.is_null() || size < size_of::<u64>() {
        set_errno(libc::EINVAL);
        return -1;
    }
    let figures = figures();
    let count = size.min(size_of::<T>());
    // SAFETY: by contract, and both have that many bytes.
    unsafe {
        core::ptr::copy_nonoverlapping((&raw const figures).cast::<u8>(), result.cast(), count);
    }
    count as c_int
}
