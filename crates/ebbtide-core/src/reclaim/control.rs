//! What the program, or an observer of its statistics page, changes or asks for while the program runs.

use super::pacing::is_time;
use crate::base::config::{Config, Limit};
use crate::base::countdown::COUNTDOWN;
use crate::base::message::Message;
use crate::base::releaser::Releaser;
use crate::base::stats;
use crate::reclaim::{Heap, the_heap};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ebbtide_interface::keys::{self, Value};
use ebbtide_interface::page::RELEASE;
use ebbtide_sys::request_signal::{self, Problem};
use ebbtide_sys::{file, pressure};
use ebbtide_zone::FRAME_BYTES;

/// An observer waits no longer than twice this time for a worker.
pub const OBSERVER_MS: u64 = 200;
const NO_LIMIT: u64 = u64::MAX;
const IS_PERCENTAGE: u64 = 1 << 63;

/// Why a key does not change. An observer gets the number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyProblem {
    /// There is no such key, or it does not take this value.
    Unknown = 1,
    /// The key is read once, at the start.
    Fixed = 2,
    /// It could not be done; a line on stderr says why.
    Failed = 3,
}

/// The keys that can change, and the last time at which an observer's request was looked for.
pub struct Control {
    retain_ms: AtomicU32,
    /// The user's limit: bytes, [`IS_PERCENTAGE`] and a percentage, or [`NO_LIMIT`].
    limit: AtomicU64,
    looked_ms: AtomicU64,
}

impl Control {
    /// As the heap is before its start.
    pub const fn new() -> Self {
        Self {
            retain_ms: AtomicU32::new(0),
            limit: AtomicU64::new(NO_LIMIT),
            looked_ms: AtomicU64::new(0),
        }
    }

    /// Takes the values of the configuration.
    pub fn start(&self, config: &Config) {
        self.set_retain(config.retain_ms);
        self.set_limit(config.limit);
    }

    /// Milliseconds for which a recent peak keeps freed memory.
    #[inline]
    pub fn retain_ms(&self) -> u32 {
        self.retain_ms.load(Ordering::Relaxed)
    }

    /// The user's limit.
    pub fn limit(&self) -> Limit {
        match self.limit.load(Ordering::Relaxed) {
            NO_LIMIT => Limit::None,
            word if word & IS_PERCENTAGE != 0 => Limit::Percent((word & !IS_PERCENTAGE) as u32),
            bytes => Limit::Bytes(bytes as usize),
        }
    }

    fn set_retain(&self, ms: u32) {
        self.retain_ms.store(ms, Ordering::Relaxed);
        stats::set_retain(ms);
    }

    fn set_limit(&self, limit: Limit) {
        let word = match limit {
            Limit::None => NO_LIMIT,
            Limit::Bytes(bytes) => bytes as u64 & !IS_PERCENTAGE,
            Limit::Percent(percent) => IS_PERCENTAGE | u64::from(percent),
        };
        self.limit.store(word, Ordering::Relaxed);
    }
}

/// Notes that a signal asks for a dump: for a worker that sleeps, and for the next request on this CPU.
fn note_dump() {
    // SAFETY: the heap has started, and this takes no lock.
    let heap = unsafe { the_heap() };
    heap.samples.asked.store(true, Ordering::Relaxed);
    COUNTDOWN.hurry();
    heap.workers.nudge();
}

impl Heap {
    /// Changes a key, given as `key=value`.
    ///
    /// # Errors
    /// See [`KeyProblem`].
    pub fn set_key(&self, item: &[u8]) -> Result<(), KeyProblem> {
        let setting = keys::read(item).map_err(|_| KeyProblem::Unknown)?;
        match (setting.key.name, setting.value) {
            ("retain_ms", Value::Number(ms)) => {
                self.control.set_retain(ms as u32);
            }
            ("limit", value) => {
                self.control.set_limit(match value {
                    Value::Percent(percent) => Limit::Percent(percent as u32),
                    Value::Number(bytes) => Limit::Bytes(bytes as usize),
                    _ => return Err(KeyProblem::Unknown),
                });
                let group = || pressure::Groups::find().memory?.smallest_limit();
                self.apply_limit(if self.config.basic_syscalls {
                    None
                } else {
                    group()
                });
            }
            ("profile", Value::Number(rate)) => {
                let done = self.sample(rate as usize);
                return done.then_some(()).ok_or(KeyProblem::Failed);
            }
            // At once. The file for the end of the process stays as it is, and so does the signal.
            ("profile_dump", Value::Dump(path, 0)) => {
                return self.dump_profile(path).map_err(|_| KeyProblem::Failed);
            }
            _ => return Err(KeyProblem::Fixed),
        }
        // What is kept beyond the new values goes on the next slow path, by a worker where there can be one.
        self.call_worker();
        Ok(())
    }

    fn call_worker(&self) -> bool {
        self.max_workers() > 0 && self.call_workers(1)
    }

    /// The value of a key that can change: milliseconds, or bytes (`u64::MAX`: no limit).
    ///
    /// # Errors
    /// See [`KeyProblem`].
    pub fn key_value(&self, name: &[u8]) -> Result<u64, KeyProblem> {
        let limit = || {
            self.allowance
                .limit()
                .map(|frames| frames * FRAME_BYTES as u64)
        };
        match keys::key(name).ok_or(KeyProblem::Unknown)?.name {
            "retain_ms" => Ok(self.control.retain_ms().into()),
            "limit" => Ok(limit().unwrap_or(u64::MAX)),
            "profile" => Ok(self.sampling_rate() as u64),
            _ => Err(KeyProblem::Fixed),
        }
    }

    /// Takes the signal at which the profile is written, if the user wants that and the signal is free. Otherwise one line says why not.
    pub fn take_dump_signal(&self) {
        let signal = self.config.profile_dump.signal;
        if signal == 0 {
            return;
        }
        if let Err(problem) = request_signal::install(signal.into(), note_dump) {
            let line = Message::new()
                .text("profile_dump: nothing is written at signal ")
                .number(signal.into());
            match problem {
                Problem::IsIgnored => line.text(", which this process ignores since its start"),
                Problem::HasHandler => line.text(", which the program handles itself"),
                Problem::Refused(error) => line.text(": ").display(&error),
            }
            .text("; name another signal")
            .write();
        }
    }

    /// Writes the profile if a signal has asked for it. A worker without descriptors of its own leaves that to a slow path: the program may
    /// close the file's number, and use it again. Returns whether this call did it.
    #[inline]
    pub fn look_for_dump(&self, by: Releaser) -> bool {
        self.is_dump_asked()
            && (!by.is_worker() || file::has_own_descriptors())
            && self.dump_if_asked()
    }

    /// Does what an observer asks for. `by` is a worker, or a slow path that hands the request to one if it can.
    pub fn look_for_request(&self, now: u64, by: Releaser) {
        self.look_for_dump(by);
        if !stats::is_open() || !is_time(&self.control.looked_ms, now, OBSERVER_MS) {
            return;
        }
        let Some(request) = stats::request() else {
            return;
        };
        // The worker looks at once.
        self.control.looked_ms.store(0, Ordering::Relaxed);
        if !by.is_worker() && self.call_worker() || !request.take() {
            return;
        }
        let result = match request.text() {
            RELEASE => {
                let by = if by.is_worker() {
                    by
                } else {
                    Releaser::Explicit
                };
                self.release_everything(by) as u64
            }
            item => self
                .set_key(item)
                .map_or_else(|problem| problem as u64, |()| 0),
        };
        // The observer reads the figures when it reads the answer.
        self.write_page();
        request.answer(result);
    }
}
