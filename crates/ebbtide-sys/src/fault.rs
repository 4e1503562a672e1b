//! A handler of SIGSEGV that sees faults before the program's own handler.
//!
//! ```text
//!  kernel ─▶ on_fault ─▶ the watcher, if it watches the address
//!                 └────▶ the program's action: its handler, or what the kernel does without one
//! ```
//!
//! The kernel has this handler with the flags and the mask of the program's action. So stack, blocked signals and restarted
//! calls are those that the program asked for. Only `SA_RESETHAND` is done here. `TARGET` has the rest of the program's
//! action, in one word: a handler may run at any time in any thread.
//!
//! A library that defines `sigaction` calls [`change`], and so stays first. Where the program changes the action in another
//! way, this handler is gone, and the program runs as it does without it. An ignored signal stays ignored in the kernel,
//! because an exec keeps that.
//!
//! Sources: sigaction(2), rt_sigqueueinfo(2), the kernel's `arch/*/kernel/signal.c`.

use crate::call::{Errno, Sysno, syscall};
use crate::lock::{Lock, Rank};
use crate::process;
use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use ebbtide_interface::ranks;

/// Whether this processor's signal frames are known here.
pub const IS_SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// A fault of a thread that used an address without access.
pub struct Fault {
    /// The address.
    pub address: usize,
    /// Whether the thread wrote. `None`: the processor does not say.
    pub is_write: Option<bool>,
    /// The instruction.
    pub instruction: usize,
}

/// Sees each fault before the program does. It runs in a signal handler, perhaps on a small stack.
pub type Watcher = fn(&Fault);

static WATCHER: AtomicUsize = AtomicUsize::new(0);
/// The process whose action [`TARGET`] is; 0: nothing is installed. A `vfork` child has another action in the same memory.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The handler of the program's action, and its flags that the kernel does not get as they are. User addresses leave
/// these bits free.
static TARGET: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
const RESETS: usize = 1 << 63;
const HAS_INFO: usize = 1 << 62;
const ADDRESS: usize = HAS_INFO - 1;

/// Held while the program's action changes, with all signals blocked.
static CHANGING: Lock<()> = Lock::new(Rank(ranks::GUARDED), ());

/// The lock of this module, for the handlers of forks.
pub fn lock() -> &'static Lock<()> {
    &CHANGING
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Action {
    pub(crate) handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

const MASK_BYTES: usize = size_of::<u64>();
const SIGNAL: c_int = libc::SIGSEGV;
const INFO: usize = libc::SA_SIGINFO as usize;
const RESET: usize = libc::SA_RESETHAND as u32 as usize;
/// The kernel's flag for a restorer.
#[cfg(any(target_arch = "x86_64", test))]
const RESTORER: usize = 0x0400_0000;

impl Action {
    const DEFAULT: Self = Self {
        handler: libc::SIG_DFL,
        flags: 0,
        restorer: 0,
        mask: 0,
    };

    /// An action that blocks no other signals.
    pub(crate) fn new(handler: usize, flags: c_int) -> Self {
        with_restorer(Self {
            handler,
            flags: flags as u32 as usize,
            ..Self::DEFAULT
        })
    }

    /// The kernel's action now.
    pub(crate) fn current(signal: c_int) -> Result<Self, Errno> {
        let mut action = Self::DEFAULT;
        // SAFETY: `action` can be written to.
        unsafe { action_call(signal, ptr::null(), &raw mut action) }?;
        Ok(action)
    }

    pub(crate) fn install(&self, signal: c_int) -> Result<(), Errno> {
        // SAFETY: a valid action; its handler is the program's, or ours.
        unsafe { action_call(signal, self, ptr::null_mut()) }
    }

    fn is_ours(&self) -> bool {
        self.handler == on_fault as *const () as usize
    }

    /// What the kernel gets in place of the program's action.
    fn in_front(self) -> Self {
        Self {
            handler: on_fault as *const () as usize,
            flags: self.flags & !RESET | INFO | own_restorer().0,
            restorer: own_restorer().1,
            ..self
        }
    }

    /// See [`TARGET`].
    fn target(&self) -> usize {
        let bit = |flag, bit| if self.flags & flag != 0 { bit } else { 0 };
        self.handler & ADDRESS | bit(RESET, RESETS) | bit(INFO, HAS_INFO)
    }

    /// The program's action, from what the kernel has.
    fn seen_by_program(self) -> Self {
        if !self.is_ours() {
            return self;
        }
        let target = TARGET.load(Ordering::Relaxed);
        let flag = |bit, flag| if target & bit != 0 { flag } else { 0 };
        Self {
            handler: target & ADDRESS,
            flags: self.flags & !INFO | flag(RESETS, RESET) | flag(HAS_INFO, INFO),
            ..self
        }
    }

    fn from_libc(action: &libc::sigaction) -> Self {
        // SAFETY: the C library's set is larger, and begins with the kernel's.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read_unaligned() };
        Self {
            handler: action.sa_sigaction,
            flags: action.sa_flags as u32 as usize,
            restorer: 0,
            mask,
        }
    }

    fn to_libc(self) -> libc::sigaction {
        // SAFETY: all zeros is an action without flags and mask.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = self.handler;
        action.sa_flags = self.flags as c_int;
        // SAFETY: as C libraries do. Null, or a function that programs do not call.
        action.sa_restorer = unsafe { transmute::<usize, Option<extern "C" fn()>>(self.restorer) };
        // SAFETY: as in `from_libc`.
        unsafe {
            (&raw mut action.sa_mask)
                .cast::<u64>()
                .write_unaligned(self.mask);
        }
        action
    }
}

/// # Safety
/// As rt_sigaction(2).
unsafe fn action_call(signal: c_int, new: *const Action, old: *mut Action) -> Result<(), Errno> {
    // SAFETY: by contract.
    unsafe { syscall!(Sysno::rt_sigaction, signal, new, old, MASK_BYTES) }.map(drop)
}

/// Calls `change` with all signals blocked.
fn without_signals<R>(change: impl FnOnce() -> R) -> R {
    let (all, mut before) = (u64::MAX, 0u64);
    let none = ptr::null_mut::<u64>();
    // SAFETY: both sets have the kernel's size, and the mask is put back.
    unsafe {
        let (set, old) = (&raw const all, &raw mut before);
        let _ = syscall!(
            Sysno::rt_sigprocmask,
            libc::SIG_SETMASK,
            set,
            old,
            MASK_BYTES
        );
        let result = change();
        let old = &raw const before;
        let _ = syscall!(
            Sysno::rt_sigprocmask,
            libc::SIG_SETMASK,
            old,
            none,
            MASK_BYTES
        );
        result
    }
}

/// Puts `watcher` in front of the program's action. `false`: the kernel refuses, or the processor is not known.
pub fn install(watcher: Watcher) -> bool {
    if !IS_SUPPORTED {
        return false;
    }
    without_signals(|| {
        let _changing = CHANGING.lock();
        let Ok(program) = Action::current(SIGNAL) else {
            return false;
        };
        WATCHER.store(watcher as *const () as usize, Ordering::Relaxed);
        OWNER.store(process::id(), Ordering::Relaxed);
        put_in_front(&program).is_ok()
    })
}

fn put_in_front(program: &Action) -> Result<(), Errno> {
    if program.handler == libc::SIG_IGN {
        return program.install(SIGNAL);
    }
    TARGET.store(program.target(), Ordering::Relaxed);
    program.in_front().install(SIGNAL)
}

/// The process that [`install`] was called in has forked, and this is the child.
pub fn begin_in_child() {
    if is_installed() {
        OWNER.store(process::id(), Ordering::Relaxed);
    }
}

/// Whether [`install`] was called.
pub fn is_installed() -> bool {
    OWNER.load(Ordering::Relaxed) != 0
}

/// sigaction(2) for SIGSEGV, as the program sees it.
///
/// # Errors
/// The error of rt_sigaction(2).
///
/// # Safety
/// As sigaction(2).
pub unsafe fn change(new: *const libc::sigaction, old: *mut libc::sigaction) -> Result<(), Errno> {
    // Read here, where a bad pointer does no harm.
    // SAFETY: by contract.
    let new = unsafe { new.as_ref() }.map(Action::from_libc);
    let before = without_signals(|| {
        if OWNER.load(Ordering::Relaxed) != process::id() {
            // A `vfork` child: its actions are its own, the memory is its parent's.
            let before = Action::current(SIGNAL)?.seen_by_program();
            return new
                .map_or(Ok(()), |new| with_restorer(new).install(SIGNAL))
                .map(|()| before);
        }
        let _changing = CHANGING.lock();
        let before = Action::current(SIGNAL)?.seen_by_program();
        new.map_or(Ok(()), |new| put_in_front(&new))
            .map(|()| before)
    })?;
    if !old.is_null() {
        // SAFETY: by contract.
        unsafe { old.write(before.to_libc()) };
    }
    Ok(())
}

fn with_restorer(action: Action) -> Action {
    let (flag, restorer) = own_restorer();
    Action {
        flags: action.flags | flag,
        restorer,
        ..action
    }
}

unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let watcher = WATCHER.load(Ordering::Relaxed);
    if (code == SEGV_MAPERR || code == SEGV_ACCERR) && watcher != 0 {
        // SAFETY: `install` stored a function of this type.
        let watcher = unsafe { transmute::<usize, Watcher>(watcher) };
        // SAFETY: the kernel passes the context of the fault.
        let (instruction, is_write) = unsafe { what_happened(context) };
        watcher(&Fault {
            address,
            is_write,
            instruction,
        });
    }
    let target = TARGET.load(Ordering::Relaxed);
    match target & ADDRESS {
        // SAFETY: as above.
        libc::SIG_DFL => unsafe { die(info) },
        // The program ignores it since a moment ago. The kernel ends a thread whose fault is ignored.
        libc::SIG_IGN if code > 0 => {
            restore_default();
        }
        libc::SIG_IGN => {}
        handler => {
            if target & RESETS != 0 {
                let none = target & !ADDRESS;
                let _ = TARGET.compare_exchange(target, none, Ordering::Relaxed, Ordering::Relaxed);
            }
            // SAFETY: the program's handler. One that takes only the number does not look at the rest.
            unsafe {
                let handler = transmute::<
                    usize,
                    unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void),
                >(handler);
                handler(signal, info, context);
            }
        }
    }
}

/// `si_code` of an address without a mapping.
const SEGV_MAPERR: c_int = 1;
/// `si_code` of an address without access.
const SEGV_ACCERR: c_int = 2;

/// Does what the kernel does without a handler, after this handler has returned: the fault happens again, or the
/// signal, which another thread or process has sent, comes again.
///
/// # Safety
/// `info` is the kernel's.
unsafe fn die(info: *mut libc::siginfo_t) {
    restore_default();
    // SAFETY: by contract.
    if unsafe { (*info).si_code } > 0 {
        return;
    }
    // SAFETY: numbers, and the kernel's own record.
    unsafe {
        let (process, thread) = (process::id(), process::thread_id());
        let _ = syscall!(Sysno::rt_tgsigqueueinfo, process, thread, SIGNAL, info)
            .or_else(|_| syscall!(Sysno::tgkill, process, thread, SIGNAL));
    }
}

/// Installs the default action. If a filter refuses that, a fault would happen for ever: the process ends.
fn restore_default() {
    if Action::DEFAULT.install(SIGNAL).is_err() {
        process::exit_at_once(128 + SIGNAL);
    }
}

/// The flag and the function by which a handler returns to the kernel. aarch64 has it in the vDSO.
fn own_restorer() -> (usize, usize) {
    #[cfg(target_arch = "x86_64")]
    return (RESTORER, restore as *const () as usize);
    #[cfg(not(target_arch = "x86_64"))]
    (0, 0)
}

/// Returns from a signal. Unwinders and debuggers know a signal frame by these bytes, so there is nothing else here.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn restore() {
    core::arch::naked_asm!("mov rax, 15", "syscall")
}

/// The instruction, and whether it wrote.
///
/// # Safety
/// `context` is that of a SIGSEGV handler.
#[cfg(target_arch = "x86_64")]
unsafe fn what_happened(context: *mut c_void) -> (usize, Option<bool>) {
    /// In the error code of a page fault.
    const WRITE: i64 = 2;
    // SAFETY: by contract.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let is_write = registers[libc::REG_ERR as usize] & WRITE != 0;
    (registers[libc::REG_RIP as usize] as usize, Some(is_write))
}

/// The same. The kernel passes the syndrome in a record behind the registers.
#[cfg(target_arch = "aarch64")]
unsafe fn what_happened(context: *mut c_void) -> (usize, Option<bool>) {
    const SYNDROME: u32 = 0x4553_5201;
    const WRITE: u64 = 1 << 6;
    /// Of the kernel's `struct sigcontext`: the program counter, and where the records begin.
    const PC_AT: usize = 264;
    const RECORDS_AT: usize = 288;
    const RECORDS_BYTES: usize = 4096;
    // SAFETY: by contract; each record begins with its kind and its size, and the last one has the kind 0.
    unsafe {
        let registers = (&raw const (*context.cast::<libc::ucontext_t>()).uc_mcontext).cast::<u8>();
        let instruction = registers.add(PC_AT).cast::<usize>().read();
        let mut at = 0;
        while at < RECORDS_BYTES {
            let record = registers.add(RECORDS_AT + at).cast::<u32>();
            let (kind, size) = (record.read(), record.add(1).read() as usize);
            if kind == SYNDROME {
                let syndrome = record.add(2).cast::<u64>().read();
                return (instruction, Some(syndrome & WRITE != 0));
            }
            if kind == 0 || size == 0 {
                break;
            }
            at += size;
        }
        (instruction, None)
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn what_happened(_context: *mut c_void) -> (usize, Option<bool>) {
    (0, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_action_is_kept_beside_ours() {
        for flags in [0, INFO, RESET, INFO | RESET | libc::SA_ONSTACK as usize] {
            let program = Action {
                handler: 0x7f00_0000_1235,
                flags,
                restorer: 0,
                mask: 6,
            };
            TARGET.store(program.target(), Ordering::Relaxed);
            let front = program.in_front();
            assert!(front.is_ours() && !program.is_ours());
            assert_eq!(front.flags & (RESET | INFO), INFO);
            let seen = Action::from_libc(&front.seen_by_program().to_libc());
            assert_eq!(
                (seen.handler, seen.flags & !RESTORER, seen.mask),
                (program.handler, program.flags, program.mask)
            );
        }
        TARGET.store(libc::SIG_DFL, Ordering::Relaxed);
    }
}
