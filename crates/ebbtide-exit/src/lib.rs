//! Exit beside the program: a helper process takes memory back after the program's end.
//!
//! ```text
//!  program ──clone(CLONE_VM)──▶ helper: waits            the program ends: its parent knows at once
//!                               │                        (the memory is the helper's too, so it stays)
//!                               ├─ end ──▶ files unmapped ▶ admission ▶ anonymous memory zapped by threads ▶ exit
//!                               └─ exec ─▶ exit: the old memory goes with it
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`arena`] | the helper's own memory: what it knows, its stacks, its list of pieces |
//! | [`resources`] | what it has open, and how its threads find that |
//! | [`lifecycle`] | what it does from its beginning to the program's end |
//! | [`teardown`] | the order in which memory goes |
//! | [`teardown_threads`] | the threads that take it |
//! | [`maps`] | what is mapped |
//! | [`admission`] | few helpers of a user at a time |
//! | [`memory_shortage`] | whether memory is short, so that it must go at once |
//!
//! With `exit=detached` the helper is made once the process is larger than `exit_threshold`: from a slow path
//! ([`Hook::look`]), with no lock held. Whatever is refused, the process ends as the kernel ends it.
//!
//! - `INV-REAPER-1`: the helper takes nothing away while anybody else uses the memory. The kernel says so
//!   ([`ebbtide_sys::helper::is_alone`]) after the program's end.
//! - `INV-REAPER-2`: it touches only its arena, its own stacks and code that it keeps mapped; nothing of libc
//!   but the functions that the compiler calls (`memcpy` and its like), which it keeps mapped too. Before it
//!   unmaps anything it writes one word of the statistics.

#![no_std]
#![warn(missing_docs)]
// Read by those who change it.
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
use ebbtide_core::reclaim::Heap;
use ebbtide_core::reclaim::sources::Hook;
use ebbtide_sys::features::REAPER;
use ebbtide_sys::file::{self, Digits, PathText};
use ebbtide_sys::{clock, helper, process, thread};

/// Between two looks at the size of memory that is not ours.
const SIZE_CHECK_MS: u64 = 1000;
/// After a refusal, or the helper's early end, none is made during this.
const RETRY_MS: u64 = 10_000;
/// A new helper has the program's descriptors until it runs: so long it is waited for, at most.
const APART_MS: u64 = 100;
/// As many helpers from before an exec are collected at a time.
const EARLIER: usize = 8;

/// A process that is large has a helper.
pub struct ExitHelper {
    /// The helper's memory, kept for the next one. 0: none yet.
    arena: AtomicUsize,
    /// The helper's number; 0: there is none.
    helper: AtomicU32,
    /// The process that all this is true of: a `vfork` child is another one.
    process: AtomicU32,
    /// Where the kernel tells that the main thread has left this memory.
    main_word: AtomicUsize,
    /// Whether a thread is at [`Hook::look`].
    is_looking: AtomicBool,
    /// None is made before.
    retry_at: AtomicU64,
    /// The last look at the size of memory that is not ours.
    checked_ms: AtomicU64,
}

/// The one of this process.
pub static EXIT: ExitHelper = ExitHelper {
    arena: AtomicUsize::new(0),
    helper: AtomicU32::new(0),
    process: AtomicU32::new(0),
    main_word: AtomicUsize::new(0),
    is_looking: AtomicBool::new(false),
    retry_at: AtomicU64::new(0),
    checked_ms: AtomicU64::new(0),
};

impl Hook for ExitHelper {
    fn on_start(&self, heap: &Heap) {
        if heap.config.exit_detached {
            self.process.store(process::id(), Ordering::Relaxed);
            self.note_main_thread();
        }
    }

    /// The child makes its own when it is large.
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
            || self.process.load(Ordering::Relaxed) != process::id()
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

    /// The last moment for a process whose memory is not from here.
    fn on_exit(&self, heap: &Heap) {
        if self.helper.load(Ordering::Relaxed) == 0 {
            self.checked_ms.store(0, Ordering::Relaxed);
        } else {
            self.retry_at.store(0, Ordering::Relaxed);
        }
        self.on_growth(heap);
    }
}

impl ExitHelper {
    fn note_main_thread(&self) {
        if self.main_word.load(Ordering::Relaxed) == 0
            && process::thread_id() == self.process.load(Ordering::Relaxed)
            && let Some(word) = helper::leaving_word()
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
        // Memory that is not from here: seldom, and with a descriptor only if it may be so.
        let now = clock::now_ms();
        if now.wrapping_sub(self.checked_ms.load(Ordering::Relaxed)) < SIZE_CHECK_MS {
            return false;
        }
        self.checked_ms.store(now, Ordering::Relaxed);
        process::peak_resident() >= threshold
            && process::resident_quickly().is_some_and(|now| now >= threshold)
    }

    fn retry_in(&self, ms: u64) {
        let at = clock::now_ms().saturating_add(ms);
        self.retry_at.store(at, Ordering::Relaxed);
    }

    /// Looks whether the helper is at work, or gone before its time: somebody killed it, or it could not work.
    fn check(&self) {
        let control = Arena::at(self.arena.load(Ordering::Relaxed)).control();
        let (helper, is_stuck) = (self.helper.load(Ordering::Relaxed), control.stuck.is_set());
        // Whether its first thread runs.
        if control.busy[0].load(Ordering::Acquire) != 0 {
            if is_stuck && !helper::kill(helper) {
                control.may_trap.set();
            }
            // Not before the next time that it is worth a look.
            if control.watching.is_set() {
                REAPER.note_success();
                self.retry_in(RETRY_MS);
            }
        } else if helper::collect(helper) {
            self.helper.store(0, Ordering::Relaxed);
            ebbtide_core::base::stats::set_helper(0);
            if !control.watching.is_set() {
                REAPER.refuse();
            }
            // The next one would be stuck, too.
            self.retry_in(if is_stuck { u64::MAX } else { RETRY_MS });
        }
    }

    fn make(&self, heap: &Heap) {
        let word = self.main_word.load(Ordering::Relaxed);
        let program = self.process.load(Ordering::Relaxed);
        // The first process of a container takes everybody with it, and so would be the helper of a program that has
        // asked for its next child to be the first. By the `/proc` of others no exec would be noticed.
        // A thread that gives way would hand its priority on, from which there is no way back. Another thread comes.
        if word == 0
            || program == 1
            || !process::has_plain_children()
            || !process::proc_is_own()
            || thread::gives_way_more_than(program)
        {
            return;
        }
        self.retry_in(RETRY_MS);
        // An exec ends the helper, and no wait that the new program knows to make finds it. Behind another child of that
        // kind that has ended and is not waited for it is not seen.
        let collect = |id| is_helper(id) && helper::collect(id);
        (0..EARLIER).all(|_| process::ended_clone().is_some_and(collect));
        let Some(arena) = self.arena() else { return };
        // SAFETY: no helper runs on it: none was made, or it has been collected.
        unsafe { arena.prepare(program, word, &heap.config) };
        // SAFETY: the main seat is free, and the arena stays mapped; `lifecycle::main` keeps to what a helper may do.
        match unsafe { helper::spawn_process(arena.seat(0), lifecycle::main, arena.address()) } {
            Ok(id) => {
                self.helper.store(id, Ordering::Relaxed);
                ebbtide_core::base::stats::set_helper(id);
                // Or the program's end, if it comes now, would leave ports and pipes open for a while.
                arena.control().apart.wait_at_most(APART_MS);
                // Whether it came to work is seen at the next look.
                self.retry_in(100);
            }
            Err(_) => REAPER.refuse(),
        }
    }

    /// That of the helper before, or a new one.
    fn arena(&self) -> Option<Arena> {
        if self.arena.load(Ordering::Relaxed) == 0 {
            self.arena.store(Arena::map()?.address(), Ordering::Relaxed);
        }
        Some(Arena::at(self.arena.load(Ordering::Relaxed)))
    }
}

/// By its name, which the end leaves.
fn is_helper(id: u32) -> bool {
    let path = PathText::join(&[b"/proc/", &Digits::of(id as usize), b"/comm"]);
    let mut name = [0; 16];
    path.is_some_and(|path| file::read(path.as_c_str(), &mut name) == Ok(b"ebbtide/exit\n"))
}
