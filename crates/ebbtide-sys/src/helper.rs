//! A process that shares the program's memory and outlives it: what it is made of.
//!
//! `clone(CLONE_VM)`: another process with the same memory and nothing else of the program's. It has no
//! descriptors, no signal handlers (all signals are blocked), no thread-local storage of libc's, no capabilities,
//! and may make few system calls ([`lock_down`]). No function here touches `errno`.
//!
//! Only x86-64: elsewhere [`spawn_process`] says `ENOSYS`.

use crate::call::{Errno, Sysno, syscall};
use core::ffi::CStr;
use core::sync::atomic::AtomicU32;

/// The flags of its threads, the only ones that [`lock_down`] leaves.
const THREAD_FLAGS: usize = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_CLEARTID) as usize;

/// Descriptors are shared until it unshares them at once: it never holds a copy of one that the program closes.
/// No exit signal: `wait` does not see it. Not traced: a debugger of the program has nothing to do with it.
const PROCESS_FLAGS: usize = (libc::CLONE_VM
    | libc::CLONE_FILES
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_CLEARTID
    | libc::CLONE_UNTRACED) as usize;

/// What runs in it. Never returns.
pub type Entry = extern "C" fn(usize) -> !;

/// Where one of its threads runs.
#[derive(Clone, Copy)]
pub struct Seat<'a> {
    /// The end of its stack, a multiple of 16.
    pub stack: usize,
    /// What stands in for thread-local storage: room on both sides of this address.
    pub storage: usize,
    /// 1 as long as it runs: the kernel clears it.
    pub busy: &'a AtomicU32,
}

/// Starts the process. Its number, as this one sees it.
///
/// # Errors
/// What clone(2) says: `EAGAIN` under a limit, `EPERM` from a filter.
///
/// # Safety
/// The seat is nobody else's until [`Seat::busy`] is 0, and stays mapped; `entry` does only what a thread
/// that libc does not know may do.
pub unsafe fn spawn_process(seat: Seat, entry: Entry, argument: usize) -> Result<u32, Errno> {
    let all = u64::MAX;
    let mut before = 0u64;
    let none = core::ptr::null_mut::<u64>();
    // SAFETY: both masks are valid; this thread's is put back.
    unsafe {
        let set = libc::SIG_SETMASK;
        syscall!(
            Sysno::rt_sigprocmask,
            set,
            &raw const all,
            &raw mut before,
            8
        )?;
        let made = spawn(PROCESS_FLAGS, seat, entry, argument);
        let _ = syscall!(Sysno::rt_sigprocmask, set, &raw const before, none, 8);
        made
    }
}

/// Starts a further thread of it.
///
/// # Errors
/// As [`spawn_process`].
///
/// # Safety
/// As [`spawn_process`].
pub unsafe fn spawn_thread(seat: Seat, entry: Entry, argument: usize) -> Result<u32, Errno> {
    // SAFETY: by contract; signals are blocked already.
    unsafe { spawn(THREAD_FLAGS, seat, entry, argument) }
}

#[cfg(target_arch = "x86_64")]
unsafe fn spawn(flags: usize, seat: Seat, entry: Entry, argument: usize) -> Result<u32, Errno> {
    use core::sync::atomic::Ordering;
    seat.busy.store(1, Ordering::Release);
    let result: isize;
    // SAFETY: the parent comes out of it as from any system call. The child has a stack of its own, empty, and
    // calls `entry`, which does not return.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") Sysno::clone as isize => result,
            in("rdi") flags,
            in("rsi") seat.stack,
            in("rdx") 0,
            in("r10") seat.busy.as_ptr(),
            in("r8") seat.storage,
            in("r12") entry as usize,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if result < 0 {
        seat.busy.store(0, Ordering::Release);
        return Err(Errno::new(-result as i32));
    }
    Ok(result as u32)
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn spawn(_: usize, _: Seat, _: Entry, _: usize) -> Result<u32, Errno> {
    Err(Errno::ENOSYS)
}

/// Ends this thread.
pub fn exit_thread() -> ! {
    loop {
        // SAFETY: nothing of this thread's is used any more.
        let _ = unsafe { syscall!(Sysno::exit, 0) };
    }
}

/// Ends this process.
pub fn exit_process() -> ! {
    loop {
        // SAFETY: as above, for all of its threads.
        let _ = unsafe { syscall!(Sysno::exit_group, 0) };
    }
}

/// The word that the kernel clears and wakes when this thread leaves its memory: by its end, or by exec.
pub fn leaving_word() -> Option<usize> {
    let mut word = 0usize;
    // SAFETY: `word` is a valid place to write to.
    unsafe {
        syscall!(
            Sysno::prctl,
            libc::PR_GET_TID_ADDRESS,
            &raw mut word,
            0,
            0,
            0
        )
    }
    .ok()?;
    (word != 0).then_some(word)
}

/// Gives up what it shares with the program but memory: descriptors, session, terminal, directory, and a
/// priority beyond the usual. `false`: refused; then it must end.
pub fn leave_program() -> bool {
    if !crate::thread::leave_descriptors() {
        return false;
    }
    let no_core = libc::rlimit64 {
        rlim_cur: 1,
        rlim_max: 1,
    };
    let none = core::ptr::null_mut::<libc::rlimit64>();
    let usual = 0i32;
    // SAFETY: all arguments are readable; only this process is changed.
    unsafe {
        let _ = syscall!(Sysno::setsid);
        let _ = syscall!(Sysno::chdir, c"/".as_ptr());
        // 1 and not 0: a core of it is not wanted through a pipe either.
        let _ = syscall!(
            Sysno::prlimit64,
            0,
            libc::RLIMIT_CORE,
            &raw const no_core,
            none
        );
        let _ = syscall!(
            Sysno::sched_setscheduler,
            0,
            libc::SCHED_OTHER,
            &raw const usual
        );
    }
    true
}

/// Lets this thread run only where nobody else wants to. There is no way back without privilege.
pub fn run_idly() {
    let parameter = 0i32;
    // SAFETY: `parameter` is readable.
    let _ = unsafe {
        syscall!(
            Sysno::sched_setscheduler,
            0,
            libc::SCHED_IDLE,
            &raw const parameter
        )
    };
}

/// A descriptor of its own, never closed but by its end.
#[derive(Clone, Copy)]
pub struct Descriptor(usize);

impl Descriptor {
    /// Opens a file of the kernel's for reading.
    ///
    /// # Errors
    /// What openat(2) says.
    pub fn open(path: &CStr) -> Result<Self, Errno> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: `path` ends with a NUL.
        unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) }.map(Self)
    }

    /// A process.
    ///
    /// # Errors
    /// What pidfd_open(2) says.
    pub fn process(id: u32) -> Result<Self, Errno> {
        // SAFETY: no pointers.
        unsafe { syscall!(Sysno::pidfd_open, id, 0) }.map(Self)
    }

    /// Reads from the beginning, with one call.
    pub fn read_start<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        // SAFETY: `buffer` can be written to for its length.
        let len = unsafe { syscall!(Sysno::pread64, self.0, buffer.as_mut_ptr(), buffer.len(), 0) };
        buffer.get(..len.ok()?)
    }

    /// Reads on; 0 at the end and after errors.
    pub fn read(&self, buffer: &mut [u8]) -> usize {
        // SAFETY: `buffer` can be written to for its length.
        unsafe { syscall!(Sysno::read, self.0, buffer.as_mut_ptr(), buffer.len()) }.unwrap_or(0)
    }

    /// Goes back to the beginning.
    pub fn rewind(&self) {
        // SAFETY: no pointers.
        let _ = unsafe { syscall!(Sysno::lseek, self.0, 0, libc::SEEK_SET) };
    }

    /// Of a process: waits until all its threads are gone. `false`: it cannot wait, because a filter of the
    /// program's refuses the call.
    pub fn wait_for_end(&self) -> bool {
        loop {
            match self.poll(libc::POLLIN, None) {
                Ok(events) if events & libc::POLLIN != 0 => return true,
                Ok(0) | Err(Errno::EINTR | Errno::EAGAIN) => {}
                _ => return false,
            }
        }
    }

    /// Of a process that has ended: waits until its parent knows, or for `ms`. Kernels before 6.15 do not tell.
    pub fn wait_for_parent(&self, ms: u64) {
        let _ = self.poll(0, Some(ms));
    }

    fn poll(&self, events: i16, ms: Option<u64>) -> Result<i16, Errno> {
        let mut one = libc::pollfd {
            fd: self.0 as i32,
            events,
            revents: 0,
        };
        let time = ms.map(timespec);
        let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: one entry, and a time or none.
        unsafe { syscall!(Sysno::ppoll, &raw mut one, 1, time, 0, 0) }?;
        Ok(one.revents)
    }

    /// Locks byte `at` of a file against other processes; waits for it if `wait`. `false`: not now, or refused.
    pub fn lock_byte(&self, at: u64, wait: bool) -> bool {
        // SAFETY: zero is a valid flock.
        let mut lock: libc::flock64 = unsafe { core::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as i16;
        lock.l_whence = libc::SEEK_SET as i16;
        lock.l_start = at as i64;
        lock.l_len = 1;
        let command = if wait { F_OFD_SETLKW } else { F_OFD_SETLK };
        // SAFETY: `lock` is readable.
        unsafe { syscall!(Sysno::fcntl, self.0, command, &raw const lock) }.is_ok()
    }
}

const F_OFD_SETLK: i32 = 37;
const F_OFD_SETLKW: i32 = 38;

fn timespec(ms: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ms / 1000) as i64,
        tv_nsec: (ms % 1000 * 1_000_000) as i64,
    }
}

/// Opens, and makes where it is missing, a file for locks in a directory that is this user's alone. `make`: the
/// directory too.
///
/// # Errors
/// What the calls say; `EPERM` when somebody else could be behind the directory or the file.
pub fn open_private(directory: &CStr, name: &CStr, make: bool) -> Result<Descriptor, Errno> {
    // SAFETY: paths end with a NUL; `about` is a valid place to write to; descriptors are this process's own.
    unsafe {
        if make {
            let _ = syscall!(Sysno::mkdir, directory.as_ptr(), 0o700);
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let dir = syscall!(Sysno::openat, libc::AT_FDCWD, directory.as_ptr(), flags, 0)?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let file = owned(dir, libc::S_IFDIR)
            .and_then(|()| syscall!(Sysno::openat, dir, name.as_ptr(), flags, 0o600));
        let _ = syscall!(Sysno::close, dir);
        let file = file?;
        if let Err(error) = owned(file, libc::S_IFREG) {
            let _ = syscall!(Sysno::close, file);
            return Err(error);
        }
        Ok(Descriptor(file))
    }
}

/// Whether a descriptor is of this kind, this user's, and nobody else may write to it.
fn owned(fd: usize, kind: u32) -> Result<(), Errno> {
    // SAFETY: zero is a valid stat, a place to write to.
    let (about, user) = unsafe {
        let mut about: libc::stat = core::mem::zeroed();
        syscall!(Sysno::fstat, fd, &raw mut about)?;
        (about, syscall!(Sysno::geteuid)? as u32)
    };
    let private =
        about.st_mode & libc::S_IFMT == kind && about.st_uid == user && about.st_mode & 0o022 == 0;
    if private { Ok(()) } else { Err(Errno::EPERM) }
}

/// The user that this process may open files as.
pub fn user() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::geteuid) }.unwrap_or(0) as u32
}

/// The parent's process id.
pub fn parent() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::getppid) }.unwrap_or(0) as u32
}

/// Whether this process has one thread left.
pub fn is_single() -> bool {
    // SAFETY: the kernel checks, and changes nothing of a single thread.
    unsafe { syscall!(Sysno::unshare, libc::CLONE_THREAD) }.is_ok()
}

/// Whether nobody else uses this memory, asked by the one thread of this process. The kernel looks through all
/// processes, so the answer is exact, and with nobody there to share it further it stays true.
pub fn is_alone() -> bool {
    // SAFETY: as above: for a single thread that shares no memory nothing is to be unshared.
    unsafe { syscall!(Sysno::unshare, libc::CLONE_VM) }.is_ok()
}

/// Takes the end of a process that this one made off the kernel's list. `true`: it is gone.
pub fn collect(id: u32) -> bool {
    let flags = libc::WNOHANG | libc::__WALL;
    let none = core::ptr::null_mut::<i32>();
    // SAFETY: no status and no usage are asked for.
    match unsafe { syscall!(Sysno::wait4, id, none, flags, 0) } {
        Ok(found) => found as u32 == id,
        Err(error) => error == Errno::ECHILD,
    }
}

/// Nanoseconds since some fixed moment, without the vDSO and libc.
pub fn now_ns() -> u64 {
    let mut time = timespec(0);
    // SAFETY: `time` is a valid place to write to.
    let _ = unsafe { syscall!(Sysno::clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The same in milliseconds.
pub fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// What became of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// Woken, or the word had changed already.
    Woken,
    /// The time is over.
    Late,
    /// The word cannot be read, or a filter of the program's refuses the call.
    Refused,
}

/// Sleeps while the word at `address` holds `value`. The kernel's own wake-ups of thread ends are heard.
pub fn wait(address: usize, value: u32, ms: u64) -> Waited {
    let time = timespec(ms);
    // SAFETY: the kernel checks the address.
    match unsafe {
        syscall!(
            Sysno::futex,
            address,
            libc::FUTEX_WAIT,
            value,
            &raw const time
        )
    } {
        Err(Errno::ETIMEDOUT) => Waited::Late,
        Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => Waited::Woken,
        Err(_) => Waited::Refused,
    }
}

/// Wakes everybody who waits as [`wait`] does.
pub fn wake(address: usize) {
    // SAFETY: the kernel checks the address.
    let _ = unsafe { syscall!(Sysno::futex, address, libc::FUTEX_WAKE, i32::MAX) };
}

/// Takes a mapping away.
///
/// # Safety
/// Nobody needs what is there.
pub unsafe fn unmap(start: usize, end: usize) {
    // SAFETY: by contract. A refusal leaves it to the end of the process.
    let _ = unsafe { syscall!(Sysno::munmap, start, end - start) };
}

/// Lets this process make only the calls that are in this module, without privileges and without a way back.
/// `false`: refused; then it must end.
///
/// Whoever can write to the program's memory can make it do what he wants: so it may do nothing that the
/// program, which may lock itself in later, could not. Opening files is over when this is called.
#[cfg(target_arch = "x86_64")]
pub fn lock_down() -> bool {
    const CODE: [libc::sock_filter; filter::LEN] = filter::program();
    let code = CODE;
    let program = libc::sock_fprog {
        len: filter::LEN as u16,
        filter: code.as_ptr().cast_mut(),
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

/// Nothing is known of other processors' calls.
#[cfg(not(target_arch = "x86_64"))]
pub fn lock_down() -> bool {
    false
}

/// The calls that are left, as a program for seccomp(2).
#[cfg(target_arch = "x86_64")]
mod filter {
    use super::{F_OFD_SETLK, F_OFD_SETLKW, Sysno, THREAD_FLAGS};
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    /// Allowed whatever the arguments are: on memory that the program has too, and on descriptors of its own.
    const FREE: [Sysno; 13] = [
        Sysno::madvise,
        Sysno::munmap,
        Sysno::futex,
        Sysno::read,
        Sysno::pread64,
        Sysno::lseek,
        Sysno::ppoll,
        Sysno::exit,
        Sysno::exit_group,
        Sysno::restart_syscall,
        Sysno::clock_gettime,
        Sysno::sched_setscheduler,
        Sysno::sched_setaffinity,
    ];
    /// Allowed with one of two values of an argument: call, number of the argument, values.
    const BOUND: [(Sysno, u32, [usize; 2]); 3] = [
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
    ];
    pub const LEN: usize = 4 + 2 * FREE.len() + 8 * BOUND.len() + 1;

    const fn op(code: u32, k: u32, yes: u8, no: u8) -> sock_filter {
        sock_filter {
            code: code as u16,
            jt: yes,
            jf: no,
            k,
        }
    }

    pub const fn program() -> [sock_filter; LEN] {
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
        code[1] = op(same, AUDIT_ARCH_X86_64, 1, 0);
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
        while index < BOUND.len() {
            let (call, argument, values) = BOUND[index];
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
