//! The statistics, and the statistics page that shows them to other processes.
//!
//! The words are those of [`Figures`]. Some words are counted here, at each event. `reclaim::figures` computes the others
//! when a caller asks for them and when the page is written.

mod locks;
mod page;

pub use ebbtide_interface::records::Owner;
pub use ebbtide_interface::{Figures, word};
pub use locks::locks;
pub use page::{
    Request, is_open, note_range, publish, publish_released, request, set_place, set_places,
};

use crate::base::config::Config;
use crate::base::owner;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use ebbtide_interface::{figures, page::FIRST};
use ebbtide_sys::{Errno, clock, features, lockstat, pressure};
use page::set;

/// Values of [`Figures::pressure_state`].
const CALM: u64 = 1;
const SHORT: u64 = 2;

/// A process of this age or size gets a page: shorter and smaller ones would only be litter.
const SHOWN_MS: u64 = 1000;
const SHOWN_BYTES: usize = 16 << 20;

static WANTS_FILE: AtomicBool = AtomicBool::new(false);
/// See [`confine`].
static IS_CONFINED: AtomicBool = AtomicBool::new(false);
/// When the process began, or was forked.
static BEGAN_MS: AtomicU64 = AtomicU64::new(0);
/// Bytes of large allocations that were freed, and that the next tick counts.
static LARGE_FREED: AtomicUsize = AtomicUsize::new(0);

/// Adds to a figure, from any thread at any time. `place` is its [`word`].
#[inline]
pub fn count(place: usize, value: u64) {
    page::at(place).fetch_add(value, Ordering::Relaxed);
}

/// Raises a figure to `value`.
pub fn raise(place: usize, value: u64) {
    page::at(place).fetch_max(value, Ordering::Relaxed);
}

/// Counts bytes that a call to the kernel released.
pub fn count_released(bytes: usize) {
    count(word!(released_bytes), bytes as u64);
    count(word!(release_calls), 1);
}

/// Bytes released since the process began.
pub fn released() -> usize {
    page::word(word!(released_bytes)) as usize
}

/// Stores the result of the last pressure sample.
pub fn set_pressure(is_short: bool, room: Option<pressure::Room>) {
    let (left, limit) = room.map_or((0, 0), |room| (room.left, room.limit));
    set(word!(limit_left_bytes), left);
    set(word!(limit_bytes), limit);
    set(word!(pressure_state), if is_short { SHORT } else { CALM });
}

/// Stores the time for which a recent peak keeps freed memory.
pub fn set_retain(ms: u32) {
    set(word!(retain_ms), ms.into());
}

/// Stores the sampled sources, a bit for each of [`ebbtide_interface::PRESSURE_SOURCES`].
pub fn set_pressure_sources(sources: u64) {
    set(word!(pressure_sources), sources);
}

/// Called once, by the start of the heap.
pub fn start(config: &Config) {
    page::begin();
    set(word!(pid), owner::id().into());
    if config.stats_dir.as_bytes().is_empty() {
        return;
    }
    BEGAN_MS.store(clock::now_ms(), Ordering::Relaxed);
    // Later, a filter may refuse to make the file.
    let begins_now = config.all_pages && is_this_process(config);
    if begins_now || config.basic_syscalls {
        let _ = page::open(config, true);
    } else {
        page::check(config);
        WANTS_FILE.store(true, Ordering::Relaxed);
    }
}

/// Called in a forked child. The child counts anew, in a file of its own, which is made when the page is written.
pub fn forked(config: &Config) {
    page::forget();
    lockstat::forget();
    if !config.basic_syscalls {
        set(word!(pid), owner::id().into());
    }
    let wanted = !config.stats_dir.as_bytes().is_empty();
    if wanted {
        BEGAN_MS.store(clock::now_ms(), Ordering::Relaxed);
    }
    WANTS_FILE.store(wanted, Ordering::Relaxed);
}

/// Whether the page should have a file and has none yet.
pub fn wants_file() -> bool {
    WANTS_FILE.load(Ordering::Relaxed)
}

/// A process that ends needs no page any more.
pub fn want_no_page(config: &Config) {
    if !config.all_pages {
        WANTS_FILE.store(false, Ordering::Relaxed);
    }
}

/// The program is about to confine itself. With `makes_page`, a page that it would get later is made now. Afterwards none is made, removed, or
/// looked at: a filter may kill a thread for that.
pub fn confine(config: &Config, makes_page: bool) {
    if makes_page {
        open_wanted(config);
    }
    want_no_page(config);
    IS_CONFINED.store(true, Ordering::Relaxed);
}

/// Makes the file, if there should be one, and this is not a `vfork` child in its parent's memory.
fn open_wanted(config: &Config) {
    let is_wanted = || WANTS_FILE.load(Ordering::Relaxed);
    if is_wanted() && is_this_process(config) && WANTS_FILE.swap(false, Ordering::Relaxed) {
        let may_look = !config.basic_syscalls && !is_confined();
        // Without a free descriptor: later, perhaps.
        let is_later = page::open(config, may_look) == Err(Errno::EMFILE);
        WANTS_FILE.fetch_or(is_later, Ordering::Relaxed);
    }
}

fn is_confined() -> bool {
    IS_CONFINED.load(Ordering::Relaxed)
}

/// Whether the page may be written: it has a file, or the process is old or large enough for one.
pub fn is_due(config: &Config, held_bytes: impl FnOnce() -> usize) -> bool {
    let is_old = || {
        let began = BEGAN_MS.load(Ordering::Relaxed);
        clock::now_ms().wrapping_sub(began) >= SHOWN_MS
    };
    let is_due = || config.all_pages || is_old() || held_bytes() >= SHOWN_BYTES;
    page::is_open() || WANTS_FILE.load(Ordering::Relaxed) && is_due()
}

/// Whether the counts are of this process, not of one that forked it without its handlers. `syscalls=basic` allows no
/// such call.
pub fn is_this_process(config: &Config) -> bool {
    config.basic_syscalls || owner::is_own()
}

/// Takes the count of [`large_freed`], once.
pub fn take_large_freed() -> usize {
    LARGE_FREED.swap(0, Ordering::Relaxed)
}

/// The figures that are counted at each event. Computed figures have the values that the page shows.
pub fn counted(is_short: bool) -> Figures {
    let mut figures = Figures {
        version: figures::VERSION,
        worked: features_that(true),
        refused: features_that(false),
        ..Figures::from_values(|at| page::word(FIRST + at))
    };
    if !is_short && figures.pressure_state == SHORT {
        figures.pressure_state = CALM;
    }
    locks::sum_up(&mut figures);
    figures
}

/// Writes the computed figures and the process's own data, and copies the page.
pub fn write(figures: &Figures, config: &Config) {
    open_wanted(config);
    let values = figures.values();
    let computed = word!(live_bytes)..word!(released_bytes);
    let of_locks = word!(lock_acquisitions)..word!(pid);
    computed.for_each(|place| set(place, values[place - FIRST]));
    of_locks.for_each(|place| raise(place, values[place - FIRST]));
    set(word!(rseq_mode), figures.rseq_mode);
    write_features();
    if figures.pressure_state == CALM {
        // Unless a sample has found something else meanwhile.
        let state = page::at(word!(pressure_state));
        let _ = state.compare_exchange(SHORT, CALM, Ordering::Relaxed, Ordering::Relaxed);
    }
    if lockstat::is_on() {
        locks::write_locks();
    }
    publish_new(config);
}

/// Writes the figures that large allocations change, and copies the page.
pub fn write_frames(figures: &Figures, config: &Config) {
    set(word!(live_bytes), figures.live_bytes);
    set(word!(large_bytes), figures.large_bytes);
    set(word!(cached_bytes), figures.cached_bytes);
    set(word!(dirty_bytes), figures.dirty_bytes);
    set(word!(lazy_bytes), figures.lazy_bytes);
    set(word!(pinned_bytes), figures.pinned_bytes);
    set(word!(opened_bytes), figures.opened_bytes);
    publish_new(config);
}

fn publish_new(config: &Config) {
    set(word!(written_ms), clock::now_ms());
    publish(config);
}

/// Whether the page was ever written whole.
pub fn is_written() -> bool {
    page::word(word!(written_ms)) != 0
}

/// The last figures are copied, and the page is removed.
pub fn end(config: &Config) {
    page::end(config, !is_confined());
}

/// The process ends in order.
pub fn ends() {
    set(word!(end_ns), clock::precise_ns());
}

/// Whether other processes can see the page, or soon will.
pub fn is_shown() -> bool {
    page::is_open() || WANTS_FILE.load(Ordering::Relaxed)
}

/// Notes that a large allocation of `bytes` was freed, for the next tick.
#[inline]
pub fn large_freed(bytes: usize) {
    if is_shown() {
        LARGE_FREED.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Stores the number of the exit helper that was made.
pub fn set_helper(id: u32) {
    page::tell(word!(helper), id.into());
}

/// Stores the time of the program's end, as its helper saw it. Called by the helper; it makes only a system call
/// that a helper may make.
pub fn set_left(ns: u64) {
    page::tell(word!(left_ns), ns);
}

/// Stores whether a helper releases the memory after the end, or the end is as without one. Called by the helper too, as [`set_left`].
pub fn note_exit(is_detached: bool) {
    let place = match is_detached {
        true => word!(exits_detached),
        false => word!(exits_fallen_back),
    };
    page::tell(place, 1);
}

/// Stores the state of each optional kernel call so far.
fn write_features() {
    set(word!(worked), features_that(true));
    set(word!(refused), features_that(false));
}

/// The optional kernel calls that worked, or were refused: a bit each.
fn features_that(worked: bool) -> u64 {
    let all = features::ALL.iter().enumerate();
    all.filter(|(_, feature)| feature.known() == Some(worked))
        .fold(0, |mask, (bit, _)| mask | 1 << bit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone::alone;
    use ebbtide_interface::figures::Kind;

    /// A figure that is computed is written to the page, wherever it stands in the table.
    #[test]
    fn each_computed_figure_reaches_the_page() {
        alone("workers=0,pressure=off", |_heap| {
            let figures = Figures::from_values(|at| 1000 + at as u64);
            write(&figures, &Config::DEFAULT);
            let table = figures::FIGURES.iter().zip(figures.values()).enumerate();
            for (at, (figure, value)) in table {
                let is_computed = figure.kind == Kind::Now && !figure.name.starts_with("rss");
                assert!(
                    !is_computed || page::word(FIRST + at) == value,
                    "{}",
                    figure.name
                );
            }
        });
    }

    #[test]
    fn features_have_the_names_of_their_bits() {
        let names = features::ALL.map(|feature| feature.name);
        assert_eq!(names, ebbtide_interface::FEATURES);
    }
}
