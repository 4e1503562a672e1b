//! The seccomp(2) filter of the exit helper: the system calls that remain allowed while it waits.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::call::{Sysno, syscall};

/// Limits this process to the system calls that [`super`] uses, without privileges and without a way back. Returns
/// `false` if refused; then the process must end.
///
/// An attacker who can write to the program's memory controls the helper. The program may lock itself in later. So
/// the helper may do nothing that such a program could not do. The helper has opened its files before this call.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub fn lock_down() -> bool {
    let mut code = filter::program(crate::process::id() as usize);
    let program = libc::sock_fprog {
        len: filter::LEN as u16,
        filter: code.as_mut_ptr(),
    };
    crate::thread::leave_privileges();
    // SAFETY: the program and its code are readable; only this process is bound.
    unsafe {
        syscall!(
            Sysno::seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program
        )
    }
    .is_ok()
}

/// The calls of other processors are not known.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn lock_down() -> bool {
    false
}

/// The allowed calls, as a program for seccomp(2).
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod filter {
    use super::super::THREAD_FLAGS;
    use super::super::descriptor::{F_OFD_SETLK, F_OFD_SETLKW};
    use crate::call::Sysno;
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

    /// `AUDIT_ARCH_X86_64`, `AUDIT_ARCH_AARCH64`: the ELF machine, 64 bits, little endian.
    const AUDIT_ARCH: u32 = 0xc000_0000
        | if cfg!(target_arch = "x86_64") {
            62
        } else {
            183
        };
    /// Allowed with any arguments: calls on memory that the program has too, and on the helper's own descriptors.
    const FREE: [Sysno; 14] = [
        Sysno::madvise,
        Sysno::munmap,
        Sysno::io_destroy,
        Sysno::futex,
        Sysno::read,
        Sysno::pread64,
        Sysno::lseek,
        Sysno::ppoll,
        Sysno::exit,
        Sysno::exit_group,
        Sysno::getpid,
        Sysno::restart_syscall,
        Sysno::clock_gettime,
        Sysno::sched_yield,
    ];
    /// Allowed with one of two values of an argument: the call, the number of the argument, the values.
    const fn bound(own: usize) -> [(Sysno, u32, [usize; 2]); 8] {
        [
            (Sysno::clone, 0, [THREAD_FLAGS, THREAD_FLAGS]),
            (
                Sysno::unshare,
                0,
                [libc::CLONE_THREAD as usize, libc::CLONE_VM as usize],
            ),
            (
                Sysno::fcntl,
                1,
                [F_OFD_SETLK as usize, F_OFD_SETLKW as usize],
            ),
            (Sysno::kill, 0, [own, own]),
            // Writes only to memory that the helper can write to anyway.
            (Sysno::process_vm_writev, 0, [own, own]),
            // Only for the calling thread.
            (Sysno::sched_setscheduler, 0, [0, 0]),
            (Sysno::sched_setaffinity, 0, [0, 0]),
            (Sysno::sched_getaffinity, 0, [0, 0]),
        ]
    }
    pub const LEN: usize = 4 + 2 * FREE.len() + 8 * bound(0).len() + 1;

    const fn op(code: u32, k: u32, yes: u8, no: u8) -> sock_filter {
        sock_filter {
            code: code as u16,
            jt: yes,
            jf: no,
            k,
        }
    }

    /// The program for a process with this number.
    pub const fn program(own: usize) -> [sock_filter; LEN] {
        let bound = bound(own);
        let load = BPF_LD | BPF_W | BPF_ABS;
        let same = BPF_JMP | BPF_JEQ | BPF_K;
        let allow = op(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0);
        let refuse = op(
            BPF_RET | BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            0,
            0,
        );
        let mut code = [refuse; LEN];
        // `seccomp_data`: number, architecture, instruction pointer, six arguments of 8 bytes.
        code[0] = op(load, 4, 0, 0);
        code[1] = op(same, AUDIT_ARCH, 1, 0);
        code[3] = op(load, 0, 0, 0);
        let mut at = 4;
        let mut index = 0;
        while index < FREE.len() {
            code[at] = op(same, FREE[index] as u32, 0, 1);
            code[at + 1] = allow;
            at += 2;
            index += 1;
        }
        index = 0;
        while index < bound.len() {
            let (call, argument, values) = bound[index];
            let place = 16 + 8 * argument;
            code[at] = op(same, call as u32, 0, 7);
            code[at + 1] = op(load, place + 4, 0, 0);
            code[at + 2] = op(same, 0, 0, 3);
            code[at + 3] = op(load, place, 0, 0);
            code[at + 4] = op(same, values[0] as u32, 2, 0);
            code[at + 5] = op(same, values[1] as u32, 1, 0);
            code[at + 7] = allow;
            at += 8;
            index += 1;
        }
        code
    }
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests;
