//! What would free how much, and the one setting that matters most.

use std::cmp::Reverse;

use ebbtide_tools::out;
use serde::Serialize;

use super::heap::Sorted;
use super::parts::{
    CACHED, DIRTY, GUARDED, HUGE_FILL, IN_SPANS, LAZY, LIVE, Part, UNKNOWN, View, WAITING,
};
use super::runtimes::Runtime;

/// Something that makes the process smaller.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Advice {
    /// What to do.
    pub action: String,
    /// How much it frees at most, in bytes.
    pub frees_bytes: u64,
    /// Whether this memory is free, so that the action frees about this much. Otherwise it depends on the program.
    pub is_certain: bool,
    /// Why, or at what price.
    pub about: String,
}

/// What is known of the process beside its parts.
#[derive(Debug)]
pub struct Process {
    /// The process.
    pub pid: u32,
    /// Whether it runs under Ebbtide.
    pub has_ebbtide: bool,
    /// Whether it has a statistics page, through which it takes requests.
    pub has_page: bool,
    /// Its runtime.
    pub runtime: Option<Runtime>,
}

/// Less than this share of what is resident is not worth a line.
const LEAST_SHARE: f64 = 0.01;
/// From this share on, a setting matters.
const MATTERS: f64 = 0.1;
/// From this share on, a runtime's own heap matters, whatever is free in it.
const OTHERS_MATTER: f64 = 0.25;

/// Amounts of the parts by name.
struct Amounts<'a> {
    parts: &'a [Part],
    sorted: Option<&'a Sorted>,
    resident: u64,
}

impl Amounts<'_> {
    fn of(&self, names: &[&str]) -> u64 {
        let parts = self.parts.iter().filter(|part| names.contains(&part.name));
        parts.map(|part| part.bytes).sum()
    }

    /// Pages of spans without a live object.
    fn empty(&self) -> u64 {
        let empty = self.sorted.map_or(0, |sorted| sorted.empty_pages.resident);
        empty.min(self.of(&[IN_SPANS]))
    }

    /// What a release of all free memory returns at most.
    fn free(&self) -> u64 {
        self.of(&[DIRTY, LAZY, WAITING, CACHED]) + self.empty()
    }

    fn is_large(&self, bytes: u64, share: f64) -> bool {
        bytes as f64 >= self.resident as f64 * share && bytes > 0
    }
}

/// The list: first what is certain, then by size.
pub fn list(parts: &[Part], view: &View, process: &Process) -> Vec<Advice> {
    let amounts = amounts(parts, view);
    let pid = process.pid;
    let mut list = Vec::new();
    let mut add = |is_certain, frees_bytes, action: String, about: &str| {
        if amounts.is_large(frees_bytes, LEAST_SHARE) {
            list.push(Advice {
                action,
                frees_bytes,
                is_certain,
                about: about.into(),
            });
        }
    };
    if process.has_ebbtide {
        let (release, about) = match process.has_page {
            true => (
                format!("ebbtide release {pid}"),
                "returns all free memory now",
            ),
            false => (
                "malloc_trim(0) in the program".into(),
                "returns all free memory; with the key stats_dir, ebbtide release does it",
            ),
        };
        add(true, amounts.free(), release, about);
        for setting in settings(&amounts, process) {
            add(true, setting.bytes, setting.action, setting.price);
        }
        let between = amounts.of(&[IN_SPANS]) - amounts.empty();
        let about = "pages go when all their objects are freed";
        add(
            false,
            between,
            "end idle parts of the program".into(),
            about,
        );
        let about = "the program has allocated it";
        add(
            false,
            amounts.of(&[LIVE]),
            "free memory in the program".into(),
            about,
        );
    }
    let (action, about) = match process.runtime {
        Some(runtime) => (runtime.remedy, runtime.memory),
        None => (
            "unmap memory in the program",
            "its own mappings, or another allocator",
        ),
    };
    add(false, amounts.of(&["other_heaps"]), action.into(), about);
    let brk = amounts.of(&["brk_heap"]);
    add(
        false,
        brk,
        "malloc_trim(0) of libc".into(),
        "libc's own heap",
    );
    let about = "a stack keeps the pages that it once used";
    add(
        false,
        amounts.of(&["stacks"]),
        "fewer threads".into(),
        about,
    );
    list.sort_by_key(|advice| Reverse((advice.is_certain, advice.frees_bytes)));
    list
}

/// A setting that makes free memory smaller.
struct Setting {
    bytes: u64,
    /// What these bytes are.
    what: &'static str,
    action: String,
    price: &'static str,
}

fn settings(amounts: &Amounts<'_>, process: &Process) -> [Setting; 4] {
    [
        Setting {
            bytes: amounts.of(&[DIRTY]),
            what: "is free and kept for reuse",
            action: match process.has_page {
                true => format!("ebbtide set {} retain_ms=0", process.pid),
                false => "EBBTIDE_CONF=retain_ms=0".into(),
            },
            price: "memory that is wanted again costs page faults",
        },
        Setting {
            bytes: amounts.of(&[LAZY]),
            what: "is free and lazy: the kernel takes it when it needs it",
            action: "EBBTIDE_CONF=lazyfree=off".into(),
            price: "memory that is wanted again costs page faults",
        },
        Setting {
            bytes: amounts.of(&[HUGE_FILL]),
            what: "is unused, inside huge pages",
            action: "EBBTIDE_CONF=thp=off".into(),
            price: "the program needs more time for its memory",
        },
        Setting {
            bytes: amounts.of(&[GUARDED]),
            what: "is in guarded objects, in pages of their own",
            action: "EBBTIDE_CONF=guard=off".into(),
            price: "misuse of the heap is not reported",
        },
    ]
}

fn amounts<'a>(parts: &'a [Part], view: &'a View) -> Amounts<'a> {
    Amounts {
        parts,
        sorted: match view {
            View::Records(sorted) => Some(sorted),
            _ => None,
        },
        resident: parts.iter().map(|part| part.bytes).sum(),
    }
}

/// The one setting that matters most, in a line.
pub fn conclusion(parts: &[Part], view: &View, process: &Process) -> String {
    let amounts = amounts(parts, view);
    let settings = settings(&amounts, process).into_iter();
    let largest = settings.max_by_key(|setting| setting.bytes);
    if let Some(Setting {
        bytes,
        what,
        action,
        ..
    }) = largest
        && process.has_ebbtide
        && amounts.is_large(bytes, MATTERS)
    {
        return format!("{} {what}. What matters most: {action}", out::bytes(bytes));
    }
    let other = amounts.of(&["other_heaps"]);
    if let Some(runtime) = process.runtime
        && amounts.is_large(other, OTHERS_MATTER)
    {
        let (bytes, memory) = (out::bytes(other), runtime.memory);
        return format!(
            "{bytes} is not from malloc: {memory}. What may matter most: {}",
            runtime.remedy
        );
    }
    let largest = parts.iter().max_by_key(|part| part.bytes);
    let Some(largest) = largest else {
        return "Nothing is resident.".into();
    };
    if largest.name == UNKNOWN {
        return "What matters is unknown: run this as root, or start the program with the key stats_dir.".into();
    }
    let percent = largest.bytes * 100 / amounts.resident.max(1);
    format!(
        "No setting matters much here: the largest part, {percent} %, is: {}.",
        largest.title
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::heap::Bytes;

    fn part(name: &'static str, mib: u64) -> Part {
        Part {
            name,
            title: name,
            bytes: mib << 20,
            swapped_bytes: 0,
            about: String::new(),
        }
    }

    fn process(has_page: bool) -> Process {
        Process {
            pid: 7,
            has_ebbtide: true,
            has_page,
            runtime: None,
        }
    }

    #[test]
    fn kept_memory_is_released_through_the_page() {
        let parts = [part(LIVE, 100), part(DIRTY, 500), part(IN_SPANS, 30)];
        let sorted = Sorted {
            empty_pages: Bytes {
                resident: 10 << 20,
                swapped: 0,
            },
            ..Sorted::default()
        };
        let view = View::Records(Box::new(sorted));
        let list = list(&parts, &view, &process(true));
        let found: Vec<(&str, u64)> = list
            .iter()
            .map(|advice| (advice.action.as_str(), advice.frees_bytes >> 20))
            .collect();
        let expected = [
            ("ebbtide release 7", 510),
            ("ebbtide set 7 retain_ms=0", 500),
            ("free memory in the program", 100),
            ("end idle parts of the program", 20),
        ];
        assert_eq!(found, expected);
        let line = conclusion(&parts, &view, &process(true));
        assert!(
            line.ends_with("ebbtide set 7 retain_ms=0") && line.starts_with("500.0 MiB"),
            "{line}"
        );
        let line = conclusion(&parts, &view, &process(false));
        assert!(line.ends_with("EBBTIDE_CONF=retain_ms=0"), "{line}");
    }

    #[test]
    fn a_program_that_uses_its_memory_needs_no_setting() {
        let parts = [part(LIVE, 95), part(DIRTY, 5)];
        let line = conclusion(&parts, &View::Nothing, &process(true));
        assert!(
            line.contains("No setting") && line.contains("95 %"),
            "{line}"
        );
        let without = Process {
            has_ebbtide: false,
            ..process(false)
        };
        assert!(list(&[part("other_heaps", 5)], &View::Nothing, &without).len() == 1);
        let line = conclusion(&[part(UNKNOWN, 9)], &View::Nothing, &process(false));
        assert!(line.contains("unknown"), "{line}");
        assert_eq!(
            conclusion(&[], &View::Nothing, &without),
            "Nothing is resident."
        );
    }
}
