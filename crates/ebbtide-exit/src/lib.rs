//! Exit beside the program: a helper process takes memory back after the program's end.
//!
//! ```text
//!  program ──clone(CLONE_VM)──▶ helper: waits            the program ends: its parent knows at once
//!                               │                        (the memory is the helper's too, so it stays)
//!                               ├─ end ──▶ files unmapped ▶ turn ▶ anonymous memory zapped by threads ▶ exit
//!                               └─ exec ─▶ exit: the old memory goes with it
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`arena`] | the helper's own memory: what it knows, its stacks, its list of pieces |
//! | [`life`] | what it does from its beginning to the program's end |
//! | [`teardown`] | the order in which memory goes |
//! | [`crew`] | the threads that take it |
//! | [`maps`] | what is mapped |
//! | [`turns`] | few helpers of a user at a time |
//! | [`need`] | whether memory is short, so that it must go at once |
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

mod arena;
mod crew;
mod life;
mod maps;
mod need;
mod teardown;
mod turns;

use arena::Arena;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ebbtide_core::reclaim::Heap;
use ebbtide_core::reclaim::sources::Hook;
use ebbtide_sys::features::REAPER;
use ebbtide_sys::file::{self, Digits, PathText};
use ebbtide_sys::{clock, helper, process, thread, vm};

const _: () = assert!(arena::CALM == ebbtide_core::base::config::MAX_TEARDOWN_WORKERS);

/// Between two looks at the size of memory that is not ours.
const LOOK_MS: u64 = 1000;
/// After a refusal, or the helper's early end, none is made during this.
const RETRY_MS: u64 = 10_000;
/// A new helper has the program's descriptors until it runs: so long it is waited for, at most.
const APART_MS: u64 = 100;
/// As many helpers from before an exec are collected at a time.
const EARLIER: usize = 8;

/// The arena of this process's helper, kept for the next one. 0: none yet.
static ARENA: AtomicUsize = AtomicUsize::new(0);
/// The helper's number; 0: there is none.
static HELPER: AtomicU32 = AtomicU32::new(0);
/// The process that all this is true of: a `vfork` child is another one.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Where the kernel tells that the main thread has left this memory.
static MAIN_WORD: AtomicUsize = AtomicUsize::new(0);
static MAKING: AtomicBool = AtomicBool::new(false);
static RETRY_AT: AtomicU64 = AtomicU64::new(0);
static LOOKED_MS: AtomicU64 = AtomicU64::new(0);

/// A process that is large has a helper.
pub struct ExitHelper;

impl Hook for ExitHelper {
    fn started(&self, heap: &Heap) {
        if heap.config.exit_detached {
            PROCESS.store(process::id(), Ordering::Relaxed);
            note_main_thread();
        }
    }

    /// The child makes its own when it is large.
    fn forked(&self, heap: &Heap) {
        ARENA.store(0, Ordering::Relaxed);
        HELPER.store(0, Ordering::Relaxed);
        MAKING.store(false, Ordering::Relaxed);
        MAIN_WORD.store(0, Ordering::Relaxed);
        RETRY_AT.store(0, Ordering::Relaxed);
        self.started(heap);
    }

    fn look(&self, heap: &Heap) {
        let wanted = heap.config.exit_detached;
        if wanted && clock::now_ms() >= RETRY_AT.load(Ordering::Relaxed) {
            look_now(heap);
        }
    }

    /// The last moment for a process whose memory is not from here.
    fn ends(&self, heap: &Heap) {
        if HELPER.load(Ordering::Relaxed) == 0 {
            LOOKED_MS.store(0, Ordering::Relaxed);
        } else {
            RETRY_AT.store(0, Ordering::Relaxed);
        }
        self.look(heap);
    }
}

fn note_main_thread() {
    if MAIN_WORD.load(Ordering::Relaxed) == 0
        && process::thread_id() == PROCESS.load(Ordering::Relaxed)
        && let Some(word) = helper::leaving_word()
    {
        MAIN_WORD.store(word, Ordering::Relaxed);
    }
}

#[cold]
fn look_now(heap: &Heap) {
    if ebbtide_core::front::fork::is_forking() || PROCESS.load(Ordering::Relaxed) != process::id() {
        return;
    }
    note_main_thread();
    if MAKING.swap(true, Ordering::Acquire) {
        return;
    }
    if (HELPER.load(Ordering::Relaxed) == 0 || has_ended()) && is_large(heap) {
        make(heap);
    }
    MAKING.store(false, Ordering::Release);
}

fn is_large(heap: &Heap) -> bool {
    let threshold = heap.config.exit_threshold;
    let zones = heap.live_zones().iter();
    let opened: u64 = zones.map(|zone| zone.counters().open).sum();
    if opened as usize * ebbtide_zone::FRAME_BYTES >= threshold {
        return true;
    }
    // Memory that is not from here: seldom, and with a descriptor only if it may be so.
    let now = clock::now_ms();
    if now.wrapping_sub(LOOKED_MS.load(Ordering::Relaxed)) < LOOK_MS {
        return false;
    }
    LOOKED_MS.store(now, Ordering::Relaxed);
    process::peak_resident() >= threshold
        && process::resident_quickly().is_some_and(|now| now >= threshold)
}

/// Whether the last helper is gone before its time: somebody killed it, or it could not work.
fn has_ended() -> bool {
    let Some(arena) = Arena::at(ARENA.load(Ordering::Relaxed)) else {
        return true;
    };
    let is_stuck = arena.control().is_stuck();
    if arena.control().is_alive() {
        if is_stuck && !helper::kill(HELPER.load(Ordering::Relaxed)) {
            arena.control().let_trap();
        }
        // Not before the next time that it is worth a look.
        if arena.control().is_watching() {
            let _ = REAPER.latch(Ok::<_, ()>(()));
            RETRY_AT.store(clock::now_ms() + RETRY_MS, Ordering::Relaxed);
        }
        return false;
    }
    if !helper::collect(HELPER.load(Ordering::Relaxed)) {
        return false;
    }
    HELPER.store(0, Ordering::Relaxed);
    if !arena.control().is_watching() {
        REAPER.refuse();
    }
    // The next one would be stuck, too.
    let retry_at = match is_stuck {
        true => u64::MAX,
        false => clock::now_ms() + RETRY_MS,
    };
    RETRY_AT.store(retry_at, Ordering::Relaxed);
    false
}

/// An exec ends the helper, and no wait that the new program knows to make finds it. Behind another child of that kind
/// that has ended and is not waited for it is not seen.
fn collect_earlier() {
    for _ in 0..EARLIER {
        match process::ended_clone() {
            Some(id) if is_helper(id) && helper::collect(id) => {}
            _ => return,
        }
    }
}

/// By its name, which the end leaves.
fn is_helper(id: u32) -> bool {
    let path = PathText::join(&[b"/proc/", &Digits::of(id as usize), b"/comm"]);
    let mut name = [0; 16];
    path.is_some_and(|path| file::read(path.as_c_str(), &mut name) == Ok(b"ebbtide/exit\n"))
}

fn make(heap: &Heap) {
    let word = MAIN_WORD.load(Ordering::Relaxed);
    let program = PROCESS.load(Ordering::Relaxed);
    // The first process of a container takes everybody with it, and so would be the helper of a program that has
    // asked for its next child to be the first. By the `/proc` of others no exec would be noticed.
    if word == 0 || program == 1 || !process::has_plain_children() || !process::proc_is_own() {
        return;
    }
    // It would hand its priority on, from which there is no way back. Another thread comes.
    if thread::gives_way_more_than(program) {
        return;
    }
    RETRY_AT.store(clock::now_ms() + RETRY_MS, Ordering::Relaxed);
    collect_earlier();
    let arena = match Arena::at(ARENA.load(Ordering::Relaxed)) {
        Some(arena) => arena,
        None => {
            let Ok(address) = vm::map(arena::BYTES) else {
                return;
            };
            // SAFETY: the mapping just made. A forked child has no use for it.
            unsafe {
                let _ = vm::advise(address, arena::BYTES, libc::MADV_DONTFORK);
                let _ = vm::advise(address, arena::BYTES, libc::MADV_NOHUGEPAGE);
            }
            ARENA.store(address, Ordering::Relaxed);
            let Some(arena) = Arena::at(address) else {
                return;
            };
            arena
        }
    };
    let config = &heap.config;
    // SAFETY: no helper runs on it: none was made, or it has been collected.
    unsafe { arena.prepare(program, word, config) };
    // SAFETY: the main seat is free, and the arena stays mapped; `life::main` keeps to what a helper may do.
    match unsafe { helper::spawn_process(arena.seat(0), life::main, arena.address()) } {
        Ok(id) => {
            HELPER.store(id, Ordering::Relaxed);
            ebbtide_core::base::stats::set_helper(id);
            // Or the program's end, if it comes now, would leave ports and pipes open for a while.
            arena.control().wait_apart(APART_MS);
            // Whether it came to work is seen at the next look.
            RETRY_AT.store(clock::now_ms() + 100, Ordering::Relaxed);
        }
        Err(_) => REAPER.refuse(),
    }
}
