//! The helper's life: it leaves everything of the program's but its memory, locks itself in, and waits.
//!
//! Two threads. The first waits for the program's end (its pidfd). The second, the *watcher*, waits for the word
//! that the kernel clears when the main thread leaves the memory, which it does by an end or by an exec: after an
//! exec there is nothing to wait for, and the helper lets the old memory go by its own end. The kernel wakes one
//! waiter of that word only, so the watcher passes it on, or a `pthread_join` of the main thread would hang.

use crate::admission::Admission;
use crate::arena::Arena;
use crate::memory_shortage::MemoryShortage;
use crate::teardown::{self, SMALL_BYTES, Survey};
use core::sync::atomic::Ordering;
use ebbtide_sys::file::{Digits, PathText};
use ebbtide_sys::helper::{self, Descriptor, Waited};
use ebbtide_sys::thread::Affinity;

/// A wait for the word is looked at anew after this, should the kernel's wake-up have gone elsewhere.
const LOOK_MS: u64 = 10_000;
/// The same once the main thread has left and others go on: at first, for how long that is, and later.
const LEFT_MS: u64 = 100;
const LEFT_SOON_MS: u64 = 2000;
const LEFT_LATER_MS: u64 = 1000;
/// How long the main thread may be seen between its last look at memory and its being without.
const BETWEEN_MS: [u64; 3] = [1, 1, 1];
/// How long threads of its own may take to go.
const JOIN_MS: u64 = 1000;
/// How long after the end a parent that does not look is waited for, as what follows would hold it up: at first
/// (it may wait for a CPU), before large files are unmapped, and before anything is zapped.
const FIRST_GRACE_US: u64 = 1000;
const LARGE_GRACE_US: u64 = 4000;
const GRACE_US: u64 = 16_000;
/// The kernel tells the helper in the middle of the parent's own call, on its CPU: so long it takes to return.
const RETURN_US: u64 = 100;

/// What the helper has open.
struct Files {
    /// The program.
    program: Descriptor,
    /// `/proc/self/maps`.
    maps: Descriptor,
    /// Whether memory is short.
    shortage: MemoryShortage,
    /// Which helpers of the user work.
    admission: Admission,
}

/// The first thread.
pub extern "C" fn main(arena: usize) {
    let arena = Arena::at(arena);
    let mut begun = begin(arena);
    if let Some((files, watcher)) = &mut begun {
        live(arena, files, watcher);
    }
    // With the watcher's data still in place.
    end(arena)
}

/// Ends the helper. Where nothing but a trap would, and the program lives, that is left to the program, which a trap could
/// end too.
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

/// Leaves the program and locks itself in. `None`: something was refused, and it must end.
fn begin(arena: Arena) -> Option<(Files, Watcher)> {
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
    let stat = Descriptor::open(stat.as_c_str()).ok()?;
    // The thread that made it may be bound to one CPU; the main one says what the program may use.
    Affinity::of(control.program).restore();
    let files = Files {
        program,
        maps: Descriptor::open(c"/proc/self/maps").ok()?,
        shortage: MemoryShortage::open(),
        admission: Admission::open(),
    };
    helper::lock_down().then_some((files, Watcher { arena, stat }))
}

/// Returns where it can do no more than end.
fn live(arena: Arena, files: &mut Files, watcher: &Watcher) -> Option<()> {
    let control = arena.control();
    // SAFETY: the watcher's seat is free; `watch` keeps to what a helper may do. The argument is on the stack of the
    // first thread, which ends the process without leaving that frame.
    unsafe {
        helper::spawn_thread(arena.seat(1), watch, core::ptr::from_ref(watcher) as usize).ok()?;
    }
    control.watching.set();
    if !files.program.wait_for_end() {
        return None;
    }
    let ended_ns = helper::now_ns();
    control.ended.set();
    let mut grace = Grace::default();
    grace.give(files, FIRST_GRACE_US);
    files.shortage.begin();
    join_watcher(arena)?;
    let left_ns = match control.left_ns.load(Ordering::Acquire) {
        // The watcher came late, or gave up as others seemed to go on.
        0 if helper::holds(control.word, 0) => ended_ns,
        left_ns => left_ns.min(ended_ns),
    };
    ebbtide_core::base::stats::set_left(left_ns);
    // INV-REAPER-1
    if !helper::is_alone() {
        return None;
    }
    let survey = Survey::make(arena, files.maps, main as *const () as usize);
    survey.unmap_files(SMALL_BYTES);
    teardown::end_requests(arena);
    if survey.has_large_files {
        grace.give_calmly(files, LARGE_GRACE_US);
        survey.unmap_files(usize::MAX);
    }
    grace.give_calmly(files, GRACE_US);
    survey.take_memory(files.admission, &mut files.shortage);
    None
}

/// The parent's time to hear of the end.
#[derive(Default)]
struct Grace {
    is_over: bool,
    given_us: u64,
}

impl Grace {
    /// Waits until it knows, or until it has had `us` in all.
    fn give(&mut self, files: &Files, us: u64) {
        if self.is_over {
            return;
        }
        self.is_over = files.program.wait_for_parent(us - self.given_us);
        self.given_us = us;
        if self.is_over {
            helper::pause(RETURN_US);
        }
    }

    /// The same if memory is not short.
    fn give_calmly(&mut self, files: &mut Files, us: u64) {
        if !self.is_over && !files.shortage.is_pressing() {
            self.give(files, us);
        }
    }
}

/// The watcher is needed no more, and would be a second thread.
fn join_watcher(arena: Arena) -> Option<()> {
    let control = arena.control();
    let began = helper::now_ms();
    while control.busy[1].load(Ordering::Acquire) != 0 || !helper::is_single() {
        helper::wake(control.word);
        control.ended.wake();
        helper::wait(control.busy[1].as_ptr() as usize, 1, 1);
        if helper::now_ms() - began > JOIN_MS {
            return None;
        }
    }
    Some(())
}

struct Watcher {
    arena: Arena,
    stat: Descriptor,
}

extern "C" fn watch(watcher: usize) {
    // Its wake-up would come in between while the main thread is leaving, and hold up the end.
    ebbtide_sys::thread::wake_gently();
    // SAFETY: the first thread's frame, which stays.
    let watcher = unsafe { &*(watcher as *const Watcher) };
    let control = watcher.arena.control();
    // The word holds the main thread's number until it leaves.
    while !control.ended.is_set() {
        let waited = helper::wait(control.word, control.program, LOOK_MS);
        if waited == Waited::Refused {
            break;
        }
        if helper::holds(control.word, 0) {
            control.left_ns.store(helper::now_ns(), Ordering::Release);
            break;
        }
        if waited == Waited::Woken {
            // Another word than it was taken for: it would not hold up the next wait either.
            control.ended.wait(LEFT_MS);
        }
    }
    helper::wake(control.word);
    let mut pauses = BETWEEN_MS.into_iter();
    let began = helper::now_ms();
    while !control.ended.is_set() {
        let memory = has_memory(&watcher.stat);
        let pause = match memory {
            Some(true) => pauses.next(),
            Some(false) if helper::now_ms() - began < LEFT_SOON_MS => Some(LEFT_MS),
            Some(false) => Some(LEFT_LATER_MS),
            // It has ended, and its parent knows.
            None => break,
        };
        // Memory for long, other than this: an exec. Or no way to wait.
        let waited = pause.map(|ms| control.ended.wait(ms));
        if waited.is_none_or(|waited| waited == Waited::Refused) {
            end(watcher.arena);
        }
        if memory == Some(false) && waited == Some(Waited::Late) {
            // Others go on.
            control.left_ns.store(0, Ordering::Release);
        }
    }
    helper::exit_thread()
}

/// Whether the program's main thread has memory, by the size in its `stat`, which anybody may read.
/// `None`: there is no such process any more.
fn has_memory(stat: &Descriptor) -> Option<bool> {
    const SIZE: usize = 23;
    let mut text = [0u8; 1024];
    let text = stat.read_start(&mut text)?;
    // The name, field 2, may hold anything; the rest is numbers.
    let name_end = text.iter().rposition(|&byte| byte == b')')?;
    let mut fields = text[name_end + 1..].split(|&byte| byte == b' ').skip(1);
    fields.nth(SIZE - 3).map(|size| size != b"0")
}
