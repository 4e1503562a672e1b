//! Starts threads and processes that share this memory, by a raw clone(2).
//!
//! libc's `clone` is not used, because it writes `errno`. Workers start workers and have no `errno`: their thread
//! block is not libc's, so libc would write to other memory.
//!
//! The assembly is written for x86-64 and aarch64, whose kernels take the last two arguments in different orders. On
//! other processors the call fails with `ENOSYS`.

use crate::call::Errno;

/// The function that the new thread or process runs. When it returns, the thread ends.
pub type Entry = extern "C" fn(usize);

/// Arguments of clone(2).
pub struct Request {
    /// `CLONE_*`.
    pub flags: usize,
    /// The aligned end of the new thread's stack.
    pub stack: usize,
    /// The address of the new thread's thread block, to which its thread pointer will point: for `CLONE_SETTLS`.
    pub block: usize,
    /// The place where the kernel writes the new thread's number: for `CLONE_PARENT_SETTID`.
    pub number: *mut u32,
    /// The word that the kernel clears and wakes when the thread is gone: for `CLONE_CHILD_CLEARTID`.
    pub busy: *mut u32,
}

/// Starts `entry(argument)` and returns the number of the new thread or process.
///
/// # Errors
/// The error of clone(2); `ENOSYS` on a processor without an implementation.
///
/// # Safety
/// The stack and the block have no other user until the kernel clears `busy`. `number` and `busy` can be written to.
/// The flags ask for the same memory, and `entry` uses nothing that libc keeps per thread.
#[cfg(target_arch = "x86_64")]
pub unsafe fn clone(request: &Request, entry: Entry, argument: usize) -> Result<u32, Errno> {
    let id: isize;
    // SAFETY: the caller guarantees stack, block, flags and entry. The new thread begins behind the system call with
    // all registers but rax, rcx, r11 and rsp as they are here, uses the stack from its end on, and never leaves the
    // block. In the calling thread, this is a system call.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp", // the outermost frame
            "mov rdi, r12",
            "call r9",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone as isize => id,
            in("rdi") request.flags,
            in("rsi") request.stack,
            in("rdx") request.number,
            in("r10") request.busy,
            in("r8") request.block,
            in("r9") entry,
            in("r12") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    made(id)
}

/// As on x86-64.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
pub unsafe fn clone(request: &Request, entry: Entry, argument: usize) -> Result<u32, Errno> {
    let id: isize;
    // SAFETY: as above, with all registers but x0 and sp as they are here.
    unsafe {
        core::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr", // the outermost frame
            "mov x0, x10",
            "blr x9",
            "mov x0, xzr",
            "mov x8, {exit}",
            "svc 0",
            "brk 1",
            "2:",
            exit = const libc::SYS_exit,
            in("x8") libc::SYS_clone,
            inlateout("x0") request.flags as isize => id,
            in("x1") request.stack,
            in("x2") request.number,
            in("x3") request.block,
            in("x4") request.busy,
            in("x9") entry,
            in("x10") argument,
        );
    }
    made(id)
}

/// On other processors, always fails with `ENOSYS`.
///
/// # Safety
/// None.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub unsafe fn clone(_: &Request, _: Entry, _: usize) -> Result<u32, Errno> {
    Err(Errno::ENOSYS)
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn made(id: isize) -> Result<u32, Errno> {
    u32::try_from(id).map_err(|_| Errno::new(-id as i32))
}

/// Ends the process by an invalid instruction. The program can neither block nor refuse the signal that the kernel
/// sends for it.
pub fn trap() -> ! {
    // SAFETY: no code runs after the instruction.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("ud2", options(noreturn, nostack))
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("brk 1", options(noreturn, nostack))
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    loop {
        core::hint::spin_loop();
    }
}
