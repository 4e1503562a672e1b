//! Exit beside the program: a helper process returns memory after the program's end.
//!
//! ```text
//!  program ──clone(CLONE_VM)──▶ helper: waits            the program ends: its parent knows at once
//!                               │                        (the memory is the helper's too, so it stays)
//!                               ├─ end ──▶ files unmapped ▶ admission ▶ anonymous memory zapped by threads ▶ exit
//!                               └─ exec ─▶ exit: the old memory goes with it
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`arena`] | the helper's own memory: its state, its stacks, its list of pieces |
//! | [`resources`] | the files that the helper has open, and how its threads find them |
//! | [`lifecycle`] | the helper's work from its beginning to the program's end |
//! | [`teardown`] | the order in which memory is released |
//! | [`teardown_threads`] | the threads that release it |
//! | [`maps`] | the list of mappings |
//! | [`admission`] | few helpers of a user at a time |
//! | [`memory_shortage`] | whether memory is short, so that it must be released at once |
//!
//! With `exit=detached` the helper is made once the process is larger than `exit_threshold`: on a slow path
//! ([`Hook::on_growth`]), with no lock held. If anything is refused, the process ends in the kernel's usual way.
//!
//! - `INV-REAPER-1`: the helper releases nothing while any other process uses the memory. After the program's end the
//!   kernel confirms that ([`ebbtide_sys::helper::is_alone`]).
//! - `INV-REAPER-2`: the helper touches only its arena, its own stacks and code that it keeps mapped. From libc it uses
//!   only the functions that the compiler calls (`memcpy` and similar ones), which it keeps mapped too. Before it unmaps
//!   anything it writes two words of the statistics.

#![no_std]
#![warn(missing_docs)]
// Maintainers read this documentation with its private items.
#![allow(rustdoc::private_intra_doc_links)]

mod admission;
mod arena;
mod lifecycle;
mod maps;
mod memory_shortage;
mod resources;
mod teardown;
mod teardown_threads;

use arena::Arena;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ebbtide_core::base::{owner, stats};
use ebbtide_core::reclaim::Heap;
use ebbtide_core::reclaim::sources::Hook;
use ebbtide_sys::features::REAPER;
use ebbtide_sys::file::{self, Digits, PathText};
use ebbtide_sys::{clock, helper, process, thread};

/// Interval between checks of the size of memory that is not Ebbtide's.
const SIZE_CHECK_MS: u64 = 1000;
/// After a refusal, or the helper's early end, no helper is made for this time.
const RETRY_MS: u64 = 10_000;
/// A new helper has the program's descriptors until it runs. The program waits for it at most this long.
const APART_MS: u64 = 100;
/// Most helpers from before an exec that are collected at a time.
const EARLIER: usize = 8;

/// The exit helper of a large process, as the process sees it.
pub struct ExitHelper {
    /// The address of the helper's memory, kept for the next helper. 0: none yet.
    arena: AtomicUsize,
    /// The helper's process id; 0: there is none.
    helper: AtomicU32,
    /// The address of the word that the kernel clears when the main thread has left this memory.
    main_word: AtomicUsize,
    /// Whether a thread is in [`Hook::on_growth`].
    is_looking: AtomicBool,
    /// No helper is made before this time.
    retry_at: AtomicU64,
    /// The last check of the size of memory that is not Ebbtide's.
    checked_ms: AtomicU64,
}

/// The state of this process.
pub static EXIT: ExitHelper = ExitHelper {
    arena: AtomicUsize::new(0),
    helper: AtomicU32::new(0),
    main_word: AtomicUsize::new(0),
    is_looking: AtomicBool::new(false),
    retry_at: AtomicU64::new(0),
    checked_ms: AtomicU64::new(0),
};

impl Hook for ExitHelper {
    fn on_start(&self, heap: &Heap) {
        if heap.config.exit_detached {
            self.note_main_thread();
        }
    }

    /// The child makes a helper of its own when it is large.
    fn on_fork_child(&self, heap: &Heap) {
        self.arena.store(0, Ordering::Relaxed);
        self.helper.store(0, Ordering::Relaxed);
        self.is_looking.store(false, Ordering::Relaxed);
        self.main_word.store(0, Ordering::Relaxed);
        self.retry_at.store(0, Ordering::Relaxed);
        self.on_start(heap);
    }

    fn on_growth(&self, heap: &Heap) {
        if !heap.config.exit_detached
            || clock::now_ms() < self.retry_at.load(Ordering::Relaxed)
            || ebbtide_core::front::fork::is_forking()
            || !owner::is_own()
        {
            return;
        }
        self.note_main_thread();
        if self.is_looking.swap(true, Ordering::Acquire) {
            return;
        }
        if self.helper.load(Ordering::Relaxed) != 0 {
            self.check();
        } else if self.is_large(heap) {
            self.make(heap);
        }
        self.is_looking.store(false, Ordering::Release);
    }

    /// The last chance to make a helper for a process whose memory is not Ebbtide's.
    fn on_exit(&self, heap: &Heap) {
        if self.helper.load(Ordering::Relaxed) == 0 {
            self.checked_ms.store(0, Ordering::Relaxed);
        } else {
            self.retry_at.store(0, Ordering::Relaxed);
        }
        self.on_growth(heap);
        self.note_fallback(heap);
    }
}

impl ExitHelper {
    fn note_main_thread(&self) {
        if self.main_word.load(Ordering::Relaxed) == 0
            && process::thread_id() == owner::id()
            && let Some(word) = helper::leaving_word()
            // musl names a lock of its own, which is 0 while the thread is here. Then there is no helper.
            && !helper::holds(word, 0)
        {
            self.main_word.store(word, Ordering::Relaxed);
        }
    }

    fn is_large(&self, heap: &Heap) -> bool {
        let threshold = heap.config.exit_threshold;
        let zones = heap.live_zones().iter();
        let opened: u64 = zones.map(|zone| zone.counters().open).sum();
        if opened as usize * ebbtide_zone::FRAME_BYTES >= threshold {
            return true;
        }
        // Memory that is not Ebbtide's: checked rarely, and with a descriptor only if the process may be large.
        let now = clock::now_ms();
        if now.wrapping_sub(self.checked_ms.load(Ordering::Relaxed)) < SIZE_CHECK_MS {
            return false;
        }
        self.checked_ms.store(now, Ordering::Relaxed);
        process::peak_resident() >= threshold
            && process::resident_quickly().is_some_and(|now| now >= threshold)
    }

    /// Notes that this end is not detached, if it should be.
    fn note_fallback(&self, heap: &Heap) {
        if !heap.config.exit_detached || !owner::is_own() {
            return;
        }
        let is_served = self.helper.load(Ordering::Relaxed) != 0 && {
            let arena = Arena::at(self.arena.load(Ordering::Relaxed));
            !arena.control().stuck.is_set()
        };
        self.checked_ms.store(0, Ordering::Relaxed);
        if !is_served && self.is_large(heap) {
            stats::note_exit(false);
        }
    }

    fn retry_in(&self, ms: u64) {
        let at = clock::now_ms().saturating_add(ms);
        self.retry_at.store(at, Ordering::Relaxed);
    }

    /// Checks whether the helper is at work. It may have ended early: another process killed it, or it could not
    /// work.
    fn check(&self) {
        let control = Arena::at(self.arena.load(Ordering::Relaxed)).control();
        let (helper, is_stuck) = (self.helper.load(Ordering::Relaxed), control.stuck.is_set());
        // Whether its first thread runs.
        if control.busy[0].load(Ordering::Acquire) != 0 {
            if is_stuck && !helper::kill(helper) {
                control.may_trap.set();
            }
            // The next check comes only after `RETRY_MS`.
            if control.watching.is_set() {
                REAPER.note_success();
                self.retry_in(RETRY_MS);
            }
        } else if helper::collect(helper) {
            self.helper.store(0, Ordering::Relaxed);
            stats::set_helper(0);
            if !control.watching.is_set() {
                REAPER.refuse();
            }
            // The next helper would be stuck, too.
            self.retry_in(if is_stuck { u64::MAX } else { RETRY_MS });
        }
    }

    fn make(&self, heap: &Heap) {
        let word = self.main_word.load(Ordering::Relaxed);
        let program = owner::id();
        // No helper is made in these cases. The first process of a container ends all others with it, and so would
        // end the helper. If a program has asked for its next child to be the first process, its helper would be
        // one. With the `/proc` of another process namespace no exec would be noticed. A thread that gives way more
        // than the main thread would pass its priority on, which cannot be raised again; another thread will make
        // the helper.
        if word == 0
            || program == 1
            || !process::has_plain_children()
            || !process::proc_is_own()
            || thread::gives_way_more_than(program)
        {
            return;
        }
        self.retry_in(RETRY_MS);
        // An exec ends the helper, but no wait that the new program makes collects it. A helper is not found if it
        // is behind another child of that kind that has ended and was not waited for.
        let collect = |id| is_helper(id) && helper::collect(id);
        (0..EARLIER).all(|_| process::ended_clone().is_some_and(collect));
        let Some(arena) = self.arena() else { return };
        // SAFETY: no helper runs on it: none was made, or it has been collected.
        unsafe { arena.prepare(program, word, &heap.config) };
        // SAFETY: the main seat is free, and the arena stays mapped; `lifecycle::main` keeps to what a helper may do.
        match unsafe { helper::spawn_process(arena.seat(0), lifecycle::main, arena.address()) } {
            Ok(id) => {
                self.helper.store(id, Ordering::Relaxed);
                stats::set_helper(id);
                // Otherwise, if the program ended now, its ports and pipes would stay open for a while.
                arena.control().apart.wait_at_most(APART_MS);
                // The next check sees whether the helper came to work.
                self.retry_in(100);
            }
            Err(_) => REAPER.refuse(),
        }
    }

    /// The arena of the previous helper, or a new one.
    fn arena(&self) -> Option<Arena> {
        if self.arena.load(Ordering::Relaxed) == 0 {
            self.arena.store(Arena::map()?.address(), Ordering::Relaxed);
        }
        Some(Arena::at(self.arena.load(Ordering::Relaxed)))
    }
}

/// Recognises a helper by its name, which stays after its end.
fn is_helper(id: u32) -> bool {
    let path = PathText::join(&[b"/proc/", &Digits::of(id as usize), b"/comm"]);
    let mut name = [0; 16];
    path.is_some_and(|path| file::read(path.as_c_str(), &mut name) == Ok(b"ebbtide/exit\n"))
}
