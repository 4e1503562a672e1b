//! A registration of our own, for C libraries that make none: glibc before 2.35 or with `glibc.pthread.rseq=0`, musl.
//!
//! Each thread has an area in initial-exec thread-local storage, at one distance from the thread pointer. The fast
//! path reads it like the C library's area. A thread registers on its first slow path ([`join`]), once:
//!
//! ```text
//!             join                      leave                     rejoin
//!  UNTRIED ─────────▶ JOINED, cpu_id 3 ───────▶ JOINED, cpu_id −1 ───────▶ JOINED, cpu_id 3
//!     │  └── refused, or the thread ends (musl) ──▶ NEVER                  (vfork.rs)
//!     └───── vfork begins ──▶ BARRED ── vfork is over ──▶ UNTRIED
//! ```
//!
//! | state | `cpu_id` | set by |
//! |---|---|---|
//! | [`UNTRIED`] | −1 | the C library: it copies the area's initial image into each new thread |
//! | [`JOINED`] | the kernel's; −1 while a `vfork` child runs | [`join`] |
//! | [`NEVER`] | −1 | [`join`] after a refusal, the end of a thread, and the maker of a worker |
//! | [`BARRED`] | −1 | [`bar`], around a `vfork` of a thread that has not joined |
//!
//! - `INV-OWN-1`: a thread registers only if it is the thread that the C library made for this thread block. A child
//!   of `vfork` or `clone(CLONE_VM)` has its parent's block and another thread id, so it never registers. Otherwise
//!   the parent would read the child's CPU number, without a registration.
//! - `INV-OWN-2`: from [`UNTRIED`] on, a thread registers at most once. A signal handler may interrupt [`join`] and
//!   do all of it. The kernel then answers the interrupted call with `EBUSY`, and the area has a CPU number.
//! - `INV-OWN-3`: the area stays mapped while its thread is registered. glibc reuses or unmaps a stack, and the
//!   thread-local storage in it, only after the kernel has cleared the thread's id, so after its last return to the
//!   program. musl's detached threads unmap their own stack: they unregister in a key's destructor, and a thread
//!   that has begun to end does not register any more ([`watch_end`]).
//!
//! A forked child keeps the registration, which the kernel copies with the memory. An exec drops it.

use super::section::{self, SIGNATURE, thread_pointer};
use super::{SECTIONS, vfork::FLAG_UNREGISTER};
use crate::call::{Errno, Sysno, syscall};
use crate::features::REGISTER;
use crate::{libc_symbols, process};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The length of the first version of `struct rseq`. Linux from 7.0.10 on checks the fields of longer areas.
const LENGTH: u32 = 32;

const UNTRIED: u32 = 0;
const JOINED: u32 = 1;
const NEVER: u32 = 2;
const BARRED: u32 = 3;

/// What each thread has at [`offset`].
#[repr(C, align(32))]
struct Own {
    /// `struct rseq`: all fields but `section` are the kernel's to write.
    cpu_id_start: u32,
    cpu_id: u32,
    section: u64,
    rest: [u32; 4],
    /// See the module's header. A handler or a `vfork` child may change it between two instructions.
    state: AtomicU32,
    unused: [u32; 7],
}

/// Bytes of [`Own`].
pub(crate) const BYTES: usize = 64;

const _: () = assert!(size_of::<Own>() == BYTES && core::mem::offset_of!(Own, state) == 32);

/// No thread registers from now on.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// The only thread that may register where the C library cannot say whose a thread block is; 0: none.
static HOME: AtomicU32 = AtomicU32::new(0);

/// The key whose destructor unregisters a thread, plus 1; 0: none.
static KEY: AtomicU32 = AtomicU32::new(0);

/// The distance of the area from the thread pointer, the same in each thread. 0: this build has no sections.
pub(crate) fn offset() -> isize {
    // SAFETY: it has no precondition.
    unsafe { section::own_area() }
}

fn own() -> *mut Own {
    thread_pointer().wrapping_add_signed(offset()) as *mut Own
}

fn state() -> &'static AtomicU32 {
    // SAFETY: the thread's own storage, which lives as long as the thread; no reference leaves this file.
    unsafe { &(*own()).state }
}

/// Why a thread did not register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// Another owner has registered this thread.
    Other,
    /// The kernel or a filter refused, or it is not tried any more.
    Refused,
    /// This thread is not the one for which the C library made its block.
    Stranger,
}

fn call(flags: u32) -> Result<(), Errno> {
    // SAFETY: this thread's own area, which stays mapped (`INV-OWN-3`).
    unsafe { syscall!(Sysno::rseq, own(), LENGTH, flags, SIGNATURE) }.map(drop)
}

/// Registers this thread, if it is its first attempt (`INV-OWN-1`, `INV-OWN-2`).
pub(super) fn join() -> Result<(), Refusal> {
    let state = state();
    if is_joined() {
        return Ok(());
    }
    if STOPPED.load(Ordering::Relaxed) || !REGISTER.may_work() {
        return Err(Refusal::Refused);
    }
    if state.load(Ordering::Relaxed) != UNTRIED || !is_libc_thread() {
        return Err(Refusal::Stranger);
    }
    if !watch_end() {
        return Err(Refusal::Stranger);
    }
    // SAFETY: the section is the field that programs write. This thread may have left one there.
    unsafe { (&raw mut (*own()).section).write_volatile(0) };
    let answer = call(0);
    if answer.is_ok() || is_joined() {
        state.store(JOINED, Ordering::Relaxed);
        REGISTER.note_success();
        return Ok(());
    }
    state.store(NEVER, Ordering::Relaxed);
    match answer {
        Err(Errno::EBUSY | Errno::EINVAL) => Err(Refusal::Other),
        _ => {
            REGISTER.refuse();
            Err(Refusal::Refused)
        }
    }
}

/// Whether the kernel accepts a registration of this thread, which may not be the block's. No section runs in this
/// process yet.
pub(super) fn try_out() -> Result<(), Refusal> {
    if STOPPED.load(Ordering::Relaxed) || !REGISTER.may_work() {
        return Err(Refusal::Refused);
    }
    match call(0).and_then(|()| call(FLAG_UNREGISTER)) {
        Ok(()) => Ok(()),
        Err(Errno::EBUSY | Errno::EINVAL) => Err(Refusal::Other),
        Err(_) => {
            REGISTER.refuse();
            Err(Refusal::Refused)
        }
    }
}

fn is_joined() -> bool {
    // SAFETY: the area is at this distance.
    unsafe { section::cpu_id(offset()) >= 0 }
}

/// The slow path of a thread without a CPU number: registers it if that is this library's task. `rseq_offset` is that
/// of the sections in use.
#[cold]
pub(super) fn join_for(rseq_offset: isize) {
    if SECTIONS && rseq_offset == offset() {
        let _ = join();
    }
}

/// Stops all registrations: the program confines itself, or another owner is loaded. Threads that are registered
/// remain so.
pub fn stop() {
    STOPPED.store(true, Ordering::Relaxed);
}

/// Whether a registration could be taken off and put on again: not once the program has confined itself.
pub(super) fn may_call() -> bool {
    !STOPPED.load(Ordering::Relaxed)
}

/// Takes the registration of this thread off for good, and stops all others: another owner was found before `main`.
pub fn yield_to_other() {
    stop();
    if SECTIONS && state().swap(NEVER, Ordering::Relaxed) == JOINED {
        let _ = call(FLAG_UNREGISTER);
    }
}

/// Keeps this thread from registering while a `vfork` child runs on its block. `true`: [`unbar`] must follow.
pub(super) fn bar() -> bool {
    let state = state();
    let is_untried = state.load(Ordering::Relaxed) == UNTRIED;
    if is_untried {
        state.store(BARRED, Ordering::Relaxed);
    }
    is_untried
}

/// Undoes [`bar`].
pub(super) fn unbar() {
    state().store(UNTRIED, Ordering::Relaxed);
}

/// Writes an area into a thread block of a worker: such a thread never registers.
///
/// # Safety
/// The block's memory reaches [`BYTES`] beyond [`offset`], and no thread uses it yet.
pub(crate) unsafe fn mark_block(block: usize) {
    let place = block.wrapping_add_signed(offset()) as *mut Own;
    // SAFETY: by contract.
    unsafe {
        (&raw mut (*place).cpu_id).write(-1i32 as u32);
        (&raw mut (*place).state).cast::<u32>().write(NEVER);
    }
}

/// Remembers this thread as the process's first one. For a call before `main`, and in a forked child.
pub fn note_first_thread() {
    if libc_symbols::thread_clock().is_none() {
        HOME.store(process::thread_id(), Ordering::Relaxed);
    }
}

/// Whether the C library made this thread's block for it (`INV-OWN-1`): the thread id that the C library keeps in the
/// block is the kernel's. A thread's CPU clock is that number in another form, so no version-dependent offset is
/// needed. glibc before 2.34 has the function in libpthread. A process without libpthread has one thread.
fn is_libc_thread() -> bool {
    let thread = process::thread_id();
    let Some(thread_clock) = libc_symbols::thread_clock() else {
        return thread == HOME.load(Ordering::Relaxed);
    };
    let mut clock: libc::clockid_t = 0;
    // SAFETY: this thread's own handle; the place can be written to.
    let is_known = unsafe { thread_clock(libc::pthread_self(), &raw mut clock) } == 0;
    is_known && !(clock >> 3) as u32 == thread
}

/// Whether this thread may be a `vfork` child in the memory of its parent: libc knows the thread under another number.
/// So does the child of a raw `fork` call, which has memory of its own: the kernel tells them apart. `false` where the C library cannot say: then the process
/// has one thread.
pub fn may_be_vfork_child() -> bool {
    let can_say = libc_symbols::thread_clock().is_some() || HOME.load(Ordering::Relaxed) != 0;
    can_say && !is_libc_thread() && process::is_in_parents_memory()
}

/// Makes sure that this thread unregisters before it unmaps its own stack (`INV-OWN-3`). `false`: that cannot be
/// promised.
///
/// Not needed in glibc. Other C libraries are taken for musl: a thread that ends there first disables its
/// cancellation, then runs the destructors of keys. The thread unregisters in the first round of destructors, as
/// later rounds are run on demand only.
fn watch_end() -> bool {
    if libc_symbols::is_glibc() {
        return true;
    }
    let (Some(functions), key @ 1..) = (libc_symbols::ends(), KEY.load(Ordering::Acquire)) else {
        return false;
    };
    let mut before: c_int = libc_symbols::CANCEL_DISABLE;
    // SAFETY: the places can be written to; the key exists; the value is not null.
    unsafe {
        (functions.set_cancel_state)(libc_symbols::CANCEL_DISABLE, &raw mut before);
        (functions.set_cancel_state)(before, core::ptr::null_mut());
        before != libc_symbols::CANCEL_DISABLE
            && (functions.set_specific)(key - 1, own().cast()) == 0
    }
}

/// Makes the key of [`watch_end`], where it is needed. `false`: there is none. Called before any thread registers.
pub(super) fn prepare_ends() -> bool {
    extern "C" fn thread_ends(_: *mut c_void) {
        if state().swap(NEVER, Ordering::Relaxed) == JOINED {
            let _ = call(FLAG_UNREGISTER);
        }
    }
    if libc_symbols::is_glibc() || KEY.load(Ordering::Relaxed) != 0 {
        return true;
    }
    let Some(functions) = libc_symbols::ends() else {
        return false;
    };
    let mut key = 0;
    // SAFETY: the place can be written to; the function lives as long as the process.
    let is_made = unsafe { (functions.create_key)(&raw mut key, thread_ends) } == 0;
    if is_made {
        KEY.store(key + 1, Ordering::Release);
    }
    is_made
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::super::{Registration, registration_by_libc, vfork};
    use super::*;

    /// In a thread without a registration: the C library's is taken off.
    fn in_a_bare_thread(test: impl Fn() + Send + Sync) {
        assert!(prepare_ends());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let by_libc = match registration_by_libc() {
                    Some(Registration::At(offset)) => {
                        // SAFETY: libc's own area.
                        Some((offset, unsafe { vfork::leave(offset) }))
                    }
                    Some(Registration::None(why)) => return std::eprintln!("skipped: {why}"),
                    None => None,
                };
                test();
                let _ = call(FLAG_UNREGISTER);
                if let Some((offset, ticket)) = by_libc {
                    // SAFETY: the ticket is this thread's.
                    unsafe { vfork::rejoin(ticket, offset) };
                }
            });
        });
    }

    #[test]
    fn a_thread_registers_once() {
        in_a_bare_thread(|| {
            assert!(!is_joined());
            assert_eq!((join(), join()), (Ok(()), Ok(())));
            assert!(is_joined());
            // As a signal handler sees it between the two halves of a vfork.
            call(FLAG_UNREGISTER).unwrap();
            assert!(!is_joined());
            assert_eq!(join(), Err(Refusal::Stranger));
            assert!(!is_joined());
        });
    }

    /// A handler that interrupts `join` right before its call has done all of it.
    #[test]
    fn a_second_call_finds_the_first() {
        in_a_bare_thread(|| {
            call(0).unwrap();
            assert_eq!(call(0), Err(Errno::EBUSY));
            assert_eq!(state().load(Ordering::Relaxed), UNTRIED);
            assert_eq!(join(), Ok(()));
        });
    }

    #[test]
    fn another_owner_keeps_its_registration() {
        #[repr(align(32))]
        struct Area {
            _words: [u32; 8],
        }
        in_a_bare_thread(|| {
            let mut area = Area { _words: [0; 8] };
            let place = &raw mut area;
            // SAFETY: the area lives until it is unregistered.
            let call_other = |flags: u32| unsafe {
                syscall!(Sysno::rseq, place, LENGTH, flags, 0x1234_5678).map(drop)
            };
            call_other(0).unwrap();
            assert_eq!(join(), Err(Refusal::Other));
            assert!(!is_joined());
            call_other(FLAG_UNREGISTER).unwrap();
            assert_eq!(join(), Err(Refusal::Stranger), "once is enough");
        });
    }

    #[test]
    fn no_handler_registers_the_thread_before_a_child_runs() {
        in_a_bare_thread(|| {
            // SAFETY: this thread's own area and ticket.
            unsafe {
                let ticket = vfork::leave(offset());
                assert_ne!(ticket, 0);
                assert_eq!(join(), Err(Refusal::Stranger));
                vfork::rejoin(ticket, offset());
            }
            assert_eq!(join(), Ok(()));
        });
    }

    /// A child that runs on its parent's thread block, before the parent has registered.
    #[test]
    fn a_child_in_the_same_memory_stays_unregistered() {
        static SEEN: AtomicU32 = AtomicU32::new(7);
        extern "C" fn child(_: *mut c_void) -> c_int {
            SEEN.store((join() == Err(Refusal::Stranger)).into(), Ordering::Relaxed);
            0
        }
        in_a_bare_thread(|| {
            let mut stack = std::vec![0u128; 4096];
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            // SAFETY: the stack is the child's until it ends; this thread waits for that.
            unsafe {
                let top = stack.as_mut_ptr_range().end.cast();
                let pid = libc::clone(child, top, flags, core::ptr::null_mut());
                assert!(pid > 0);
                let mut status = 0;
                assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
                assert_eq!(status, 0);
            }
            assert_eq!(SEEN.load(Ordering::Relaxed), 1);
            assert_eq!(join(), Ok(()));
        });
    }

    #[test]
    fn a_worker_never_registers() {
        let mut block = std::vec![0u8; 4096 + BYTES];
        let start = (block.as_mut_ptr() as usize).next_multiple_of(32);
        let place = start as *const Own;
        // SAFETY: the area lies in the vector.
        unsafe {
            mark_block(start.wrapping_add_signed(-offset()));
            assert_eq!((*place).cpu_id as i32, -1);
            assert_eq!((*place).state.load(Ordering::Relaxed), NEVER);
        }
    }
}
