//! x86-64.

use super::super::{CALLS_OFFSET, Counted, Counting, SIZES_OFFSET, Stacks, stack_start};
use super::Lingering;
use core::arch::asm;
use core::sync::atomic::AtomicU32;

/// Whether there are sections in this build.
pub const SECTIONS: bool = true;
/// Whether a kernel is known that leaves sections of this processor running where it should abort them.
pub const BREAKS_ON_SOME_KERNELS: bool = false;
/// What glibc registers with.
pub const SIGNATURE: u32 = 0x5305_3053;

/// The signature before an abort handler, as an instruction that traps.
macro_rules! signature {
    ($label:literal) => {
        concat!(".byte 0x0f, 0xb9, 0x3d\n", ".long 0x53053053\n", $label)
    };
}

macro_rules! publish {
    () => {
        concat!(
            "lea {t}, [rip + 9b]\n",
            "mov qword ptr fs:[{off} + 8], {t}\n",
        )
    };
}

#[cfg(feature = "inject")]
macro_rules! breakpoint {
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

#[cfg(feature = "inject")]
macro_rules! injected {
    ($($section:tt)*) => { section! { $($section)* inject = sym super::INJECT, } };
}

/// A pop, with the lines of its counts. They leave by `6b` where a countdown is at its end.
macro_rules! popping {
    ($stacks:ident, $class:ident, [$($count:expr,)*], $($operands:tt)*) => {{
        let entry: usize;
        // SAFETY: by the caller's contract; INV-RSEQ-2 and -3 make the addresses valid. Counted words are in the header page.
        unsafe {
            with_inject! {
                body: [
                    point!("1"),
                    "movsxd {slab}, dword ptr fs:[{off} + 4]", // cpu_id, −1 or −2 when unregistered
                    "mov {slab}, [{table} + {slab}*8]",
                    "add {slab}, {parked}",
                    "lea {place}, [{slab} + {class}*8]",
                    point!("2"),
                    "mov {t}, [{place}]",            // let header = self.header(class)
                    "mov {entry}, [{t} - 8]",        // let entry = Self::entry(header - 8)
                    point!("3"),
                    "test {entry}, {entry}",         // if entry == 0
                    "jz 5f",                         //     return None
                    $($count,)*
                    "sub {t}, 8",
                    point!("4"),
                    "mov [{place}], {t}",            // commit(header - 8)
                    "4:",
                ],
                abort: ["xor {entry:e}, {entry:e}", "jmp 5f",],
                entry = out(reg) entry,
                slab = out(reg) _,
                place = out(reg) _,
                t = out(reg) _,
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
                "sub qword ptr [{slab} + {sizes}], {size}", // self.count(SIZES_OFFSET, size)
                "jle 6b",                                   // <= 0: return None
            ],
            size = in(reg) size,
            sizes = const SIZES_OFFSET,
        ),
        Counting::Call => popping!(
            stacks, class,
            [
                "sub qword ptr [{slab} + {calls}], 1", // self.count(CALLS_OFFSET, 1)
                "jle 6b",
            ],
            calls = const CALLS_OFFSET,
        ),
        Counting::Both(size) => popping!(
            stacks, class,
            [
                "sub qword ptr [{slab} + {calls}], 1",
                "jle 6b",
                "sub qword ptr [{slab} + {sizes}], {size}",
                "jle 6b",
            ],
            size = in(reg) size,
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
                "movsxd {word}, dword ptr fs:[{off} + 4]",
                "mov {word}, [{table} + {word}*8]",
                "test {word}, {word}",
                "jz 6b",                         // parked
                "add {word}, {place}",
                point!("2"),
                "mov {left}, [{word}]",          // (*word).wrapping_sub(value)
                "sub {left}, {value}",
                point!("3"),
                "mov [{word}], {left}",          // *word = …
                "4:",
            ],
            abort: ["xor {t:e}, {t:e}", "jmp 5f",],
            word = out(reg) word,
            left = out(reg) left,
            t = out(reg) done,
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
    done
}

/// # Safety
/// As [`super::cpu_id`].
#[inline(always)]
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

/// # Safety
/// As [`super::cpu_id`].
#[inline(always)]
pub unsafe fn descriptor(rseq_offset: isize) -> u64 {
    let descriptor: u64;
    // SAFETY: by contract.
    unsafe {
        asm!(
            "mov {descriptor}, qword ptr fs:[{off} + 8]",
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
                "movsxd {t}, dword ptr fs:[{off} + 4]",
                "mov {parked:e}, 1",
                "cmp qword ptr [{table} + {t}*8], 0",
                "je 5f",
                "xor {parked:e}, {parked:e}",
                "mov [{inside}], {attempt:e}",
                "2:",
                "pause",
                "cmp dword ptr [{go}], 0",
                "je 2b",
                "mov [{done}], {attempt:e}",
                "4:",
            ],
            abort: ["xor {parked:e}, {parked:e}", "jmp 5f",],
            parked = out(reg) parked,
            t = out(reg) _,
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
    // SAFETY: the ABI keeps the thread pointer itself in the first word of the thread's block.
    unsafe {
        asm!(
            "mov {pointer}, qword ptr fs:[0]",
            pointer = out(reg) pointer,
            options(nostack, pure, readonly, preserves_flags),
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
        ".long 0, -1",      // cpu_id_start, cpu_id
        ".quad 0, 0, 0",    // rseq_cs, flags and the rest
        ".quad 0, 0, 0, 0", // the state
        ".popsection",
        "mov rax, qword ptr [rip + ebbtide_own_rseq@GOTTPOFF]",
        "ret",
    )
}
