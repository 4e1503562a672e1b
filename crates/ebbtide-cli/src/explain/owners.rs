//! Sorts the mappings of a process by what they are for.

use std::fs;

use ebbtide_interface::records::Owner;
use ebbtide_tools::library;
use ebbtide_tools::proc;

use crate::memory::Range;
use crate::smaps::{Counted, Mapping};

/// What a mapping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ebbtide's.
    Ebbtide(Owner),
    /// `brk`: the heap of libc or of another allocator.
    Brk,
    /// A thread's stack.
    Stack,
    /// A program or library: code, data, and the zeroed data behind it; any other mapped file.
    File,
    /// Memory that other processes may share.
    Shared,
    /// Anonymous memory of the program itself, of a runtime or of another allocator.
    Other,
}

/// The counts of each kind.
#[derive(Debug, Default)]
pub struct Sides(Vec<(Kind, Counted)>);

impl Sides {
    /// What the kernel counts of a kind.
    pub fn of(&self, kind: Kind) -> Counted {
        let found = self.0.iter().find(|(it, _)| *it == kind);
        found.map(|(_, counted)| *counted).unwrap_or_default()
    }

    fn add(&mut self, kind: Kind, counted: &Counted) {
        match self.0.iter_mut().find(|(it, _)| *it == kind) {
            Some((_, sum)) => sum.add(counted),
            None => self.0.push((kind, *counted)),
        }
    }
}

/// Sorts the mappings. `stacks`: addresses in stacks of threads.
pub fn sort(mappings: &[Mapping], ranges: &[Range], stacks: &[u64]) -> Sides {
    let mut sides = Sides::default();
    let mut before: Option<(&Mapping, Kind)> = None;
    for mapping in mappings {
        let kind = kind(mapping, ranges, stacks, before);
        sides.add(kind, &mapping.counted);
        before = Some((mapping, kind));
    }
    sides
}

fn kind(
    mapping: &Mapping,
    ranges: &[Range],
    stacks: &[u64],
    before: Option<(&Mapping, Kind)>,
) -> Kind {
    let has = |address: &u64| (mapping.start..mapping.end).contains(address);
    // The kernel joins neighbours with the same rights: the larger part decides.
    let overlap = |range: &Range| {
        let end = range.end.min(mapping.end);
        end.saturating_sub(range.start.max(mapping.start))
    };
    let range = ranges.iter().max_by_key(|range| overlap(range));
    if let Some(range) = range.filter(|range| overlap(range) > 0) {
        return Kind::Ebbtide(range.owner);
    }
    let path = mapping.path.as_str();
    let is_shared = mapping.permissions.ends_with('s');
    let memory_files = ["/dev/shm/", "/memfd:", "/SYSV", "/dev/zero", "[anon_shmem:"];
    if is_shared && memory_files.iter().any(|prefix| path.starts_with(prefix)) {
        return Kind::Shared;
    }
    if path == "[heap]" {
        return Kind::Brk;
    }
    if path.starts_with("[stack")
        || path.starts_with("[anon:stack")
        || path.contains("thread stack")
    {
        return Kind::Stack;
    }
    if path.starts_with('/') || matches!(path, "[vdso]" | "[vvar]" | "[vsyscall]" | "[vvar_vclock]")
    {
        return Kind::File;
    }
    let is_next_to =
        |kind| before.is_some_and(|(before, its)| its == kind && before.end == mapping.start);
    if mapping.is_anonymous() && mapping.is_private_data() {
        if stacks.iter().any(has) || has_guard(before.map(|(before, _)| before), mapping) {
            return Kind::Stack;
        }
        // The zeroed data of a program or library.
        if is_next_to(Kind::File) && before.is_some_and(|(before, _)| before.is_private_data()) {
            return Kind::File;
        }
    }
    Kind::Other
}

/// Whether this looks like the stack of a thread: above a small guard that nobody may touch, and of a usual size.
fn has_guard(before: Option<&Mapping>, mapping: &Mapping) -> bool {
    const USUAL: [u64; 4] = [1 << 20, 2 << 20, 4 << 20, 8 << 20];
    before.is_some_and(|guard| {
        let guard_bytes = guard.end - guard.start;
        guard.permissions == "---p"
            && guard.is_anonymous()
            && guard.end == mapping.start
            && guard_bytes <= 64 << 10
            && USUAL
                .iter()
                .any(|size| (mapping.end - guard.start).abs_diff(*size) <= 64 << 10)
    })
}

/// An address in the stack of each thread that waits in the kernel. Empty without the right to trace the process.
pub fn stack_pointers(pid: u32) -> Vec<u64> {
    let tasks = proc::numbers_in(format!("/proc/{pid}/task"), "");
    let pointer = |task: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{task}/syscall")).ok()?;
        let mut fields = text.split_ascii_whitespace().rev();
        let pointer = fields.nth(1)?.strip_prefix("0x")?;
        u64::from_str_radix(pointer, 16).ok()
    };
    tasks.iter().filter_map(pointer).collect()
}

/// The heap, as far as it can be recognised without the statistics page: a reservation of at least 64 GiB that begins at a multiple of
/// 1 GiB.
pub fn guess_heap(mappings: &[Mapping]) -> Option<Range> {
    const LEAST: u64 = 64 << 30;
    if !mappings
        .iter()
        .any(|mapping| library::is_named(mapping.file_name()))
    {
        return None;
    }
    let mut run: Option<(u64, u64)> = None;
    let mut best: Option<(u64, u64)> = None;
    for mapping in mappings {
        let is_part = mapping.is_anonymous() && mapping.permissions.ends_with('p');
        run = match run {
            Some((start, end)) if is_part && end == mapping.start => Some((start, mapping.end)),
            _ if is_part && mapping.start % (1 << 30) == 0 => Some((mapping.start, mapping.end)),
            _ => None,
        };
        let length = |run: Option<(u64, u64)>| run.map_or(0, |(start, end)| end - start);
        if length(run) > length(best) {
            best = run;
        }
    }
    let (start, end) = best.filter(|(start, end)| end - start >= LEAST)?;
    Some(Range {
        owner: Owner::Heap,
        start,
        end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smaps::parse;

    const MAPS: &str = "\
400000-401000 r-xp 00000000 08:01 4 /usr/bin/x
Rss: 4 kB
401000-402000 rw-p 00000000 08:01 4 /usr/bin/x
Rss: 4 kB
402000-404000 rw-p 00000000 00:00 0 
Rss: 8 kB
900000-920000 rw-p 00000000 00:00 0 [heap]
Rss: 16 kB
40000000-60000000 rw-p 00000000 00:00 0 
Rss: 32 kB
60000000-1040000000 ---p 00000000 00:00 0 
7f0000000000-7f0000001000 ---p 00000000 00:00 0 
7f0000001000-7f0000800000 rw-p 00000000 00:00 0 
Rss: 64 kB
7f0001000000-7f0001100000 rw-p 00000000 00:00 0 
Rss: 128 kB
7f0001200000-7f0001300000 rw-p 00000000 00:00 0 
Rss: 256 kB
7f0002000000-7f0002100000 rw-s 00000000 00:01 8 /memfd:x (deleted)
Rss: 512 kB
7f0003000000-7f0003001000 r-xp 00000000 08:01 9 /usr/lib/libebbtide.so
Rss: 4 kB
7fff00000000-7fff00021000 rw-p 00000000 00:00 0 [stack]
Rss: 1024 kB
";

    fn kib(sides: &Sides, kind: Kind) -> u64 {
        sides.of(kind).resident / 1024
    }

    #[test]
    fn each_mapping_has_a_kind() {
        let mappings = parse(MAPS);
        let heap = guess_heap(&mappings).unwrap();
        assert_eq!((heap.start, heap.end), (0x4000_0000, 0x10_4000_0000));
        let sides = sort(&mappings, &[heap], &[0x7f00_0100_1000]);
        let kinds = [
            (Kind::Ebbtide(Owner::Heap), 32),
            (Kind::Brk, 16),
            // A guard below it, a stack pointer in it, the kernel's name.
            (Kind::Stack, 64 + 128 + 1024),
            (Kind::File, 4 + 4 + 8 + 4),
            (Kind::Shared, 512),
            (Kind::Other, 256),
        ];
        for (kind, expected) in kinds {
            assert_eq!(kib(&sides, kind), expected, "{kind:?}");
        }
        let all: u64 = kinds.iter().map(|(_, kib)| kib).sum();
        let sum: u64 = mappings.iter().map(|it| it.counted.resident / 1024).sum();
        assert_eq!(sum, all);
    }

    #[test]
    fn a_heap_is_only_guessed_beside_the_library() {
        let without = MAPS.replace("libebbtide", "libother");
        assert_eq!(guess_heap(&parse(&without)), None);
    }
}
