//! Threads and processes that share this memory, by a raw clone(2).
//!
//! Not by libc's `clone`, which knows `errno`: workers start workers, and have none. Where it would be, in a thread
//! block that is not libc's, other memory lies.
//!
//! Written for x86-64 and aarch64, whose kernels take the last two arguments in different orders. Elsewhere refused.

use crate::call::Errno;

/// What runs there. Its return ends the thread.
pub type Entry = extern "C" fn(usize);

/// What clone(2) is asked for.
pub struct Request {
    /// `CLONE_*`.
    pub flags: usize,
    /// The aligned end of its stack.
    pub stack: usize,
    /// Where the thread pointer will point: for `CLONE_SETTLS`.
    pub block: usize,
    /// Where its number is written: for `CLONE_PARENT_SETTID`.
    pub number: *mut u32,
    /// What the kernel clears, and wakes, when it is gone: for `CLONE_CHILD_CLEARTID`.
    pub busy: *mut u32,
}

/// Starts `entry(argument)`. Its number.
///
/// # Errors
/// What clone(2) says; `ENOSYS` where it is not written for the processor.
///
/// # Safety
/// Nobody else uses the stack and the block until the kernel clears `busy`; `number` and `busy` can be written to. The flags
/// ask for the same memory, and `entry` does only what may be done without what libc keeps per thread.
#[cfg(target_arch = "x86_64")]
pub unsafe fn clone(request: &Request, entry: Entry, argument: usize) -> Result<u32, Errno> {
    let id: isize;
    // SAFETY: the caller's: the new thread begins behind the system call with all registers but rax, rcx,
    // r11 and rsp as they are here, uses the stack from its end on, and never leaves the block. In the
    // thread that called, this is a system call.
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

/// The same.
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

/// Nothing is known of other processors.
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

/// Ends the process by an instruction that there is not: the kernel's signal can be neither blocked nor refused.
pub fn trap() -> ! {
    // SAFETY: nothing comes after it.
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
