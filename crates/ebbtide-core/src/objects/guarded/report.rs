//! The lines about a mistake with a guarded object: what happened, then the stacks of those threads that had to do with it.
//!
//! ```text
//! ebbtide: server[4711]: guard: use after free: write to byte 16 of the 100-byte object at 0x7f20c1e03f90
//! ebbtide: server[4711]: guard: accessed by thread 4713 (worker):
//! ebbtide: server[4711]: guard:   0x55d0a1b2c345 /usr/bin/server+0x12345
//! ebbtide: server[4711]: guard: allocated by thread 4711 (server):
//! …
//! ```
//!
//! Nothing here allocates or takes a lock. [`watch`] runs in a signal handler, on a stack that may be small.

use super::record::{FREED, LIVE, MAX_FRAMES, Record, Trace, UNUSED};
use super::{Guarded, POOL};
use crate::base::message::Message;
use core::sync::atomic::Ordering;
use ebbtide_sys::fault::Fault;
use ebbtide_sys::unwind::{self, Registers};
use ebbtide_sys::{file, process, vm};

/// Reports a fault in a slot or a guard. Other faults are the program's own.
pub fn watch(fault: &Fault) {
    // SAFETY: null, or the pool of this process, which stays.
    let Some(pool) = (unsafe { POOL.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    let Some(record) = pool
        .contains(fault.address)
        .then(|| pool.nearest(fault.address))
    else {
        return;
    };
    // A thread that has never used an object here has a wild pointer, which says nothing about an object.
    if let Some(record) = record
        && record.reported.swap(1, Ordering::Relaxed) == 0
    {
        access(record, fault);
    }
}

impl Guarded {
    /// The record of the object that a fault is about. `None`: of none.
    fn nearest(&self, address: usize) -> Option<&Record> {
        let layout = self.layout()?;
        let here = layout.slot_at(address).map(|slot| slot.number);
        let next = here.map_or(0, |number| number + 1);
        let has_next = layout.is_between(address) && next < layout.count();
        let both = [here, has_next.then_some(next)].into_iter().flatten();
        let known = both
            .map(|number| self.record(number))
            .filter(|record| matches!(record.state(), LIVE | FREED));
        let record = known.min_by_key(|record| {
            let place = Place::of(record, address);
            // A live object is meant rather than one that was freed.
            (place.distance(), record.state())
        })?;
        let (object, size) = record.object();
        let page = vm::page();
        let pages = object / page * page..vm::whole_pages(object + size.max(1));
        // The pages of a live object are accessible: another thread has just got the slot, or the program has
        // taken the access away.
        let is_own = record.state() == LIVE && pages.contains(&address);
        (!is_own).then_some(record)
    }
}

/// Where an address lies, seen from an object.
enum Place {
    Before(usize),
    At(usize),
    Behind(usize),
}

impl Place {
    fn of(record: &Record, address: usize) -> Self {
        let (object, size) = record.object();
        match address.checked_sub(object) {
            None => Self::Before(object - address),
            Some(at) if at < size => Self::At(at),
            Some(at) => Self::Behind(at - size),
        }
    }

    fn distance(&self) -> usize {
        match *self {
            Self::At(_) => 0,
            Self::Before(bytes) | Self::Behind(bytes) => bytes,
        }
    }

    /// Adds the words, such as `4 bytes behind the end of the 100-byte object at 0x7f20c1e03f90`.
    fn add_to(&self, line: Message, record: &Record) -> Message {
        let (object, size) = record.object();
        let line = match *self {
            Self::Before(bytes) => line.number(bytes).text(" bytes before the start of"),
            Self::At(at) => line.text("at byte ").number(at).text(" of"),
            Self::Behind(bytes) => line.number(bytes).text(" bytes behind the end of"),
        };
        let line = line.text(" the ").number(size);
        line.text("-byte object at ").address(object)
    }
}

fn begin(text: &str) -> Message {
    Message::new().text("guard: ").text(text)
}

fn access(record: &Record, fault: &Fault) {
    let line = match record.state() {
        FREED => begin("use after free: "),
        _ => begin("access outside of an object: "),
    };
    let line = line.text(match fault.is_write {
        Some(true) => "write ",
        Some(false) => "read ",
        None => "access ",
    });
    Place::of(record, fault.address)
        .add_to(line, record)
        .report();
    thread_line("accessed by", this_thread());
    frame_line(fault.instruction);
    history(record);
}

/// Ends the process over `call` with an address where no live object begins.
pub fn misuse(record: &Record, address: usize, call: &str) -> ! {
    let line = match (record.state(), call) {
        (UNUSED, _) => no_object(address, call),
        (FREED, "free of ") => begin("double free of ").address(address),
        (FREED, _) => begin(call)
            .address(address)
            .text(", which was freed before"),
        _ => begin(call)
            .address(address)
            .text(", where no object begins"),
    };
    found(match Place::of(record, address) {
        Place::At(0) => {
            let (_, size) = record.object();
            line.text(", a ").number(size).text("-byte object")
        }
        place => place.add_to(line.text(", "), record),
    });
    history(record);
    process::abort()
}

/// Ends the process over a write to byte `address` beside an object, which its `free` has found.
pub fn damage(record: &Record, address: usize) -> ! {
    let line = begin("write outside of an object, found by free: ");
    found(Place::of(record, address).add_to(line, record));
    trace("allocated by", &record.allocated);
    process::abort()
}

/// Ends the process over `call` with an address in a place where no object was so far.
pub fn no_object(address: usize, call: &str) -> ! {
    let line = begin(call).address(address);
    line.text(", where nothing was allocated").abort()
}

/// Writes the line about a mistake that this call has found, and the stack of the call.
fn found(line: Message) {
    line.report();
    let mut frames = [0; MAX_FRAMES];
    let depth = unwind::frames(&Registers::here(), process::thread_id(), &mut frames);
    thread_line("found by", this_thread());
    frames[..depth]
        .iter()
        .for_each(|&frame| frame_line(frame as usize));
}

/// The stacks of allocation and free.
fn history(record: &Record) {
    trace("allocated by", &record.allocated);
    if record.state() == FREED {
        trace("freed by", &record.freed);
    }
}

fn trace(what: &str, trace: &Trace) {
    if let Some(thread) = trace.thread() {
        thread_line(what, thread);
        trace.frames().for_each(frame_line);
    }
}

fn this_thread() -> (u32, [u8; 16]) {
    (process::thread_id(), process::thread_name())
}

fn thread_line(what: &str, (thread, name): (u32, [u8; 16])) {
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let line = begin(what).text(" thread ").number(thread as usize);
    line.text(" (").bytes(name).text("):").report();
}

/// An address, and its place in the file that is mapped there, for `addr2line`.
fn frame_line(address: usize) {
    let mut line = begin("  ").address(address);
    let mut module = Module::default();
    file::lines(c"/proc/self/maps", |text| module.look(text, address));
    if module.is_found {
        let name = &module.name[..module.len];
        line = line.text(" ").bytes(name).text("+");
        line = line.address(address - module.base);
    }
    line.report();
}

/// The file that is mapped at an address.
struct Module {
    /// Where the mappings of the file that was seen last begin.
    base: usize,
    name: [u8; Self::MOST],
    len: usize,
    is_found: bool,
}

impl Default for Module {
    fn default() -> Self {
        Self {
            base: 0,
            name: [0; Self::MOST],
            len: 0,
            is_found: false,
        }
    }
}

impl Module {
    const MOST: usize = 256;

    /// Takes a line of the maps. `false`: no more lines are needed.
    fn look(&mut self, line: &[u8], address: usize) -> bool {
        let Some((start, end)) = range(line) else {
            return true;
        };
        let path = line.iter().position(|&byte| byte == b'/');
        let path = path.map_or(&b""[..], |at| &line[at..]);
        let path = &path[..path.len().min(Self::MOST)];
        if self.name[..self.len] != *path {
            self.name[..path.len()].copy_from_slice(path);
            (self.len, self.base) = (path.len(), start);
        }
        self.is_found = (start..end).contains(&address) && self.len > 0;
        address >= end
    }
}

/// The addresses at the start of a line of the maps.
fn range(line: &[u8]) -> Option<(usize, usize)> {
    let text = line.split(|&byte| byte == b' ').next()?;
    let mut ends = text.split(|&byte| byte == b'-').map(|digits| {
        let digits = core::str::from_utf8(digits).ok()?;
        usize::from_str_radix(digits, 16).ok()
    });
    Some((ends.next()??, ends.next()??))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn an_address_is_a_place_in_a_file() {
        let maps: [&[u8]; 5] = [
            b"1000-2000 r--p 00000000 08:01 7 /bin/server",
            b"2000-3000 r-xp 00001000 08:01 7 /bin/server",
            b"3000-4000 rw-p 00000000 00:00 0 [heap]",
            b"5000-6000 r--p 00000000 08:01 8 /lib/a b.so",
            b"6000-7000 r-xp 00001000 08:01 8 /lib/a b.so",
        ];
        let found = |address| {
            let mut module = Module::default();
            let _ = maps.iter().all(|line| module.look(line, address));
            let name = core::str::from_utf8(&module.name[..module.len]).unwrap();
            module
                .is_found
                .then(|| (std::string::String::from(name), address - module.base))
        };
        assert_eq!(found(0x2345), Some(("/bin/server".into(), 0x1345)));
        assert_eq!(found(0x6001), Some(("/lib/a b.so".into(), 0x1001)));
        assert_eq!(
            (found(0x3001), found(0x4800), found(0x9000)),
            (None, None, None)
        );
    }
}
