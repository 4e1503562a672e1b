//! Admission: while memory is not short, few helpers of a user work at a time.
//!
//! A file of locks in a directory that is the user's alone: one byte a slot, half as many as there are CPUs. A
//! helper takes a free slot, or waits in the kernel for one. The locks go with their holder. No such file to be
//! had: all are admitted.

use ebbtide_sys::file::{Digits, PathText};
use ebbtide_sys::helper::{self, Descriptor};
use ebbtide_sys::process::{self, CpuSet};

/// The slots.
#[derive(Clone, Copy)]
pub struct Admission {
    file: Option<Descriptor>,
    slots: u64,
}

impl Admission {
    /// Opens the file, or makes it.
    pub fn open() -> Self {
        Self {
            file: open(),
            slots: u64::from(CpuSet::online().count() / 2).max(1),
        }
    }

    /// Waits for a slot. `at`: where to look first.
    pub fn wait(&self, at: u64) {
        let Some(file) = self.file else { return };
        let mut slots = (0..self.slots).map(|step| (at + step) % self.slots);
        if !slots.any(|slot| file.lock_byte(slot, false)) {
            file.lock_byte(at % self.slots, true);
        }
    }
}

/// Never inlined: a seat's stack has no room for its frame and the next one's.
#[inline(never)]
fn open() -> Option<Descriptor> {
    let given = process::environment(b"XDG_RUNTIME_DIR", |value| {
        PathText::join(&[value]).filter(|_| value.first() == Some(&b'/'))
    });
    let given = given.flatten().and_then(|path| open_in(&path, false));
    given.or_else(|| {
        let user = Digits::of(helper::user() as usize);
        let own = |start: &[u8], make| open_in(&PathText::join(&[start, &user])?, make);
        own(b"/run/user/", false)
            .or_else(|| own(b"/dev/shm/ebbtide-", true))
            .or_else(|| own(b"/tmp/ebbtide-", true))
    })
}

fn open_in(directory: &PathText, make: bool) -> Option<Descriptor> {
    helper::open_private(directory.as_c_str(), c"ebbtide-exit.lock", make).ok()
}
