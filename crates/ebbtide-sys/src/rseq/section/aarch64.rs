//! aarch64.
//!
//! No exclusive access is in a section, and no barrier: see the header of `section.rs` for why. Branches stay within the
//! function: a conditional one reaches 1 MiB, and the abort handlers lie elsewhere. Only the kernel enters those. They
//! come back by `b`, which reaches 128 MiB.

use super::super::{CALLS_OFFSET, Counted, Counting, SIZES_OFFSET, Stacks, stack_start};
use super::Lingering;
use core::arch::asm;
use core::sync::atomic::AtomicU32;

/// Whether there are sections in this build.
pub const SECTIONS: bool = true;
/// Whether a kernel is known that leaves sections of this processor running where it should abort them.
pub const BREAKS_ON_SOME_KERNELS: bool = true;
/// What glibc registers with (`bits/rseq.h`). Instructions are little-endian always; data is so here.
pub const SIGNATURE: u32 = 0xd428_bc00;

/// The signature before an abort handler, as an instruction that traps (`brk 0x45e0`), and behind the label a landing
/// pad for jumps (`bti j`), which older processors take for a hint.
macro_rules! signature {
    ($label:literal) => {
        concat!(".balign 4\n", ".inst 0xd428bc00\n", $label, "hint #36\n")
    };
}

/// `{area}` is this thread's `struct rseq` from here on.
macro_rules! publish {
    () => {
        concat!(
            "mrs {area}, tpidr_el0\n",
            "add {area}, {area}, {off}\n",
            "adrp {t}, 9b\n",
            "add {t}, {t}, :lo12:9b\n",
            "str {t}, [{area}, #8]\n",
        )
    };
}

#[cfg(feature = "inject")]
macro_rules! breakpoint {
    ($number:literal) => {
        concat!(
            "adrp x16, {inject}\n",
            "ldr w16, [x16, :lo12:{inject}]\n",
            "cmp w16, #",
            $number,
            "\n",
            "b.ne 77f\n",
            "brk #0\n",
            "77:\n",
        )
    };
}

#[cfg(feature = "inject")]
macro_rules! injected {
    ($($section:tt)*) => { section! { $($section)* inject = sym super::INJECT, out("x16") _, } };
}

/// A pop, with the lines of its counts. They leave by `5f` with `entry` 0 where a countdown is at its end.
macro_rules! popping {
    ($stacks:ident, $class:ident, [$($count:expr,)*], $($operands:tt)*) => {{
        let entry: usize;
        // SAFETY: by the caller's contract; INV-RSEQ-2 and -3 make the addresses valid. Counted words are in the header page.
        unsafe {
            with_inject! {
                body: [
                    point!("1"),
                    "ldrsw {slab}, [{area}, #4]",    // cpu_id, −1 or −2 when unregistered
                    "ldr {slab}, [{table}, {slab}, lsl #3]",
                    "add {slab}, {slab}, {parked}",
                    "add {place}, {slab}, {class}, lsl #3",
                    point!("2"),
                    "ldr {t}, [{place}]",            // let header = self.header(class)
                    "ldr {entry}, [{t}, #-8]!",      // let entry = Self::entry(header - 8); t: header - 8
                    point!("3"),
                    "cbz {entry}, 5f",               // if entry == 0: return None
                    $($count,)*
                    point!("4"),
                    "str {t}, [{place}]",            // commit(header - 8)
                    "4:",
                ],
                abort: ["mov {entry}, xzr", "b 5f",],
                entry = out(reg) entry,
                slab = out(reg) _,
                place = out(reg) _,
                t = out(reg) _,
                area = out(reg) _,
                table = in(reg) $stacks.table,
                parked = in(reg) $stacks.parked,
                class = in(reg) $class,
                off = in(reg) $stacks.rseq_offset,
                $($operands)*
            }
        }
        entry
    }};
}

/// # Safety
/// As [`super::pop`].
#[inline(always)]
pub unsafe fn pop(stacks: &Stacks, class: usize) -> usize {
    popping!(stacks, class, [],)
}

/// # Safety
/// As [`super::pop_counted`].
#[inline(always)]
pub unsafe fn pop_counted(stacks: &Stacks, class: usize, counting: Counting) -> usize {
    match counting {
        Counting::Size(size) => popping!(
            stacks, class,
            [
                "ldr {left}, [{slab}, #{sizes}]",        // self.count(SIZES_OFFSET, size)
                "subs {left}, {left}, {size}",
                "str {left}, [{slab}, #{sizes}]",
                "csel {entry}, {entry}, xzr, gt",        // <= 0: return None
                "b.le 5f",
            ],
            size = in(reg) size,
            left = out(reg) _,
            sizes = const SIZES_OFFSET,
        ),
        Counting::Call => popping!(
            stacks, class,
            [
                "ldr {left}, [{slab}, #{calls}]",        // self.count(CALLS_OFFSET, 1)
                "subs {left}, {left}, #1",
                "str {left}, [{slab}, #{calls}]",
                "csel {entry}, {entry}, xzr, gt",
                "b.le 5f",
            ],
            left = out(reg) _,
            calls = const CALLS_OFFSET,
        ),
        Counting::Both(size) => popping!(
            stacks, class,
            [
                "ldr {left}, [{slab}, #{calls}]",
                "subs {left}, {left}, #1",
                "str {left}, [{slab}, #{calls}]",
                "csel {entry}, {entry}, xzr, gt",
                "b.le 5f",
                "ldr {left}, [{slab}, #{sizes}]",
                "subs {left}, {left}, {size}",
                "str {left}, [{slab}, #{sizes}]",
                "csel {entry}, {entry}, xzr, gt",
                "b.le 5f",
            ],
            size = in(reg) size,
            left = out(reg) _,
            sizes = const SIZES_OFFSET,
            calls = const CALLS_OFFSET,
        ),
    }
}

/// # Safety
/// As [`super::count`].
#[inline(always)]
pub unsafe fn count(stacks: &Stacks, offset: usize, value: usize) -> Option<Counted> {
    let (done, word, left): (usize, usize, i64);
    // SAFETY: by contract.
    unsafe {
        with_inject! {
            body: [
                point!("1"),
                "mov {t}, xzr",
                "ldrsw {word}, [{area}, #4]",
                "ldr {word}, [{table}, {word}, lsl #3]",
                "cbz {word}, 5f",                // parked
                "add {word}, {word}, {place}",
                point!("2"),
                "ldr {left}, [{word}]",          // (*word).wrapping_sub(value)
                "sub {left}, {left}, {value}",
                "mov {t}, #1",
                point!("3"),
                "str {left}, [{word}]",          // *word = …
                "4:",
            ],
            abort: ["mov {t}, xzr", "b 5f",],
            word = out(reg) word,
            left = out(reg) left,
            t = out(reg) done,
            area = out(reg) _,
            table = in(reg) stacks.table,
            place = in(reg) stacks.parked + offset,
            value = in(reg) value,
            off = in(reg) stacks.rseq_offset,
        }
    }
    (done != 0).then_some(Counted { word, left })
}

/// # Safety
/// As [`super::push`].
#[inline(always)]
pub unsafe fn push(stacks: &Stacks, class: usize, entry: usize) -> bool {
    // SAFETY: as in `pop`.
    unsafe {
        with_inject! {
            body: [
                point!("1"),
                "ldrsw {place}, [{area}, #4]",
                "ldr {place}, [{table}, {place}, lsl #3]",
                "add {place}, {place}, {parked}",
                "add {place}, {place}, {class}, lsl #3",
                point!("2"),
                "ldr {t}, [{place}]",            // let header = self.header(class)
                "ldur {top}, [{t}, #-8]",
                "tst {t}, #0x1fff",              // if header.is_multiple_of(STACK_BYTES)
                "ccmp {top}, {entry}, #4, ne",   // || entry(header - 8) == entry
                "b.eq {refused}",                //     return false
                point!("3"),
                "str {entry}, [{t}], #8",        // set_entry(header, entry); t: header + 8
                point!("4"),
                "str {t}, [{place}]",            // commit(header + 8)
                "4:",
            ],
            abort: ["b {refused}",],
            entry = in(reg) entry,
            place = out(reg) _,
            t = out(reg) _,
            top = out(reg) _,
            area = out(reg) _,
            table = in(reg) stacks.table,
            parked = in(reg) stacks.parked,
            class = in(reg) class,
            off = in(reg) stacks.rseq_offset,
            refused = label { return false },
        }
    }
    true
}

/// # Safety
/// As [`super::pop_batch`].
#[inline(always)]
pub unsafe fn pop_batch(stacks: &Stacks, class: usize, entries: &mut [usize]) -> isize {
    let count: isize;
    // SAFETY: as in `pop`; at most `entries.len()` words are written to `entries`.
    unsafe {
        with_inject! {
            body: [
                point!("1"),
                "ldrsw {place}, [{area}, #4]",
                "ldr {place}, [{table}, {place}, lsl #3]",
                "mov {count}, #-2",
                "cbz {place}, 5f",               // parked
                "add {place}, {place}, {header}",
                point!("2"),
                "ldr {t}, [{place}]",            // let mut header = self.header(class)
                "mov {count}, xzr",              // let mut count = 0
                "7:",
                "cmp {count}, {wanted}",         // while count < entries.len()
                "b.eq 8f",
                "ldur {entry}, [{t}, #-8]",      // let entry = Self::entry(header - 8)
                "cbz {entry}, 8f",               // if entry == 0: break
                "str {entry}, [{entries}, {count}, lsl #3]",
                "sub {t}, {t}, #8",
                "add {count}, {count}, #1",
                point!("3"),
                "b 7b",
                "8:",
                "cbz {count}, 5f",               // if count > 0
                point!("4"),
                "str {t}, [{place}]",            // commit(header)
                "4:",
            ],
            abort: ["mov {count}, #-1", "b 5f",],
            count = out(reg) count,
            entry = out(reg) _,
            place = out(reg) _,
            t = out(reg) _,
            area = out(reg) _,
            wanted = in(reg) entries.len(),
            entries = in(reg) entries.as_mut_ptr(),
            table = in(reg) stacks.table,
            header = in(reg) stacks.parked + class * 8,
            off = in(reg) stacks.rseq_offset,
        }
    }
    count
}

/// # Safety
/// As [`super::push_batch`].
#[inline(always)]
pub unsafe fn push_batch(
    stacks: &Stacks,
    class: usize,
    entries: &[usize],
    capacity: usize,
) -> isize {
    let count: isize;
    // SAFETY: as in `pop`; `entries.len()` words are read at most.
    unsafe {
        with_inject! {
            body: [
                point!("1"),
                "ldrsw {slab}, [{area}, #4]",
                "ldr {slab}, [{table}, {slab}, lsl #3]",
                "mov {count}, #-2",
                "cbz {slab}, 5f",                    // parked
                "add {place}, {slab}, {header}",
                "ldr {t}, [{place}]",                // let mut header = self.header(class)
                "ldur {entry}, [{t}, #-8]",          // if Self::entry(header - 8) == 0
                "cbnz {entry}, 7f",
                "add {t}, {slab}, {start}",          //     header = stack_start(…, capacity)
                point!("2"),
                "stur xzr, [{t}, #-8]",              //     set_entry(header - 8, 0)
                "str {t}, [{place}]",                //     commit(header): still empty
                "7:",
                "neg {entry}, {t}",                  // let room = (header.wrapping_neg()
                "ubfx {entry}, {entry}, #3, #10",    //     % STACK_BYTES) / 8
                "cmp {entry}, {wanted}",             // let wanted = entries.len().min(room)
                "csel {entry}, {entry}, {wanted}, lo",
                "mov {count}, xzr",
                "2:",
                "cmp {count}, {entry}",              // for &entry in &entries[..count]
                "b.eq 8f",
                "ldr {value}, [{entries}, {count}, lsl #3]",
                "str {value}, [{t}], #8",            //     set_entry(header, entry); header += 8
                "add {count}, {count}, #1",
                point!("3"),
                "b 2b",
                "8:",
                point!("4"),
                "str {t}, [{place}]",                // commit(header)
                "4:",
            ],
            abort: ["mov {count}, #-1", "b 5f",],
            count = out(reg) count,
            entry = out(reg) _,
            value = out(reg) _,
            slab = out(reg) _,
            place = out(reg) _,
            t = out(reg) _,
            area = out(reg) _,
            wanted = in(reg) entries.len(),
            entries = in(reg) entries.as_ptr(),
            start = in(reg) stack_start(stacks.parked, class, capacity),
            table = in(reg) stacks.table,
            header = in(reg) stacks.parked + class * 8,
            off = in(reg) stacks.rseq_offset,
        }
    }
    count
}

/// # Safety
/// As [`super::add`].
#[inline(always)]
pub unsafe fn add(word: usize, units: usize, value: u64, rseq_offset: isize) -> bool {
    let done: usize;
    // SAFETY: by contract.
    unsafe {
        with_inject! {
            body: [
                point!("1"),
                "mov {t}, xzr",
                "ldr {place:w}, [{area}, #4]",
                "cmp {place}, {units}",          // no word here; not registered: 2³² − 1
                "b.hs 5f",
                "add {place}, {word}, {place}, lsl #18", // word + (cpu << UNIT_SHIFT)
                "ldr {sum}, [{place}]",
                "add {sum}, {sum}, {value}",
                "mov {t}, #1",
                point!("2"),
                "str {sum}, [{place}]",          // *place = (*place).wrapping_add(value)
                "4:",
            ],
            abort: ["mov {t}, xzr", "b 5f",],
            place = out(reg) _,
            sum = out(reg) _,
            t = out(reg) done,
            area = out(reg) _,
            word = in(reg) word,
            units = in(reg) units,
            value = in(reg) value,
            off = in(reg) rseq_offset,
        }
    }
    done != 0
}

/// # Safety
/// As [`super::add_unless`].
#[inline(always)]
pub unsafe fn add_unless(
    flag: &AtomicU32,
    word: usize,
    units: usize,
    value: u64,
    rseq_offset: isize,
) -> usize {
    let done: usize;
    // SAFETY: by contract.
    unsafe {
        with_inject! {
            body: [
                point!("1"),
                "ldr {place:w}, [{flag}]",       // if flag.load(Relaxed) != 0
                "mov {t}, #2",
                "cbnz {place:w}, 5f",            //     return false
                "mov {t}, xzr",
                "ldr {place:w}, [{area}, #4]",
                "cmp {place}, {units}",          // no word here; not registered: 2³² − 1
                "b.hs 5f",
                "add {place}, {word}, {place}, lsl #18",
                "ldr {sum}, [{place}]",
                "add {sum}, {sum}, {value}",
                "mov {t}, #1",
                point!("2"),
                "str {sum}, [{place}]",          // add(word, cpu, value)
                "4:",
            ],
            abort: ["mov {t}, xzr", "b 5f",],
            place = out(reg) _,
            sum = out(reg) _,
            t = out(reg) done,
            area = out(reg) _,
            flag = in(reg) flag.as_ptr(),
            word = in(reg) word,
            units = in(reg) units,
            value = in(reg) value,
            off = in(reg) rseq_offset,
        }
    }
    done
}

/// # Safety
/// As [`super::cpu_id`].
#[inline(always)]
pub unsafe fn cpu_id(rseq_offset: isize) -> i32 {
    let cpu: u64;
    // SAFETY: by contract.
    unsafe {
        asm!(
            "mrs {cpu}, tpidr_el0",
            "add {cpu}, {cpu}, {off}",
            "ldr {cpu:w}, [{cpu}, #4]",
            cpu = out(reg) cpu,
            off = in(reg) rseq_offset,
            options(nostack, readonly, preserves_flags),
        );
    }
    cpu as i32
}

/// # Safety
/// As [`super::cpu_id`].
#[inline(always)]
pub unsafe fn descriptor(rseq_offset: isize) -> u64 {
    let descriptor: u64;
    // SAFETY: by contract.
    unsafe {
        asm!(
            "mrs {descriptor}, tpidr_el0",
            "add {descriptor}, {descriptor}, {off}",
            "ldr {descriptor}, [{descriptor}, #8]",
            descriptor = out(reg) descriptor,
            off = in(reg) rseq_offset,
            options(nostack, readonly, preserves_flags),
        );
    }
    descriptor
}

/// # Safety
/// As [`super::linger`].
#[inline(always)]
pub unsafe fn linger(stacks: &Stacks, words: &Lingering, attempt: u32) -> bool {
    let parked: u32;
    // SAFETY: by contract; only `words` is written to.
    unsafe {
        section! {
            body: [
                "ldrsw {t}, [{area}, #4]",
                "ldr {t}, [{table}, {t}, lsl #3]",
                "mov {parked:w}, #1",
                "cbz {t}, 5f",
                "mov {parked:w}, wzr",
                "str {attempt:w}, [{inside}]",
                "2:",
                "yield",
                "ldr {t:w}, [{go}]",
                "cbz {t:w}, 2b",
                "str {attempt:w}, [{done}]",
                "4:",
            ],
            abort: ["mov {parked:w}, wzr", "b 5f",],
            parked = out(reg) parked,
            t = out(reg) _,
            area = out(reg) _,
            table = in(reg) stacks.table,
            inside = in(reg) words.inside.as_ptr(),
            go = in(reg) words.go.as_ptr(),
            done = in(reg) words.done.as_ptr(),
            attempt = in(reg) attempt,
            off = in(reg) stacks.rseq_offset,
        }
    }
    parked != 0
}

/// This thread's pointer.
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register that is the thread's own.
    unsafe {
        asm!(
            "mrs {pointer}, tpidr_el0",
            pointer = out(reg) pointer,
            options(nostack, pure, nomem, preserves_flags),
        );
    }
    pointer
}

/// The distance from the thread pointer of this library's own `struct rseq` ([`super::super::own`]), in initial-exec
/// thread-local storage, with the initial content of a thread without registration.
///
/// # Safety
/// None.
#[unsafe(naked)]
pub unsafe extern "C" fn own_area() -> isize {
    core::arch::naked_asm!(
        ".pushsection .tdata.ebbtide_rseq, \"awT\", @progbits",
        ".balign 32",
        "ebbtide_own_rseq:",
        ".word 0, -1",       // cpu_id_start, cpu_id
        ".xword 0, 0, 0",    // rseq_cs, flags and the rest
        ".xword 0, 0, 0, 0", // the state
        ".popsection",
        "adrp x0, :gottprel:ebbtide_own_rseq",
        "ldr x0, [x0, :gottprel_lo12:ebbtide_own_rseq]",
        "ret",
    )
}
