//! Facts about this process and machine that are needed before libc is ready.

use crate::call::{Errno, Sysno, syscall};
use crate::file::{Digits, PathText};
pub use crate::identity::{auxv, id, program, thread_id};
pub use crate::libc_symbols::install_fork_handlers;
use core::ffi::CStr;

/// Whether the program runs with more rights than its caller. Then nothing from outside is trusted.
pub fn is_secure() -> bool {
    auxv(libc::AT_SECURE).is_some()
}

/// Calls `found` with the value of the variable `name` at program start.
///
/// Searches the initial stack, because the first allocation can come before libc has set `environ`. If the stack is
/// not known, it reads `/proc/self/environ`.
pub fn environment<R>(name: &[u8], found: impl FnOnce(&[u8]) -> R) -> Option<R> {
    if let Some(mut entry) = initial_environment() {
        loop {
            // SAFETY: `entry` walks a NULL-ended array: the initial stack, or the environment of musl at the start.
            let text = unsafe { *entry };
            if text.is_null() {
                return None;
            }
            // SAFETY: each entry is a NUL-ended string.
            if let Some(value) = value_of(unsafe { CStr::from_ptr(text) }.to_bytes(), name) {
                return Some(found(value));
            }
            // SAFETY: the terminator has not been reached.
            entry = unsafe { entry.add(1) };
        }
    }
    let mut buffer = [0; 16384];
    let text = crate::file::read(c"/proc/self/environ", &mut buffer).ok()?;
    let mut entries = text.split(|&byte| byte == 0);
    entries.find_map(|entry| value_of(entry, name)).map(found)
}

fn value_of<'a>(entry: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    entry.strip_prefix(name)?.strip_prefix(b"=")
}

/// The start of `envp` on the initial stack, from the loader's `__libc_stack_end`. musl has set `__environ` before any
/// code of the program or of its libraries runs.
fn initial_environment() -> Option<*const *const libc::c_char> {
    let place = crate::libc_symbols::stack_end();
    if place.is_null() {
        let place = crate::libc_symbols::environment();
        // SAFETY: null, or the C library's variable.
        let start = (!place.is_null()).then(|| unsafe { place.read() })?;
        return (!start.is_null()).then_some(start);
    }
    // SAFETY: the loader stored the initial stack pointer there; it points at argc, argv[], NULL,
    // envp[], NULL.
    unsafe {
        let stack = *place;
        if stack.is_null() {
            return None;
        }
        let argc = *stack;
        // A loader that was started by name may have moved the arguments since (glibc 2.31).
        let is_true = (1..=MAX_ARGUMENTS).contains(&argc) && *stack.add(argc + 1) == 0;
        is_true.then(|| stack.add(argc + 2).cast())
    }
}

/// More arguments than any kernel allows.
const MAX_ARGUMENTS: usize = 1 << 21;

/// A bound of CPU numbers: all CPUs that the kernel may ever bring up have smaller numbers.
pub fn cpu_limit() -> usize {
    let mut buffer = [0; 256];
    if let Ok(text) = crate::file::read(c"/sys/devices/system/cpu/possible", &mut buffer) {
        // "0-3" or "0,2-5": the last number is the highest.
        let start = text
            .iter()
            .rposition(|byte| matches!(byte, b'-' | b','))
            .map_or(0, |at| at + 1);
        if let Some(last) = crate::file::parse_number(&text[start..]) {
            return last as usize + 1;
        }
    }
    let (_, words) = affinity();
    if words == 0 { 1024 } else { words * 64 }
}

/// A set of CPU numbers below 1,024.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuSet([u64; 16]);

impl CpuSet {
    /// The empty set.
    pub const EMPTY: Self = Self([0; 16]);

    /// Whether a CPU is in the set.
    pub fn has(&self, cpu: usize) -> bool {
        let word = self.0.get(cpu / 64);
        word.is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// Adds a CPU. Numbers from 1,024 on are ignored.
    pub fn add(&mut self, cpu: usize) {
        if let Some(word) = self.0.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
    }

    /// The CPUs that this thread may use.
    pub fn allowed() -> Self {
        let (mask, words) = affinity();
        let mut set = Self::EMPTY;
        let words = words.min(set.0.len());
        set.0[..words].copy_from_slice(&mask[..words]);
        set
    }

    /// NUMA nodes, as a set of their numbers. Empty if the file cannot be read.
    pub fn nodes() -> Self {
        Self::read(c"/sys/devices/system/node/online").unwrap_or(Self::EMPTY)
    }

    /// The CPUs that are online. Empty if the file cannot be read.
    pub fn online() -> Self {
        Self::read(c"/sys/devices/system/cpu/online").unwrap_or(Self::EMPTY)
    }

    /// Whether the set has at most one CPU.
    pub fn has_at_most_one(&self) -> bool {
        self.count() <= 1
    }

    /// The number of CPUs in the set.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The CPUs of a NUMA node. `None`: there is no such node, or it cannot be read.
    pub fn of_node(node: usize) -> Option<Self> {
        let number = Digits::of(node);
        let path = PathText::join(&[b"/sys/devices/system/node/node", &number, b"/cpulist"])?;
        Self::read(path.as_c_str())
    }

    fn read(path: &CStr) -> Option<Self> {
        let mut buffer = [0; 4096];
        Some(Self::parse(crate::file::read(path, &mut buffer).ok()?))
    }

    /// Parses a list as the kernel writes it: `0-3,8,10-11`.
    fn parse(list: &[u8]) -> Self {
        let mut set = Self::EMPTY;
        for part in list.split(|&byte| byte == b',') {
            let mut ends = part.split(|&byte| byte == b'-');
            let mut end = || crate::file::parse_number(ends.next()?);
            if let Some(first) = end() {
                let last = end().unwrap_or(first).min(1023);
                (first..=last).for_each(|cpu| set.add(cpu as usize));
            }
        }
        set
    }
}

/// Number of CPUs that this thread may use now, at least 1.
pub fn allowed_cpus() -> usize {
    let (mask, words) = affinity();
    let count: u32 = mask[..words].iter().map(|word| word.count_ones()).sum();
    (count as usize).max(1)
}

/// The CPUs that this thread may use, and how many words of the mask the kernel wrote; 0 if the call is refused.
fn affinity() -> ([u64; 1024], usize) {
    let mut mask = [0u64; 1024];
    let size = size_of_val(&mask);
    // SAFETY: the kernel writes at most the size given.
    let bytes = unsafe { syscall!(Sysno::sched_getaffinity, 0, size, mask.as_mut_ptr()) };
    (mask, bytes.map_or(0, |bytes| bytes / 8))
}

/// RAM and swap of the machine in bytes.
pub fn memory_total() -> Option<(usize, usize)> {
    // SAFETY: zero is a valid sysinfo.
    let mut info: libc::sysinfo = unsafe { core::mem::zeroed() };
    // SAFETY: `info` is a valid place to write to.
    unsafe { syscall!(Sysno::sysinfo, &raw mut info) }.ok()?;
    let unit = info.mem_unit as usize;
    Some((
        info.totalram as usize * unit,
        info.totalswap as usize * unit,
    ))
}

/// What `read` says of the kernel's release, such as `6.12.3-amd64`.
pub(crate) fn kernel_release<R>(read: impl FnOnce(&[u8]) -> R) -> Option<R> {
    // SAFETY: zero is a valid utsname.
    let mut name: libc::utsname = unsafe { core::mem::zeroed() };
    // SAFETY: `name` is a valid place to write to.
    unsafe { syscall!(Sysno::uname, &raw mut name) }.ok()?;
    // SAFETY: the kernel ended the text with a NUL.
    let release = unsafe { CStr::from_ptr(name.release.as_ptr()) }.to_bytes();
    Some(read(release))
}

/// The kernel's version, major and minor.
pub fn kernel_version() -> Option<(u32, u32)> {
    kernel_release(|release| {
        let minor = release.iter().position(|&byte| byte == b'.')? + 1;
        Some((
            crate::file::parse_number(release)? as u32,
            crate::file::parse_number(&release[minor..])? as u32,
        ))
    })?
}

/// Resident bytes of this process and the lazy ones among them, as the kernel counts them. Walks all page tables.
pub fn resident() -> Option<(u64, u64)> {
    let mut buffer = [0; 2048];
    let text = crate::file::read(c"/proc/self/smaps_rollup", &mut buffer).ok()?;
    let kib = |key: &[u8]| {
        let mut lines = text.split(|&byte| byte == b'\n');
        let line = lines.find(|line| line.starts_with(key))?;
        crate::file::parse_number(&line[key.len()..])
    };
    Some((kib(b"Rss:")? * 1024, kib(b"LazyFree:")? * 1024))
}

/// The soft limit of a resource (`RLIMIT_*`), `None` when unlimited.
pub fn soft_limit(resource: u32) -> Option<usize> {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place to write to.
    unsafe { syscall!(Sysno::prlimit64, 0, resource, 0, &raw mut limit) }.ok()?;
    (limit.rlim_cur != libc::RLIM64_INFINITY).then_some(limit.rlim_cur as usize)
}

/// The CPU that this thread is on now, as a hint. glibc reads it from this thread's `struct rseq`, and
/// [`crate::thread::Place`] gives workers one too.
pub fn current_cpu() -> usize {
    // SAFETY: no arguments; the call cannot fail here and leaves `errno` alone then.
    let cpu = unsafe { libc::sched_getcpu() };
    cpu.max(0) as usize
}

/// This thread, as a number that stays the same in its child. No system call.
pub fn this_thread() -> usize {
    // SAFETY: no arguments; it only reads the thread pointer.
    unsafe { libc::pthread_self() as usize }
}

/// The name of this thread, ended by zeros.
pub fn thread_name() -> [u8; 16] {
    let mut name = [0; 16];
    // SAFETY: the kernel writes at most 16 bytes.
    let _ = unsafe { syscall!(Sysno::prctl, libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// Whether the C library says that this process has had only one thread. glibc before 2.32 never says so.
pub fn is_single_threaded() -> bool {
    let place = crate::libc_symbols::single_threaded();
    // SAFETY: the address of a byte of the C library.
    !place.is_null() && unsafe { place.read_volatile() } != 0
}

/// The distance of a thread's `struct rseq` from its thread pointer in this C library, whether or not it is
/// registered. 0: there is none, as in glibc before 2.35.
pub fn rseq_offset() -> isize {
    let place = crate::libc_symbols::rseq_offset();
    if place.is_null() {
        return 0;
    }
    // SAFETY: a constant of the C library, set before the first thread runs.
    unsafe { *place }
}

/// The CPU that this thread is on now, asked from the kernel. For threads that libc does not know.
pub fn current_cpu_raw() -> usize {
    let mut cpu = 0u32;
    let none = core::ptr::null_mut::<u32>();
    // SAFETY: `cpu` is a valid place to write to.
    let _ = unsafe { syscall!(Sysno::getcpu, &raw mut cpu, none, none) };
    cpu as usize
}

/// Peak resident size in bytes. After an exec, it includes the peak of the program before.
pub fn peak_resident() -> usize {
    // SAFETY: zero is a valid rusage, a place to write to.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    let _ = unsafe { syscall!(Sysno::getrusage, libc::RUSAGE_SELF, &raw mut usage) };
    usage.ru_maxrss as usize * 1024
}

/// Resident size now in bytes, from a counter.
pub fn resident_quickly() -> Option<usize> {
    let mut buffer = [0; 128];
    let text = crate::file::read(c"/proc/self/statm", &mut buffer).ok()?;
    let mut fields = text.split(|&byte| byte == b' ').skip(1);
    crate::file::parse_number(fields.next()?).map(|pages| pages as usize * crate::vm::kernel_page())
}

/// The first child that has ended and that only a wait with `__WCLONE` or `__WALL` finds. The child stays
/// collectable.
pub fn ended_clone() -> Option<u32> {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WCLONE;
    let none = core::ptr::null_mut::<libc::rusage>();
    // SAFETY: zero is a valid siginfo. The kernel writes a child's number to it, or leaves zero.
    let id = unsafe {
        let mut about: libc::siginfo_t = core::mem::zeroed();
        syscall!(Sysno::waitid, libc::P_ALL, 0, &raw mut about, flags, none).ok()?;
        about.si_pid()
    };
    (id > 0).then_some(id as u32)
}

/// Whether a new child will be in the process namespace of this process.
pub fn has_plain_children() -> bool {
    let own = link(c"/proc/self/ns/pid");
    own.is_some() && own == link(c"/proc/self/ns/pid_for_children")
}

/// Whether `/proc` uses the process numbers of this process's namespace. It does not if `/proc` is a mount of another
/// process namespace.
pub fn proc_is_own() -> bool {
    link(c"/proc/self")
        .is_some_and(|(text, len)| crate::file::parse_number(&text[..len]) == Some(u64::from(id())))
}

/// The number of this process's process namespace, by which the kernel tells them apart. `None`: `/proc` does not say.
pub fn namespace() -> Option<u64> {
    let (text, len) = link(c"/proc/self/ns/pid")?;
    crate::file::parse_number(text[..len].strip_prefix(b"pid:[")?)
}

/// Whether there is a process of this number, ended or not, in this process namespace. If the kernel does not say, the answer is yes.
pub fn exists(pid: u32) -> bool {
    // SAFETY: numbers only; signal 0 is none.
    let sent = unsafe { syscall!(Sysno::kill, pid, 0) };
    sent != Err(Errno::ESRCH)
}

fn link(path: &CStr) -> Option<([u8; 64], usize)> {
    let mut text = [0; 64];
    let size = text.len();
    // SAFETY: `path` ends with a NUL, and `text` can be written to.
    let len = unsafe {
        syscall!(
            Sysno::readlinkat,
            libc::AT_FDCWD,
            path.as_ptr(),
            text.as_mut_ptr(),
            size
        )
    };
    Some((text, len.ok()?))
}

/// Whether this thread blocks the signals that libc keeps for itself, as threads of a [`Place`](crate::thread::Place)
/// do. libc lets no program block them.
pub(crate) fn is_unknown_to_libc() -> bool {
    /// 32 and 33, in glibc and in musl.
    const KEPT: u64 = 3 << 31;
    let mut blocked = 0u64;
    let none = core::ptr::null::<u64>();
    // SAFETY: `blocked` is writable, and nothing is changed.
    let _ = unsafe {
        let how = libc::SIG_BLOCK;
        syscall!(Sysno::rt_sigprocmask, how, none, &raw mut blocked, 8)
    };
    blocked & KEPT == KEPT
}

/// Ends the process with `SIGABRT`, through libc so that a core file and handlers work as usual. In a thread that
/// libc does not know, no handler of the program is called: it would need a larger stack and thread-local storage.
pub fn abort() -> ! {
    if is_unknown_to_libc() {
        abort_without_handler();
    }
    // SAFETY: never returns.
    unsafe { libc::abort() }
}

fn abort_without_handler() -> ! {
    // The kernel's `struct sigaction`: the default action, no flag, no mask.
    let default = [0usize; 4];
    let abort_only = 1u64 << (libc::SIGABRT - 1);
    // SAFETY: both are readable and have the sizes that the kernel expects. No code of this process runs after the
    // signal.
    unsafe {
        let (size, none) = (size_of::<u64>(), core::ptr::null_mut::<u64>());
        let action = default.as_ptr();
        let _ = syscall!(Sysno::rt_sigaction, libc::SIGABRT, action, none, size);
        let _ = syscall!(Sysno::tgkill, id(), thread_id(), libc::SIGABRT);
        let unblock = libc::SIG_UNBLOCK;
        let set = &raw const abort_only;
        let _ = syscall!(Sysno::rt_sigprocmask, unblock, set, none, size);
        // Another thread has set the signal to be ignored or blocked meanwhile, or a filter refuses it.
        loop {
            let _ = syscall!(Sysno::exit_group, 128 + libc::SIGABRT);
        }
    }
}

/// Ends the process without handlers and without a core file. Returns only if a filter refuses the call.
pub fn exit_at_once(status: libc::c_int) {
    // SAFETY: a plain call; no code of this process runs after it.
    let _ = unsafe { syscall!(Sysno::exit_group, status) };
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn environment_at_start() {
        let path = environment(b"PATH", |value| value.to_vec_len());
        assert!(path.unwrap() > 0);
        assert!(environment(b"NO_SUCH_VARIABLE_HERE", |_| ()).is_none());
    }

    trait Len {
        fn to_vec_len(&self) -> usize;
    }
    impl Len for [u8] {
        fn to_vec_len(&self) -> usize {
            self.len()
        }
    }

    #[test]
    fn cpu_lists() {
        let set = CpuSet::parse(b"0-2,64,1022-4000\n");
        let all = (0..2000).filter(|&cpu| set.has(cpu));
        assert!(all.eq([0, 1, 2, 64, 1022, 1023]));
        assert_eq!(CpuSet::parse(b"\n"), CpuSet::EMPTY);
        assert!(CpuSet::allowed().has(current_cpu()) && CpuSet::online().has(current_cpu()));
        assert_eq!((set.count(), CpuSet::EMPTY.count()), (6, 0));
        assert!(CpuSet::of_node(0).is_none_or(|cpus| cpus != CpuSet::EMPTY));
        assert_eq!(CpuSet::of_node(999), None);
    }

    #[test]
    fn machine() {
        assert!(cpu_limit() >= allowed_cpus());
        assert!(memory_total().unwrap().0 > 1 << 20);
        assert!(resident().is_none_or(|(all, lazy)| all > 1 << 16 && lazy <= all));
        assert!(kernel_version().unwrap() >= (3, 0));
        assert_ne!(id(), 0);
        let own = std::env::current_exe().expect("a path");
        assert_eq!(
            own.file_name().map(|name| name.as_encoded_bytes()),
            Some(program())
        );
        assert!(proc_is_own());
        assert!(current_cpu() < cpu_limit());
    }
}
