//! The helper's life: it leaves everything of the program's but its memory, restricts itself, and waits.
//!
//! The helper has two threads. The first waits for the program's end (its pidfd). The second, the *watcher*, waits for a
//! word that the kernel clears when the main thread leaves the memory, by an end or by an exec. After an exec there is
//! nothing to wait for: the helper ends, and the old memory is released with it.
//!
//! The kernel wakes only one waiter of that word. So the watcher wakes the next one; otherwise a `pthread_join` of the
//! main thread would hang.

use crate::admission::Admission;
use crate::arena::{Arena, WATCHER};
use crate::memory_shortage::MemoryShortage;
use crate::resources::Resources;
use crate::teardown::{SMALL_BYTES, Survey};
use core::sync::atomic::Ordering;
use ebbtide_core::base::stats;
use ebbtide_sys::file::{Digits, PathText};
use ebbtide_sys::helper::{self, Descriptor, Waited};
use ebbtide_sys::pressure::Kept;
use ebbtide_sys::thread::Affinity;

/// A wait for the word checks it again after this time, in case another waiter got the kernel's wake-up.
const END_CHECK_MS: u64 = 10_000;
/// Check intervals once the main thread has left and other threads go on: `LEFT_MS` at first, for `LEFT_SOON_MS`,
/// and `LEFT_LATER_MS` afterwards.
const LEFT_MS: u64 = 100;
const LEFT_SOON_MS: u64 = 2000;
const LEFT_LATER_MS: u64 = 1000;
/// Pauses during which the main thread may still have memory, between its last use of it and its leaving.
const BETWEEN_MS: [u64; 3] = [1, 1, 1];
/// Longest time for the watcher to end.
const JOIN_MS: u64 = 1000;
/// How long after the end the helper waits for a parent that has not noticed it, because the helper's next steps
/// would delay the parent. The times are for the beginning (the parent may wait for a CPU), before large files are
/// unmapped, and before memory is zapped.
const FIRST_GRACE_US: u64 = 1000;
const LARGE_GRACE_US: u64 = 4000;
const GRACE_US: u64 = 16_000;
/// The kernel wakes the helper in the middle of the parent's own call, on its CPU: the call takes this long to
/// return.
const RETURN_US: u64 = 100;

/// The helper's first thread.
pub extern "C" fn main(arena: usize) {
    let arena = Arena::at(arena);
    let resources = begin(arena);
    if let Some(resources) = &resources {
        live(resources);
    }
    // The memory that the threads read is still in place.
    end(arena)
}

/// Ends the helper. If only a trap would end it while the program lives, the decision is left to the program: a
/// trap could end the program too.
fn end(arena: Arena) -> ! {
    helper::try_to_end();
    let control = arena.control();
    control.stuck.set();
    let has_ended = || control.ended.is_set() || helper::holds(control.word, 0);
    while !has_ended() && !control.may_trap.is_set() {
        if control.ended.wait(LEFT_MS) == Waited::Refused {
            helper::pause(LEFT_MS * 1000);
        }
    }
    helper::exit_process()
}

/// Leaves the program and restricts itself. `None`: a call was refused, and the helper must end.
fn begin(arena: Arena) -> Option<Resources> {
    let control = arena.control();
    let left = helper::leave_program();
    control.apart.tell();
    if !left {
        return None;
    }
    ebbtide_sys::thread::set_name(b"ebbtide/exit\0\0\0\0");
    let program = Descriptor::process(control.program).ok()?;
    if helper::parent() != control.program {
        return None;
    }
    let number = Digits::of(control.program as usize);
    let stat = PathText::join(&[b"/proc/", &number, b"/stat"])?;
    // The thread that made the helper may be bound to one CPU. The main thread shows which CPUs the program may
    // use.
    Affinity::of(control.program).restore();
    let resources = Resources {
        arena,
        program,
        stat: Descriptor::open(stat.as_c_str()).ok()?,
        maps: Descriptor::open(c"/proc/self/maps").ok()?,
        pressure: Kept::open(),
        admission: Admission::open(),
    };
    helper::lock_down().then_some(resources)
}

/// Does the helper's work. Returns when it can only end.
fn live(resources: &Resources) -> Option<()> {
    let control = resources.arena.control();
    // SAFETY: the watcher's seat is free, and `watch` keeps to what a helper may do. The first thread ends the
    // process without leaving the stack frame of `resources`.
    if unsafe { resources.spawn(WATCHER..WATCHER + 1, watch) } == 0 {
        return None;
    }
    control.watching.set();
    if !resources.program.wait_for_end() {
        return None;
    }
    let ended_ns = helper::now_ns();
    control.ended.set();
    let mut grace = Grace::default();
    grace.give(resources, FIRST_GRACE_US);
    let mut shortage = MemoryShortage::begin(&resources.pressure);
    if join_watcher(resources.arena).is_none() {
        stats::note_exit(false);
        return None;
    }
    let left_ns = match control.left_ns.load(Ordering::Acquire) {
        // The watcher was late, or gave up because other threads seemed to go on.
        0 if helper::holds(control.word, 0) => ended_ns,
        left_ns => left_ns.min(ended_ns),
    };
    stats::set_left(left_ns);
    // INV-REAPER-1
    let is_alone = helper::is_alone();
    stats::note_exit(is_alone);
    if !is_alone {
        return None;
    }
    let survey = Survey::make(resources, main as *const () as usize);
    survey.unmap_files(SMALL_BYTES);
    survey.end_requests();
    if survey.has_large_files {
        grace.give_calmly(resources, &mut shortage, LARGE_GRACE_US);
        survey.unmap_files(usize::MAX);
    }
    grace.give_calmly(resources, &mut shortage, GRACE_US);
    survey.take_memory(&mut shortage);
    None
}

/// The time that the parent gets to notice the end.
#[derive(Default)]
struct Grace {
    is_over: bool,
    given_us: u64,
}

impl Grace {
    /// Waits until the parent has noticed the end, or until it has had `us` in all.
    fn give(&mut self, resources: &Resources, us: u64) {
        self.is_over = resources.program.wait_for_parent(us - self.given_us);
        self.given_us = us;
        if self.is_over {
            helper::pause(RETURN_US);
        }
    }

    /// As [`Self::give`], if the parent has not noticed the end yet and memory is not short.
    fn give_calmly(&mut self, resources: &Resources, shortage: &mut MemoryShortage, us: u64) {
        if !self.is_over && !shortage.is_pressing() {
            self.give(resources, us);
        }
    }
}

/// Ends the watcher. It is no longer needed, and would be a second thread.
fn join_watcher(arena: Arena) -> Option<()> {
    let control = arena.control();
    let began = helper::now_ms();
    while control.busy[WATCHER].load(Ordering::Acquire) != 0 || !helper::is_single() {
        helper::wake(control.word);
        control.ended.wake();
        helper::wait(control.busy[WATCHER].as_ptr() as usize, 1, 1);
        if helper::now_ms() - began > JOIN_MS {
            return None;
        }
    }
    Some(())
}

extern "C" fn watch(argument: usize) {
    // An urgent wake-up of this thread would interrupt the main thread while it leaves, and delay the end.
    ebbtide_sys::thread::wake_gently();
    // SAFETY: the argument of a thread made by `spawn`.
    let (resources, _) = unsafe { Resources::of_thread(argument) };
    let control = resources.arena.control();
    // The word holds the main thread's number until it leaves.
    while !control.ended.is_set() {
        let waited = helper::wait(control.word, control.program, END_CHECK_MS);
        if waited == Waited::Refused {
            break;
        }
        if helper::holds(control.word, 0) {
            control.left_ns.store(helper::now_ns(), Ordering::Release);
            break;
        }
        if waited == Waited::Woken {
            // The word at this address is another one now: it would not hold up the next wait either.
            control.ended.wait(LEFT_MS);
        }
    }
    helper::wake(control.word);
    let mut pauses = BETWEEN_MS.into_iter();
    let began = helper::now_ms();
    while !control.ended.is_set() {
        let memory = has_memory(&resources.stat);
        let pause = match memory {
            Some(true) => pauses.next(),
            Some(false) if helper::now_ms() - began < LEFT_SOON_MS => Some(LEFT_MS),
            Some(false) => Some(LEFT_LATER_MS),
            // The program has ended, and its parent knows.
            None => break,
        };
        // If the main thread has memory for long, and not this one, there was an exec. Or waiting is not possible.
        let waited = pause.map(|ms| control.ended.wait(ms));
        if waited.is_none_or(|waited| waited == Waited::Refused) {
            end(resources.arena);
        }
        if memory == Some(false) && waited == Some(Waited::Late) {
            // Other threads go on.
            control.left_ns.store(0, Ordering::Release);
        }
    }
    helper::exit_thread()
}

/// Whether the program's main thread has memory, by the size in its `stat`, which any process may read. `None`:
/// there is no such process any more.
fn has_memory(stat: &Descriptor) -> Option<bool> {
    const SIZE: usize = 23;
    let mut text = [0u8; 1024];
    let text = stat.read_start(&mut text)?;
    // The name, field 2, may hold any bytes; the rest is numbers.
    let name_end = text.iter().rposition(|&byte| byte == b')')?;
    let mut fields = text[name_end + 1..].split(|&byte| byte == b' ').skip(1);
    fields.nth(SIZE - 3).map(|size| size != b"0")
}
