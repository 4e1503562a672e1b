//! The operations as restartable sections, x86-64.
//!
//! A section publishes its descriptor in `struct rseq`, reads `cpu_id`, finds its slab, works, and
//! ends with the store of the new header. Preemption, migration, a signal or a fence in between
//! sends it to its abort handler, and nothing has happened (`INV-RSEQ-1`).
//!
//! `pop` and `push` have the header's address in one register, without an index: recent processors forward such a
//! store to the next such load of the word without delay
//! ([decision 0050](../../../../docs/decisions/0050-malloc-and-free-need-25-and-28-instructions.md)).
//!
//! The descriptor is not cleared at the end: the kernel does that when it finds the instruction
//! pointer outside. The library must therefore never be unmapped (it is linked `nodelete`).

use super::{Added, Outcome, Registration, Stacks, stack_start};
use core::arch::asm;
use core::sync::atomic::AtomicU32;

const _: () = assert!(super::STACK_BYTES == 0x1fff + 1 && super::UNIT_SHIFT == 18);

/// Which numbered point of a section shall abort it: test builds only, 0 for none.
#[cfg(feature = "inject")]
pub static INJECT: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// A numbered injection point: a breakpoint trap, which aborts like any signal.
#[cfg(feature = "inject")]
macro_rules! point {
    ($number:literal) => {
        concat!(
            "cmp dword ptr [rip + {inject}], ",
            $number,
            "\n",
            "jne 77f\n",
            "int3\n",
            "77:\n",
        )
    };
}
#[cfg(not(feature = "inject"))]
macro_rules! point {
    ($number:literal) => {
        ""
    };
}

/// One section: `$body` from label 3 (start) to label 4 (just behind the commit), `$abort` runs
/// out of line and goes on at label 5, behind everything, or at a label of the caller.
///
/// `{t}` is free inside; `{off}` is the rseq offset. Label 9 is the descriptor.
macro_rules! section {
    (body: [$($body:expr,)*], abort: [$($abort:expr,)*], $($operands:tt)*) => {
        asm!(
            concat!(
                ".pushsection .data.rel.ro.ebbtide_rseq, \"aw\", @progbits\n",
                ".balign 32\n",
                "9: .long 0, 0\n",
                ".quad 3f, 4f - 3f, 6f\n",
                ".popsection\n",
                ".pushsection .text.unlikely.ebbtide_rseq, \"ax\", @progbits\n",
                // The signature glibc registers with, as an instruction that traps.
                ".byte 0x0f, 0xb9, 0x3d\n",
                ".long 0x53053053\n",
                "6:\n",
                $($abort, "\n",)*
                ".popsection\n",
                "lea {t}, [rip + 9b]\n",
                "mov qword ptr fs:[{off} + 8], {t}\n",
                "3:\n",
                $($body, "\n",)*
                "5:\n",
            ),
            $($operands)*
            options(nostack),
        )
    };
}

#[cfg(feature = "inject")]
macro_rules! with_inject {
    ($($section:tt)*) => { section! { $($section)* inject = sym INJECT, } };
}
#[cfg(not(feature = "inject"))]
macro_rules! with_inject {
    ($($section:tt)*) => { section! { $($section)* } };
}

/// Takes the newest entry of this CPU's stack. 0: empty, parked or aborted.
///
/// # Safety
/// `stacks` describes live stacks, this thread's `struct rseq` lies at its offset, and
/// `class < STACKS`.
#[inline(always)]
pub unsafe fn pop(stacks: &Stacks, class: usize) -> usize {
    let entry: usize;
    // SAFETY: by contract; INV-RSEQ-2 and -3 make the addresses valid.
    unsafe {
        with_inject! {
            body: [
                point!("1"),
                "movsxd {place}, dword ptr fs:[{off} + 4]", // cpu_id, −1 or −2 when unregistered
                "mov {place}, [{table} + {place}*8]",
                "add {place}, {parked}",
                "lea {place}, [{place} + {class}*8]",
                point!("2"),
                "mov {t}, [{place}]",            // let header = self.header(class)
                "mov {entry}, [{t} - 8]",        // let entry = Self::entry(header - 8)
                point!("3"),
                "test {entry}, {entry}",         // if entry == 0
                "jz 5f",                         //     return None
                "sub {t}, 8",
                point!("4"),
                "mov [{place}], {t}",            // commit(header - 8)
                "4:",
            ],
            abort: ["xor {entry:e}, {entry:e}", "jmp 5f",],
            entry = out(reg) entry,
            place = out(reg) _,
            t = out(reg) _,
            table = in(reg) stacks.table,
            parked = in(reg) stacks.parked,
            class = in(reg) class,
            off = in(reg) stacks.rseq_offset,
        }
    }
    entry
}

/// Puts `entry` on this CPU's stack. `false`: full, parked, aborted, or the top is `entry` itself.
///
/// # Safety
/// As [`pop`]; `entry` is not 0.
#[inline(always)]
pub unsafe fn push(stacks: &Stacks, class: usize, entry: usize) -> bool {
    // SAFETY: as in `pop`.
    unsafe {
        with_inject! {
            body: [
                point!("1"),
                "movsxd {place}, dword ptr fs:[{off} + 4]",
                "mov {place}, [{table} + {place}*8]",
                "add {place}, {parked}",
                "lea {place}, [{place} + {class}*8]",
                point!("2"),
                "mov {t}, [{place}]",            // let header = self.header(class)
                "test {t:e}, 0x1fff",            // if header.is_multiple_of(STACK_BYTES)
                "jz {refused}",                  //     return false
                "cmp [{t} - 8], {entry}",        // || entry(header - 8) == entry
                "je {refused}",
                point!("3"),
                "mov [{t}], {entry}",            // set_entry(header, entry)
                "add {t}, 8",
                point!("4"),
                "mov [{place}], {t}",            // commit(header + 8)
                "4:",
            ],
            abort: ["jmp {refused}",],
            entry = in(reg) entry,
            place = out(reg) _,
            t = out(reg) _,
            table = in(reg) stacks.table,
            parked = in(reg) stacks.parked,
            class = in(reg) class,
            off = in(reg) stacks.rseq_offset,
            refused = label { return false },
        }
    }
    true
}

const ABORTED: isize = -1;
const PARKED: isize = -2;

fn outcome(count: isize) -> Outcome {
    match count {
        ABORTED => Outcome::Aborted,
        PARKED => Outcome::Parked,
        count => Outcome::Done(count as usize),
    }
}

/// Takes up to `entries.len()` of the newest entries, newest first.
///
/// The caller owns as many as [`Outcome::Done`] says and no more: words are written before the commit, so an aborted
/// section leaves entries in the slice that are still on the stack.
///
/// # Safety
/// As [`pop`].
#[inline(never)]
pub unsafe fn pop_batch(stacks: &Stacks, class: usize, entries: &mut [usize]) -> Outcome {
    let count: isize;
    // SAFETY: as in `pop`; at most `entries.len()` words are written to `entries`.
    unsafe {
        with_inject! {
            body: [
                point!("1"),
                "movsxd {slab}, dword ptr fs:[{off} + 4]",
                "mov {slab}, [{table} + {slab}*8]",
                "mov {count}, -2",
                "test {slab}, {slab}",
                "jz 5f",                         // parked
                point!("2"),
                "mov {t}, [{slab} + {header}]",  // let mut header = self.header(class)
                "xor {count:e}, {count:e}",      // let mut count = 0
                "7:",
                "cmp {count}, {wanted}",         // while count < entries.len()
                "je 8f",
                "mov {entry}, [{t} - 8]",        // let entry = Self::entry(header - 8)
                "test {entry}, {entry}",         // if entry == 0
                "jz 8f",                         //     break
                "mov [{entries} + {count}*8], {entry}",
                "sub {t}, 8",
                "inc {count}",
                point!("3"),
                "jmp 7b",
                "8:",
                "test {count}, {count}",         // if count > 0
                "jz 5f",
                point!("4"),
                "mov [{slab} + {header}], {t}",  // commit(header)
                "4:",
            ],
            abort: ["mov {count}, -1", "jmp 5f",],
            count = out(reg) count,
            entry = out(reg) _,
            slab = out(reg) _,
            t = out(reg) _,
            wanted = in(reg) entries.len(),
            entries = in(reg) entries.as_mut_ptr(),
            table = in(reg) stacks.table,
            header = in(reg) stacks.parked + class * 8,
            off = in(reg) stacks.rseq_offset,
        }
    }
    outcome(count)
}

/// Puts `entries` on top, in order, as far as there is room; an empty stack gets room for
/// `capacity` entries first. Not done: how many fitted.
///
/// # Safety
/// As [`pop`]; no entry is 0; `capacity` is 1 to [`super::MAX_CAPACITY`].
#[inline(never)]
pub unsafe fn push_batch(
    stacks: &Stacks,
    class: usize,
    entries: &[usize],
    capacity: usize,
) -> Outcome {
    let count: isize;
    // SAFETY: as in `pop`; `entries.len()` words are read at most.
    unsafe {
        with_inject! {
            body: [
                point!("1"),
                "movsxd {slab}, dword ptr fs:[{off} + 4]",
                "mov {slab}, [{table} + {slab}*8]",
                "mov {count}, -2",
                "test {slab}, {slab}",
                "jz 5f",                             // parked
                "mov {t}, [{slab} + {header}]",      // let mut header = self.header(class)
                "cmp qword ptr [{t} - 8], 0",        // if Self::entry(header - 8) == 0
                "jne 7f",
                "lea {t}, [{slab} + {start}]",       //     header = stack_start(…, capacity)
                point!("2"),
                "mov qword ptr [{t} - 8], 0",        //     set_entry(header - 8, 0)
                "mov [{slab} + {header}], {t}",      //     commit(header): still empty
                "7:",
                "mov {entry}, {t}",                  // let room =
                "neg {entry}",                       //     (header.wrapping_neg()
                "and {entry:e}, 0x1fff",             //     % STACK_BYTES)
                "shr {entry:e}, 3",                  //     / 8
                "cmp {entry}, {wanted}",             // let wanted = entries.len().min(room)
                "cmova {entry}, {wanted}",
                "xor {count:e}, {count:e}",
                "2:",
                "cmp {count}, {entry}",              // for &entry in &entries[..count]
                "je 8f",
                "mov {value}, [{entries} + {count}*8]",
                "mov [{t}], {value}",                //     set_entry(header, entry)
                "add {t}, 8",                        //     header += 8
                "inc {count}",
                point!("3"),
                "jmp 2b",
                "8:",
                point!("4"),
                "mov [{slab} + {header}], {t}",      // commit(header)
                "4:",
            ],
            abort: ["mov {count}, -1", "jmp 5f",],
            count = out(reg) count,
            entry = out(reg) _,
            value = out(reg) _,
            slab = out(reg) _,
            t = out(reg) _,
            wanted = in(reg) entries.len(),
            entries = in(reg) entries.as_ptr(),
            start = in(reg) stack_start(stacks.parked, class, capacity),
            table = in(reg) stacks.table,
            header = in(reg) stacks.parked + class * 8,
            off = in(reg) stacks.rseq_offset,
        }
    }
    outcome(count)
}

/// Adds `value` to this CPU's word. `false`: aborted, or this CPU is none of those with a word (not registered).
///
/// # Safety
/// This thread's `struct rseq` lies at `rseq_offset`; `word` is the aligned word of CPU 0, and those of the
/// first `units` CPUs can be written to.
#[inline(always)]
pub unsafe fn add(word: usize, units: usize, value: u64, rseq_offset: isize) -> bool {
    let done: usize;
    // SAFETY: by contract.
    unsafe {
        with_inject! {
            body: [
                point!("1"),
                "mov {cpu:e}, dword ptr fs:[{off} + 4]",
                "cmp {cpu}, {units}",            // no word here; not registered: 2³² − 1
                "jae 6b",
                "shl {cpu}, 18",                 // cpu << UNIT_SHIFT
                point!("2"),
                "add [{word} + {cpu}], {value}", // *place = (*place).wrapping_add(value)
                "4:",
            ],
            abort: ["xor {t:e}, {t:e}", "jmp 5f",],
            cpu = out(reg) _,
            t = out(reg) done,
            word = in(reg) word,
            units = in(reg) units,
            value = in(reg) value,
            off = in(reg) rseq_offset,
        }
    }
    done != 0
}

/// As [`add`], unless `flag` is set when the addition takes effect: whoever sets it and then fences all CPUs
/// ([`crate::membarrier::fence_all`]) knows that none is under way.
///
/// # Safety
/// As [`add`].
#[inline(always)]
pub unsafe fn add_unless(
    flag: &AtomicU32,
    word: usize,
    units: usize,
    value: u64,
    rseq_offset: isize,
) -> Added {
    let done: usize;
    // SAFETY: by contract.
    unsafe {
        with_inject! {
            body: [
                point!("1"),
                "mov {t:e}, 2",
                "cmp dword ptr [{flag}], 0",     // if flag.load(Relaxed) != 0
                "jne 5f",                        //     return false
                "mov {cpu:e}, dword ptr fs:[{off} + 4]",
                "cmp {cpu}, {units}",            // no word here; not registered: 2³² − 1
                "jae 6b",
                "shl {cpu}, 18",
                "mov {t:e}, 1",
                point!("2"),
                "add [{word} + {cpu}], {value}", // add(word, cpu, value)
                "4:",
            ],
            abort: ["xor {t:e}, {t:e}", "jmp 5f",],
            cpu = out(reg) _,
            t = out(reg) done,
            flag = in(reg) flag.as_ptr(),
            word = in(reg) word,
            units = in(reg) units,
            value = in(reg) value,
            off = in(reg) rseq_offset,
        }
    }
    match done {
        0 => Added::No,
        1 => Added::Yes,
        _ => Added::Flagged,
    }
}

/// The `cpu_id` of this thread as the kernel last wrote it; negative without registration.
///
/// # Safety
/// `struct rseq` lies at `rseq_offset`.
pub unsafe fn cpu_id(rseq_offset: isize) -> i32 {
    let cpu: i32;
    // SAFETY: by contract.
    unsafe {
        asm!(
            "mov {cpu:e}, dword ptr fs:[{off} + 4]",
            cpu = out(reg) cpu,
            off = in(reg) rseq_offset,
            options(nostack, readonly, preserves_flags),
        );
    }
    cpu
}

/// Where the C library keeps `struct rseq`, and the size that it tells of; `None` before glibc 2.35.
#[cfg(target_env = "gnu")]
fn libc_area() -> Option<(isize, u32)> {
    let (offset, size): (*const isize, *const u32);
    // SAFETY: reads the addresses of two weak symbols of glibc 2.35, zero in older ones.
    unsafe {
        asm!(
            ".weak __rseq_offset",
            ".weak __rseq_size",
            "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
            offset = out(reg) offset,
            size = out(reg) size,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    if offset.is_null() || size.is_null() {
        return None;
    }
    // SAFETY: both are constants of the C library, set before the first thread runs.
    Some(unsafe { (*offset, *size) })
}

/// The size of `struct rseq` that the C library tells of; 0: it has registered none.
#[cfg(target_env = "gnu")]
pub(super) fn libc_size() -> u32 {
    libc_area().map_or(0, |(_, size)| size)
}

/// See [`super::registration`].
#[cfg(target_env = "gnu")]
pub(super) fn registration() -> Registration {
    let Some((offset, size)) = libc_area() else {
        return Registration::None("glibc before 2.35 registers no sections");
    };
    if size == 0 {
        return Registration::None(
            "glibc registered no sections (glibc.pthread.rseq=0, or an old kernel)",
        );
    }
    // SAFETY: glibc keeps `struct rseq` there for every thread.
    if unsafe { cpu_id(offset) } < 0 {
        return Registration::None("the kernel refused the registration of sections");
    }
    Registration::At(offset)
}
