//! `vfork` with the child kept out of the sections.
//!
//! A `vfork` child runs on its parent's memory and thread pointer, but the kernel gives it no registration: the
//! `cpu_id` that it reads is its parent's last one and never changes again. A section in the child would work on
//! another CPU's slab, unprotected. Only the kernel may write `cpu_id`: since Linux 7.0.10 it ends a process
//! that did so itself.
//!
//! So the parent takes the registration of its thread off, and the kernel writes −1 there:
//!
//! ```text
//!  parent  leave: unregister ─▶ vfork ─▶ (waits)              ─▶ rejoin: register ─▶ returns
//!  cpu_id     3        −1         −1       −1                         3
//!  child                          └─▶ allocates by the slow path, _exit or exec
//! ```
//!
//! - A thread without registration (a `vfork` child, too) keeps its negative `cpu_id`. A signal handler does not
//!   register it before the child exists ([`own::bar`]).
//! - The kernel refuses to unregister: the call becomes a `fork`, whose child has a registration of its own.
//! - The kernel refuses to register again, or a signal handler jumps out in between: −1 stays, and the thread uses
//!   the slow path for good.
//!
//! See [decision 0064](../../../../docs/decisions/0064-vfork-unregisters-from-rseq.md).

use super::own;
use super::section::{self, SIGNATURE, thread_pointer};
use crate::call::{Errno, Sysno, syscall};
use crate::features::UNREGISTER;
use core::sync::atomic::{AtomicIsize, AtomicU32, Ordering};

pub(super) const FLAG_UNREGISTER: u32 = 1;
/// Registers with time-slice extension switched on (Linux 7.0).
const FLAG_SLICE_EXTENSION: u32 = 2;
/// The bit of `flags` by which the kernel says that it is on.
const SLICE_EXTENSION_ENABLED: u32 = 1 << 5;
/// The length of the first version of `struct rseq`, and the least that any kernel takes.
const FIRST_LENGTH: u32 = 32;
/// A ticket of a thread that has no registration to put back.
const NOTHING: u64 = 1 << 62;
/// The same, and the thread may register later.
const BARRED: u64 = 1 << 63;
/// In the auxiliary vector, since Linux 6.3.
const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;
const AT_RSEQ_ALIGN: libc::c_ulong = 28;

/// The offset of `struct rseq` for the guarded `vfork`; 0 while no sections run in this process.
pub static VFORK_GUARD_OFFSET: AtomicIsize = AtomicIsize::new(0);

/// The length that threads are registered with, as far as known.
static LENGTH: AtomicU32 = AtomicU32::new(FIRST_LENGTH);

/// The part of the kernel's `struct rseq` that is used here. All fields but `section` are the kernel's to write.
#[repr(C)]
struct Area {
    cpu_id_start: u32,
    cpu_id: u32,
    section: u64,
    flags: u32,
}

/// Guards `vfork` from now on, in threads whose `struct rseq` lies at `offset` from the thread pointer.
pub fn guard_vfork(offset: isize) {
    // glibc registers with the size that it publishes, but never with less than the first version's.
    LENGTH.store(libc_size().max(FIRST_LENGTH), Ordering::Relaxed);
    VFORK_GUARD_OFFSET.store(offset, Ordering::Relaxed);
}

/// The size of `struct rseq` that the C library tells of; 0: it has registered none.
fn libc_size() -> u32 {
    let size = crate::libc_symbols::rseq_size();
    if size.is_null() {
        return 0;
    }
    // SAFETY: a constant of the C library, set before the first thread runs.
    unsafe { *size }
}

/// This thread's area at `offset` from the thread pointer.
fn area(offset: isize) -> *mut Area {
    thread_pointer().wrapping_add_signed(offset) as *mut Area
}

/// One `rseq` call.
///
/// # Safety
/// `area` is this thread's `struct rseq`, in the thread's static block.
unsafe fn call(area: *mut Area, length: u32, flags: u32) -> Result<(), Errno> {
    // SAFETY: by contract.
    unsafe { syscall!(Sysno::rseq, area, length, flags, SIGNATURE) }.map(drop)
}

/// What else libc may have registered with.
fn other_lengths() -> [u32; 4] {
    let feature = crate::process::auxv(AT_RSEQ_FEATURE_SIZE).unwrap_or(0);
    let align = crate::process::auxv(AT_RSEQ_ALIGN).unwrap_or(1).max(1);
    let rounded = feature.next_multiple_of(align);
    [FIRST_LENGTH, 33, feature as u32, rounded as u32]
}

/// Takes this thread's registration off, if it has one. 0: refused; else a ticket for [`rejoin`].
///
/// # Safety
/// This thread's `struct rseq` lies at `offset`, registered by libc or by [`own`].
pub unsafe extern "C" fn leave(offset: isize) -> u64 {
    let is_own = offset == own::offset();
    // SAFETY: by contract.
    if unsafe { section::cpu_id(offset) } < 0 {
        return match is_own && own::bar() {
            true => BARRED,
            false => NOTHING,
        };
    }
    if !UNREGISTER.may_work() || is_own && !own::may_call() {
        return 0;
    }
    let area = area(offset);
    // SAFETY: by contract; only this thread and the kernel use it.
    let extended = unsafe { (*area).flags } & SLICE_EXTENSION_ENABLED != 0;
    // SAFETY: by contract; no section is under way in here.
    let try_length = |length| unsafe {
        call(area, length, FLAG_UNREGISTER)?;
        // A filter may say so and do nothing.
        let left = (&raw const (*area).cpu_id).read_volatile() as i32 == -1;
        if left { Ok(length) } else { Err(Errno::EPERM) }
    };
    let mut answer = try_length(LENGTH.load(Ordering::Relaxed));
    if answer == Err(Errno::EINVAL) {
        // Registered with another length, or not in this area.
        let mut others = other_lengths().into_iter().map(try_length);
        answer = others.find(|answer| answer.is_ok()).unwrap_or(answer);
    }
    match answer {
        Ok(length) => {
            let _ = UNREGISTER.latch(answer);
            LENGTH.store(length, Ordering::Relaxed);
            let flags = if extended { FLAG_SLICE_EXTENSION } else { 0 };
            u64::from(length) | u64::from(flags) << 32
        }
        // Of this thread's area only: others may have theirs.
        Err(Errno::EINVAL) => 0,
        Err(_) => {
            UNREGISTER.refuse();
            0
        }
    }
}

/// Puts the registration back on. Where the kernel refuses, `cpu_id` stays −1.
///
/// # Safety
/// `ticket` is what [`leave`] returned to this thread, for this offset.
pub unsafe extern "C" fn rejoin(ticket: u64, offset: isize) {
    match ticket {
        NOTHING => return,
        BARRED => return own::unbar(),
        _ => {}
    }
    let area = area(offset);
    // SAFETY: by contract. The section is the field that programs write; before Linux 6.15 the kernel takes
    // what it finds there, and the child may have left a section that it has unloaded.
    unsafe {
        (&raw mut (*area).section).write_volatile(0);
        let _ = call(area, ticket as u32, (ticket >> 32) as u32);
    }
}

/// Defines the C functions `vfork` and `__vfork`, two names of one function, in the crate that calls this.
#[cfg(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    any(target_env = "gnu", target_env = "musl")
))]
#[macro_export]
macro_rules! define_vfork {
    () => {
        $crate::define_vfork_by_jump!("jmp {guarded}");

        #[unsafe(naked)]
        unsafe extern "C" fn guarded_vfork() -> libc::pid_t {
            core::arch::naked_asm!(
                "xor r9d, r9d", // no ticket
                "mov rdi, qword ptr [rip + {offset}]",
                "test rdi, rdi",
                "jz 2f",
                "push rdi",
                "call {leave}",
                "pop rdi",
                "test rax, rax",
                "jz 6f",
                "mov r9, rax",
                "2:",
                // The child's calls would overwrite the return address on the shared stack: keep it, the ticket
                // and the offset in registers, which the call preserves.
                "pop r8",
                "mov eax, 58", // SYS_vfork
                "syscall",
                "push r8",
                "test eax, eax",
                "jz 4f", // the child
                "test r9, r9",
                "jz 3f",
                "push rax",
                "mov rsi, rdi",
                "mov rdi, r9",
                "call {rejoin}",
                "pop rax",
                "3:",
                "cmp eax, -4095",
                "jae 5f",
                "4:",
                "ret",
                "5:", // the error
                "neg eax",
                "push rbx",
                "mov ebx, eax",
                "call {errno}",
                "mov dword ptr [rax], ebx",
                "pop rbx",
                "mov eax, -1",
                "ret",
                "6:", // the kernel refused: the stack is as at the entry
                "jmp {fork}",
                offset = sym $crate::rseq::VFORK_GUARD_OFFSET,
                leave = sym $crate::rseq::leave,
                rejoin = sym $crate::rseq::rejoin,
                fork = sym libc::fork,
                errno = sym libc::__errno_location,
            )
        }
    };
}

/// The same for aarch64. A system call preserves all registers but x0, and the return address is in one, x30.
#[cfg(all(
    target_arch = "aarch64",
    target_pointer_width = "64",
    target_endian = "little",
    any(target_env = "gnu", target_env = "musl")
))]
#[macro_export]
macro_rules! define_vfork {
    () => {
        $crate::define_vfork_by_jump!("hint #34\n b {guarded}"); // bti c

        #[unsafe(naked)]
        unsafe extern "C" fn guarded_vfork() -> libc::pid_t {
            core::arch::naked_asm!(
                "mov x9, xzr", // no ticket
                "adrp x10, {offset}",
                "ldr x10, [x10, :lo12:{offset}]",
                "cbz x10, 2f",
                "stp x30, x10, [sp, #-16]!",
                "mov x0, x10",
                "bl {leave}",
                "ldp x30, x10, [sp], #16",
                "cbz x0, 6f",
                "mov x9, x0",
                "2:",
                // Nothing is on the shared stack, which the child's calls overwrite: return address, ticket and offset
                // are in registers.
                "mov x0, #0x4111", // CLONE_VM | CLONE_VFORK | SIGCHLD
                "mov x1, xzr",
                "mov x2, xzr",
                "mov x3, xzr",
                "mov x4, xzr",
                "mov x8, #220", // SYS_clone
                "svc #0",
                "cbz x0, 4f", // the child
                "cbz x9, 3f",
                "stp x30, x0, [sp, #-16]!",
                "mov x0, x9",
                "mov x1, x10",
                "bl {rejoin}",
                "ldp x30, x0, [sp], #16",
                "3:",
                "cmn x0, #4095",
                "b.hs 5f",
                "4:",
                "ret",
                "5:", // the error
                "neg w0, w0",
                "stp x30, x0, [sp, #-16]!",
                "bl {errno}",
                "ldp x30, x1, [sp], #16",
                "str w1, [x0]",
                "mov w0, #-1",
                "ret",
                "6:", // the kernel refused: the stack is as at the entry
                "b {fork}",
                offset = sym $crate::rseq::VFORK_GUARD_OFFSET,
                leave = sym $crate::rseq::leave,
                rejoin = sym $crate::rseq::rejoin,
                fork = sym libc::fork,
                errno = sym libc::__errno_location,
            )
        }
    };
}

/// Where there are no sections, libc's functions are right.
#[cfg(not(all(
    any(
        target_arch = "x86_64",
        all(target_arch = "aarch64", target_endian = "little")
    ),
    target_pointer_width = "64",
    any(target_env = "gnu", target_env = "musl")
)))]
#[macro_export]
macro_rules! define_vfork {
    () => {};
}

/// The two C functions, each a jump to `guarded_vfork`.
#[doc(hidden)]
#[macro_export]
macro_rules! define_vfork_by_jump {
    ($jump:literal) => {
        /// `vfork(2)`, with the child kept away from the per-CPU caches.
        ///
        /// # Safety
        /// As vfork(2): the child may only `_exit` or `exec` (and, here, allocate and free).
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn vfork() -> libc::pid_t {
            core::arch::naked_asm!($jump, guarded = sym guarded_vfork)
        }

        /// The same by glibc's other name.
        ///
        /// # Safety
        /// As [`vfork`].
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn __vfork() -> libc::pid_t {
            core::arch::naked_asm!($jump, guarded = sym guarded_vfork)
        }
    };
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::super::{Registration, registration, section};
    use super::*;

    /// In a thread of its own: the registration is the thread's.
    fn in_a_thread(test: impl Fn(isize) + Send + Sync) {
        std::thread::scope(|scope| {
            scope.spawn(|| match registration() {
                Registration::At(offset) => test(offset),
                _ => std::eprintln!("skipped: no registration for restartable sections"),
            });
        });
    }

    fn cpu_id(offset: isize) -> i32 {
        // SAFETY: the registration's offset.
        unsafe { section::cpu_id(offset) }
    }

    #[test]
    fn the_kernel_writes_that_the_thread_has_left() {
        in_a_thread(|offset| {
            for _ in 0..3 {
                assert!(cpu_id(offset) >= 0);
                // SAFETY: libc's area; the ticket is this thread's.
                unsafe {
                    let ticket = leave(offset);
                    assert_ne!(ticket, 0);
                    assert_eq!(cpu_id(offset), -1);
                    assert_eq!(leave(offset), NOTHING, "there is none to take off");
                    (*area(offset)).section = 0x5000; // nothing is mapped there
                    rejoin(ticket, offset);
                }
                assert!(cpu_id(offset) >= 0);
                // SAFETY: as above.
                assert_eq!(unsafe { (*area(offset)).section }, 0);
            }
        });
    }

    #[test]
    fn a_wrong_length_is_corrected() {
        in_a_thread(|offset| {
            let right = libc_size().max(FIRST_LENGTH);
            LENGTH.store(40, Ordering::Relaxed);
            // SAFETY: as above.
            unsafe {
                let ticket = leave(offset);
                assert_eq!(ticket as u32, right);
                rejoin(ticket, offset);
            }
            assert_eq!(LENGTH.load(Ordering::Relaxed), right);
            assert!(cpu_id(offset) >= 0);
        });
    }
}
