//! Address space: reserve, commit, release, move.
//!
//! Every range given to the kernel consists of whole [`page`]s. The kernel would round lengths *up*, into the neighbour.
//! So a range that does not is refused (`EINVAL`), and only [`commit_around`] rounds.
//!
//! Sources: mmap(2), mprotect(2), madvise(2), mremap(2).

mod page;

use crate::call::{Errno, Sysno, syscall};
use crate::features::{RELEASE, RELEASE_LOCKED};
use core::sync::atomic::{AtomicBool, Ordering};
pub use page::{
    LARGEST_PAGE, SMALLEST_PAGE, has_known_pages, kernel_page, page, page_frames, whole_pages,
};

/// 2 MiB: what one page-table page covers, and the size of a huge page, with pages of 4 KiB. With larger pages a huge
/// page is larger ([`has_small_huge_pages`]).
pub const HUGE: usize = 2 << 20;

/// Whether a huge page has [`HUGE`] bytes. With pages of 16 KiB it has 32 MiB, with 64 KiB it has 512 MiB.
pub fn has_small_huge_pages() -> bool {
    page() == SMALLEST_PAGE
}

fn is_whole(addr: usize, len: usize) -> bool {
    (addr | len).is_multiple_of(page())
}

/// Refuses a range that does not consist of whole pages: a bug, but not one that harms its neighbours.
fn expect_whole(addr: usize, len: usize) -> Result<(), Errno> {
    debug_assert!(is_whole(addr, len) && len > 0, "{addr:x} {len:x}");
    is_whole(addr, len).then_some(()).ok_or(Errno::EINVAL)
}

/// Reserves `len` bytes of address space without memory or access, aligned to `align`.
///
/// # Errors
/// The error of mmap(2); `ENOMEM` under `RLIMIT_AS`.
pub fn reserve(len: usize, align: usize) -> Result<usize, Errno> {
    expect_whole(align, len)?;
    let addr = map_none(len)?;
    if addr.is_multiple_of(align) {
        return Ok(addr);
    }
    unmap_any(addr, len);
    let padded = len.checked_add(align).ok_or(Errno::ENOMEM)?;
    let addr = map_none(padded)?;
    let start = addr.next_multiple_of(align);
    if start > addr {
        unmap_any(addr, start - addr);
    }
    if addr + padded > start + len {
        unmap_any(start + len, addr + padded - (start + len));
    }
    Ok(start)
}

fn map_none(len: usize) -> Result<usize, Errno> {
    // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
    unsafe { map_private(0, len, libc::PROT_NONE, 0) }
}

/// Maps `len` bytes of zeroed memory anywhere, rounded up to whole pages, readable and writable.
///
/// # Errors
/// The error of mmap(2).
pub fn map(len: usize) -> Result<usize, Errno> {
    let len = whole_pages(len);
    // SAFETY: as in `map_none`.
    let addr = unsafe { map_private(0, len, READ_WRITE, 0) }?;
    if is_whole(addr, len) {
        return Ok(addr);
    }
    // A build for tests uses larger pages than the kernel.
    unmap_any(addr, len);
    let addr = reserve(len, page())?;
    // SAFETY: the reservation just made.
    unsafe { commit(addr, len) }.inspect_err(|_| unmap(addr, len))?;
    Ok(addr)
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Makes a private mapping without a file, with one more flag: `MAP_FIXED`, or 0. If a huge page is larger than
/// [`HUGE`], the mapping gets none: one touch would make all of it resident.
///
/// # Safety
/// With `MAP_FIXED`, the caller owns the range and needs nothing in it.
unsafe fn map_private(addr: usize, len: usize, access: i32, flag: i32) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flag;
    // SAFETY: by contract.
    let mapped = unsafe { syscall!(Sysno::mmap, addr, len, access, flags, usize::MAX, 0) };
    if !has_small_huge_pages()
        && let Ok(addr) = mapped
    {
        // SAFETY: the mapping just made. A kernel without huge pages refuses the advice.
        let _ = unsafe { syscall!(Sysno::madvise, addr, len, libc::MADV_NOHUGEPAGE) };
    }
    mapped
}

/// Returns address space to the kernel. If the call is refused (`ENOMEM`: too many mappings), the range stays mapped.
pub fn unmap(addr: usize, len: usize) {
    if expect_whole(addr, len).is_ok() {
        unmap_any(addr, len);
    }
}

/// As [`unmap`], for whole pages of the kernel, which may be smaller than [`page`] in a build for tests.
fn unmap_any(addr: usize, len: usize) {
    // SAFETY: the caller owns the range and does not use it again.
    let _ = unsafe { syscall!(Sysno::munmap, addr, len) };
}

/// munmap(2) of a range of the program, with any arguments.
///
/// # Errors
/// The error of munmap(2).
///
/// # Safety
/// The range is the program's, and nothing uses it any more.
pub unsafe fn unmap_exactly(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: by contract.
    unsafe { syscall!(Sysno::munmap, addr, len) }.map(drop)
}

/// Makes a reserved range readable and writable.
///
/// # Errors
/// `ENOMEM` under `RLIMIT_DATA`, strict overcommit or `vm.max_map_count`.
///
/// # Safety
/// The range lies in a reservation of the caller.
pub unsafe fn commit(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's range; access is only widened.
    unsafe { protect(addr, len, READ_WRITE) }
}

/// Makes all pages that hold a part of a range readable and writable.
///
/// # Errors
/// As [`commit`].
///
/// # Safety
/// As [`commit`], and all of these pages may be writable.
pub unsafe fn commit_around(addr: usize, len: usize) -> Result<(), Errno> {
    let start = addr / page() * page();
    // SAFETY: by contract.
    unsafe { commit(start, whole_pages(addr + len) - start) }
}

/// # Safety
/// The caller owns the range, and no thread uses it except as `access` allows.
unsafe fn protect(addr: usize, len: usize, access: i32) -> Result<(), Errno> {
    expect_whole(addr, len)?;
    // SAFETY: by contract.
    unsafe { syscall!(Sysno::mprotect, addr, len, access) }.map(drop)
}

/// Removes all access to a range.
///
/// # Errors
/// `ENOMEM`: too many mappings.
///
/// # Safety
/// The caller owns the range, and no thread uses it before it is committed again.
pub unsafe fn forbid(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: by contract.
    unsafe { protect(addr, len, libc::PROT_NONE) }
}

/// Makes a range of a reservation as it was at first: without memory, access, advice and lock.
///
/// # Errors
/// The error of mmap(2); the range is then unchanged.
///
/// # Safety
/// The caller owns the range, and no thread uses it before it is committed again.
pub unsafe fn reserve_again(addr: usize, len: usize) -> Result<(), Errno> {
    expect_whole(addr, len)?;
    // SAFETY: over the caller's own range.
    unsafe { map_private(addr, len, libc::PROT_NONE, libc::MAP_FIXED) }.map(drop)
}

/// Drops the memory of a range, and removes all access until [`open`]. No mapping is split: the state is in the page
/// tables only. A release of the range keeps it closed.
///
/// # Errors
/// Before Linux 6.13, and for locked memory. The range is then as before, or a part of it is closed.
///
/// # Safety
/// The caller owns the range, needs nothing in it, and no thread uses it before it is opened again.
pub unsafe fn close(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: by contract.
    unsafe { advise(addr, len, MADV_GUARD_INSTALL) }
}

/// Gives a range access again, whatever parts of it are closed. A page that was closed reads zero, others keep their
/// content.
///
/// # Errors
/// A filter refuses the call.
///
/// # Safety
/// The caller owns the range.
pub unsafe fn open(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: by contract.
    unsafe { advise(addr, len, MADV_GUARD_REMOVE) }
}

/// Whether ranges can be closed. Tries it on a page, whose content is then checked: a filter or an emulator may report
/// success for a call that does nothing.
pub fn can_close() -> bool {
    let Ok(start) = map(page()) else { return false };
    let word = start as *mut usize;
    // SAFETY: the page was just mapped, and only this thread knows it; it is touched while it is open.
    let closed = unsafe {
        word.write_volatile(1);
        let done = close(start, page()).and_then(|()| open(start, page()));
        done.is_ok() && word.read_volatile() == 0
    };
    unmap(start, page());
    closed
}

/// `MADV_GUARD_INSTALL`, Linux 6.13.
const MADV_GUARD_INSTALL: i32 = 102;
/// `MADV_GUARD_REMOVE`, Linux 6.13.
const MADV_GUARD_REMOVE: i32 = 103;

/// Makes a reserved range readable: it reads zero and takes no memory.
///
/// # Errors
/// As [`commit`].
///
/// # Safety
/// The range lies in a reservation of the caller and has not been committed.
pub unsafe fn commit_read_only(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's range; access is only widened.
    unsafe { protect(addr, len, libc::PROT_READ) }
}

/// Gives `advice` (`MADV_*`) for a range.
///
/// # Errors
/// The error of madvise(2). `EAGAIN` and `EINTR` are retried a bounded number of times here.
///
/// # Safety
/// The caller owns the range, and the effect of `advice` on it is allowed.
pub unsafe fn advise(addr: usize, len: usize, advice: i32) -> Result<(), Errno> {
    expect_whole(addr, len)?;
    let mut tries = 0;
    loop {
        // SAFETY: by contract.
        match unsafe { syscall!(Sysno::madvise, addr, len, advice) } {
            Err(Errno::EAGAIN | Errno::EINTR) if tries < 16 => tries += 1,
            result => return result.map(drop),
        }
    }
}

/// Releases the memory of a range; the next touch reads zero.
///
/// Falls back to `MADV_DONTNEED_LOCKED` (5.18) for locked memory; once that was needed, it is tried first. If that
/// fails too, a fresh mapping replaces the range. The fresh mapping is used at once if these calls do nothing
/// ([`RELEASE`]).
///
/// # Errors
/// If none of the three works, the memory stays as it is.
///
/// # Safety
/// The caller owns the range and needs nothing in it.
pub unsafe fn release(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: by contract.
    unsafe {
        if !is_locked() && gives_back() && advise(addr, len, libc::MADV_DONTNEED).is_ok() {
            return Ok(());
        }
        if RELEASE.may_work() && RELEASE_LOCKED.may_work() {
            match advise(addr, len, MADV_DONTNEED_LOCKED) {
                // The call does not exist before Linux 5.18; or it works in general, but failed for this range.
                Err(error) if error != Errno::EINVAL => {}
                result if RELEASE_LOCKED.latch(result).is_ok() => return Ok(()),
                _ => {}
            }
        }
        remap_fresh(addr, len)
    }
}

/// Whether `MADV_DONTNEED` is worth a call. Before the first call, it is tried on a page whose content is then
/// checked. Workers call this when they begin: later, when memory is short, the page may take seconds to get.
pub fn gives_back() -> bool {
    static ASKED: AtomicBool = AtomicBool::new(false);
    if !ASKED.load(Ordering::Acquire)
        && let Ok(start) = map(page())
    {
        let word = start as *mut usize;
        // SAFETY: the mapping just made.
        let answer = unsafe {
            word.write_volatile(1);
            advise(start, page(), libc::MADV_DONTNEED).map(|()| word.read_volatile() == 0)
        };
        unmap(start, page());
        match answer {
            Ok(true) => RELEASE.note_success(),
            // The answer says nothing: a temporary failure, or locked memory.
            Err(Errno::EINVAL | Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM) => {}
            Ok(false) | Err(_) => RELEASE.refuse(),
        }
        ASKED.store(true, Ordering::Release);
    }
    RELEASE.may_work()
}

/// Whether this process was seen to lock memory, and `MADV_DONTNEED_LOCKED` released it.
pub fn is_locked() -> bool {
    RELEASE_LOCKED.known() == Some(true)
}

/// The advice that releases memory of this process.
pub fn release_advice() -> i32 {
    if is_locked() {
        MADV_DONTNEED_LOCKED
    } else {
        libc::MADV_DONTNEED
    }
}

/// `MADV_DONTNEED_LOCKED`, Linux 5.18.
pub const MADV_DONTNEED_LOCKED: i32 = 24;
/// `MADV_POPULATE_WRITE`, Linux 5.14.
pub const MADV_POPULATE_WRITE: i32 = 23;

/// An address range in the kernel's format.
pub use libc::iovec as Range;

/// An empty range.
pub const NO_RANGE: Range = Range {
    iov_base: core::ptr::null_mut(),
    iov_len: 0,
};

/// `PIDFD_SELF_THREAD_GROUP`, Linux 6.15: this process, without a descriptor.
const PIDFD_SELF: i32 = -10001;

/// Gives one advice for many ranges by one call. Returns the number of bytes advised, from the first range on. Since
/// Linux 6.16, one TLB flush serves all ranges.
///
/// # Errors
/// `EINVAL` before Linux 6.13 (own process), `EBADF` before 6.15, `EPERM` or `ENOSYS` from a filter. In all cases
/// nothing was advised.
///
/// # Safety
/// As [`advise`], for each range. At most 1,024 ranges and 1 GiB: the kernel would ignore the rest.
pub unsafe fn advise_many(ranges: &[Range], advice: i32) -> Result<usize, Errno> {
    debug_assert!(ranges.len() <= 1024);
    debug_assert!(
        ranges
            .iter()
            .all(|range| is_whole(range.iov_base as usize, range.iov_len))
    );
    // SAFETY: by contract.
    unsafe {
        syscall!(
            Sysno::process_madvise,
            PIDFD_SELF,
            ranges.as_ptr(),
            ranges.len(),
            advice,
            0
        )
    }
}

/// The rest of the ranges after the first `done` bytes. A range that is done in part is cut.
pub fn behind(ranges: &mut [Range], mut done: usize) -> &mut [Range] {
    let mut whole = 0;
    while whole < ranges.len() && done >= ranges[whole].iov_len {
        done -= ranges[whole].iov_len;
        whole += 1;
    }
    let left = &mut ranges[whole..];
    if let Some(first) = left.first_mut() {
        first.iov_base = first.iov_base.wrapping_byte_add(done);
        first.iov_len -= done;
    }
    left
}

/// Replaces a range by a fresh private mapping: drops its memory and heals split mappings.
///
/// # Errors
/// The error of mmap(2); the range is then unchanged.
///
/// # Safety
/// The caller owns the range and needs nothing in it.
pub unsafe fn remap_fresh(addr: usize, len: usize) -> Result<(), Errno> {
    expect_whole(addr, len)?;
    // SAFETY: over the caller's own range.
    unsafe { map_private(addr, len, READ_WRITE, libc::MAP_FIXED) }?;
    if is_locked() {
        // SAFETY: as above; the kernel has populated the new mapping.
        let _ = unsafe { advise(addr, len, MADV_DONTNEED_LOCKED) };
    }
    Ok(())
}

/// Makes a range readable and writable, and part of forked children and core dumps, whatever mprotect(2) and
/// madvise(2) did to it before. Memory and content stay. Needs no walk through pages.
///
/// Returns `false` if refused; then parts of the range may be as before. Two failures do not count as refused: a
/// kernel that does not know an advice (`MADV_WIPEONFORK` is of Linux 4.14), and a filter against madvise(2).
///
/// # Safety
/// The caller owns the range.
pub unsafe fn make_ordinary(addr: usize, len: usize) -> bool {
    // SAFETY: by contract.
    unsafe {
        let forks = [libc::MADV_KEEPONFORK, libc::MADV_DOFORK]
            .map(|advice| advise(addr, len, advice) != Err(Errno::ENOMEM));
        let _ = advise(addr, len, libc::MADV_DODUMP);
        forks == [true; 2] && commit(addr, len).is_ok()
    }
}

/// Copies `len` bytes to `to` by a system call. If the file mapped at `to` has become shorter, the result is an error
/// and not SIGBUS.
///
/// # Errors
/// `EFAULT`: `to` cannot be written to. `EPERM` from a filter, `ENOSYS` from kernels built without the call.
///
/// # Safety
/// The caller owns the mapping at `to` and holds no reference to it; `len` bytes at `from` can be read.
pub unsafe fn copy(to: usize, from: *const u8, len: usize) -> Result<(), Errno> {
    let range = |base| Range {
        iov_base: base,
        iov_len: len,
    };
    let (from, to) = (range(from as *mut _), range(to as *mut _));
    let copy_as = |own: u32| {
        // SAFETY: by contract. The target process is this one.
        unsafe {
            syscall!(
                Sysno::process_vm_writev,
                own,
                &raw const from,
                1,
                &raw const to,
                1,
                0
            )
        }
        .map(drop)
    };
    match copy_as(crate::identity::id()) {
        // The first thread has ended. This thread has the same memory.
        Err(Errno::ESRCH) => copy_as(crate::identity::thread_id()),
        result => result,
    }
}

/// Copies memory of this process from `from` to `into` by a system call. Memory that cannot be read is an error and not a signal. Returns the
/// bytes that were copied. `thread` is the number of the calling thread.
///
/// # Errors
/// `EFAULT`: the first byte cannot be read. `EPERM` from a filter, `ENOSYS` from kernels built without the call.
pub fn peek(thread: u32, from: usize, into: &mut [u64]) -> Result<usize, Errno> {
    let range = |base, len| Range {
        iov_base: base,
        iov_len: len,
    };
    let len = size_of_val(into);
    let to = range(into.as_mut_ptr().cast(), len);
    let from = range(from as *mut _, len);
    // SAFETY: the kernel writes at most `len` bytes to `into`, and reads the other range as far as it can be read.
    unsafe {
        syscall!(
            Sysno::process_vm_readv,
            thread,
            &raw const to,
            1,
            &raw const from,
            1,
            0
        )
    }
}

/// Moves the pages of `from` to `to` without copying; `from` stays mapped and reads zero.
///
/// # Errors
/// `EINVAL` before Linux 5.7, `ENOMEM` under a limit. If `from` is one mapping ([`is_one_mapping`]), it is unchanged.
/// **`to` may be unmapped**: the next mapping there may belong to another part of the program.
///
/// # Safety
/// The caller owns both ranges. They do not overlap, `to` holds nothing that is needed, and after an error the caller
/// never uses `to` again.
pub unsafe fn move_pages(from: usize, to: usize, len: usize) -> Result<(), Errno> {
    expect_whole(from, len)?;
    expect_whole(to, len)?;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: by contract; MREMAP_FIXED replaces only the caller's own target range.
    unsafe { syscall!(Sysno::mremap, from, len, len, flags, to) }.map(drop)
}

/// Moves the pages of `from` to another place, which is returned. `hint` is taken if it is free. `from` stays mapped, and holds nothing.
///
/// # Errors
/// `EFAULT`: `from` is not one mapping. `EINVAL` before Linux 5.7, and before 5.13 for files. `ENOMEM` under a limit. Nothing changes then.
///
/// # Safety
/// The caller owns `from`.
pub unsafe fn move_away(from: usize, len: usize, hint: usize) -> Result<usize, Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    // SAFETY: by contract. Without MREMAP_FIXED, the kernel chooses a place that holds nothing.
    unsafe { syscall!(Sysno::mremap, from, len, len, flags, hint) }
}

/// Whether a range lies in one mapping, whatever the program did to parts of it (madvise, mlock, a name). The address
/// behind the range must be mapped too: then a request to grow by one page in place changes nothing, and its error
/// gives the answer.
///
/// # Safety
/// The caller owns the range and the page behind it.
pub unsafe fn is_one_mapping(addr: usize, len: usize) -> bool {
    debug_assert!(is_whole(addr, len));
    // SAFETY: without MREMAP_MAYMOVE and with a mapping behind, nothing can grow or move.
    let grown = unsafe { syscall!(Sysno::mremap, addr, len, len + page(), 0) };
    grown != Err(Errno::EFAULT)
}

/// Whether the page that holds `addr` is resident. `false` if the kernel does not say.
pub fn is_resident(addr: usize) -> bool {
    // A build for tests may use larger pages than the kernel has: then the kernel writes a byte for each of its own.
    let mut answers = [0u8; LARGEST_PAGE / SMALLEST_PAGE];
    let start = addr / page() * page();
    // SAFETY: the kernel writes a byte for each page, and there are no more than this many.
    let asked = unsafe { syscall!(Sysno::mincore, start, page(), answers.as_mut_ptr()) };
    asked.is_ok() && answers.iter().any(|answer| answer & 1 == 1)
}

/// Whether all of a huge page's range is resident. `false` if the kernel does not say, or has other huge pages.
pub fn is_block_resident(addr: usize) -> bool {
    let mut answers = [0u8; HUGE / SMALLEST_PAGE];
    if !has_small_huge_pages() {
        return false;
    }
    // SAFETY: the kernel writes one byte a page.
    let asked = unsafe { syscall!(Sysno::mincore, addr, HUGE, answers.as_mut_ptr()) };
    asked.is_ok() && answers.iter().all(|answer| answer & 1 == 1)
}

/// How many bytes of a range of whole pages are resident. `None` if the kernel does not say.
pub fn resident_bytes(addr: usize, bytes: usize) -> Option<usize> {
    /// No answer of the kernel.
    const NONE: u8 = u8::MAX;
    let mut resident = 0;
    for start in (addr..addr + bytes).step_by(HUGE) {
        let asked_bytes = HUGE.min(addr + bytes - start);
        let mut answers = [NONE; HUGE / SMALLEST_PAGE];
        // SAFETY: the kernel writes one byte a page.
        let asked = unsafe { syscall!(Sysno::mincore, start, asked_bytes, answers.as_mut_ptr()) };
        asked.ok()?;
        let pages = answers.iter().filter(|&&answer| answer != NONE);
        let (count, here) = pages.fold((0, 0), |(count, here), answer| {
            (count + 1, here + usize::from(answer & 1))
        });
        resident += asked_bytes / count * here;
    }
    Some(resident)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_pages_are_counted() {
        let bytes = HUGE + 5 * page();
        let start = map(bytes).unwrap();
        assert_eq!(resident_bytes(start, bytes), Some(0));
        for at in [0, 3 * page(), HUGE + 4 * page()] {
            // SAFETY: our own mapping. It has no huge page, as it is not aligned for one, or is touched in part only.
            unsafe {
                let _ = advise(start, bytes, libc::MADV_NOHUGEPAGE);
                ((start + at) as *mut u8).write(1);
            }
        }
        assert_eq!(resident_bytes(start, bytes), Some(3 * page()));
        assert_eq!(resident_bytes(start + page(), HUGE), Some(page()));
        unmap(start, bytes);
        assert_eq!(resident_bytes(start, bytes), None);
    }

    #[test]
    fn ranges_are_cut_where_they_are_done_in_part() {
        let range = |first: usize, len| Range {
            iov_base: first as *mut _,
            iov_len: len,
        };
        for (done, left) in [
            (0, &[(8, 4), (20, 6)][..]),
            (3, &[(11, 1), (20, 6)]),
            (4, &[(20, 6)]),
            (9, &[(25, 1)]),
            (10, &[]),
        ] {
            let mut ranges = [range(8, 4), range(20, 6)];
            let cut = behind(&mut ranges, done);
            assert!(
                cut.iter()
                    .map(|range| (range.iov_base as usize, range.iov_len))
                    .eq(left.iter().copied())
            );
        }
    }

    /// The kernel would round the length up, and release memory of the neighbour.
    #[test]
    #[cfg(not(debug_assertions))]
    fn a_part_of_a_page_is_not_released() {
        let start = map(2 * page()).unwrap();
        let word = (start + page() - 8) as *mut u64;
        // SAFETY: the mapping just made.
        unsafe {
            word.write_volatile(7);
            assert_eq!(release(start, page() / 2), Err(Errno::EINVAL));
            assert_eq!(remap_fresh(start, page() / 2), Err(Errno::EINVAL));
            assert_eq!(word.read_volatile(), 7);
        }
        unmap(start, 2 * page());
    }

    #[test]
    fn all_pages_of_a_range_are_committed() {
        let start = reserve(4 * page(), page()).unwrap();
        // SAFETY: the test's own reservation.
        unsafe {
            commit_around(start + page() + 8, page()).unwrap();
            let bytes = (start + page()) as *mut u8;
            bytes.write_bytes(1, 2 * page());
        }
        assert!(!is_resident(start) && is_resident(start + page() + 1));
        unmap(start, 4 * page());
    }

    #[test]
    fn reserve_commit_release() {
        let addr = reserve(8 << 20, 1 << 30).unwrap();
        assert!(addr.is_multiple_of(1 << 30));
        // SAFETY: the test's own reservation.
        unsafe {
            commit(addr, 1 << 20).unwrap();
            let first = addr as *mut u64;
            first.write_volatile(7);
            release(addr, 1 << 20).unwrap();
            assert_eq!(first.read_volatile(), 0);
        }
        unmap(addr, 8 << 20);
    }

    #[test]
    fn moved_pages_keep_their_content_and_leave_zeroes() {
        let addr = reserve(8 << 20, HUGE).unwrap();
        // SAFETY: the test's own reservation.
        unsafe {
            commit(addr, 8 << 20).unwrap();
            let from = addr as *mut u64;
            let to = (addr + (4 << 20)) as *mut u64;
            from.write_volatile(42);
            assert!(is_one_mapping(addr, 1 << 20) && is_one_mapping(addr + (1 << 20), 1 << 20));
            move_pages(addr, to as usize, 1 << 20).unwrap();
            assert!(!is_one_mapping(addr + (1 << 20), 4 << 20));
            assert_eq!((from.read_volatile(), to.read_volatile()), (0, 42));
            remap_fresh(to as usize, 1 << 20).unwrap();
            assert_eq!(to.read_volatile(), 0);
        }
        unmap(addr, 8 << 20);
    }

    #[test]
    fn a_refused_call_is_a_value() {
        // SAFETY: an unmapped low page; madvise only reports.
        let refused = unsafe { advise(0x10000, page(), libc::MADV_DONTNEED) };
        assert_eq!(refused, Err(Errno::ENOMEM));
    }
}
