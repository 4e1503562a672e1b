//! `ebbtide explain`: why the resident memory of a process is as high as it is.
//!
//! ```text
//!  smaps ────────▶ owners ──── what each mapping is for ──┐
//!  pagemap ──▶ residency ─┐                               ├▶ parts ──▶ advice ──▶ text, JSON
//!  memory ── places ──────┴▶ heap ── each page by records ┘
//! ```
//!
//! The kernel says how much is resident; the heap's own records say what these pages are. The process does nothing for it and is not
//! stopped. Reading the records needs the right to trace the process. Without it, the figures of the statistics page are used.

mod advice;
mod heap;
mod owners;
mod parts;
mod residency;
mod runtimes;
mod text;

use std::collections::HashMap;

use anyhow::{Result, bail};
use ebbtide_interface::records::{CLASSES, Owner, class_bytes};
use ebbtide_interface::{Figures, page};
use ebbtide_tools::proc::Stat;
use ebbtide_tools::{library, out};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::cli::ExplainArgs;
use crate::memory::{self, Memory, Range};
use crate::profile;
use crate::smaps::{self, Mapping};
use crate::top::find::{self, Scope};
use advice::{Advice, Process};
use heap::Sorted;
use parts::{About, Part, View};
use residency::Residency;

/// What is printed.
#[derive(Debug, Serialize)]
pub struct Explained {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub program: String,
    /// What the kernel counts as resident: the sum of the parts.
    pub rss_bytes: u64,
    /// What is swapped out beside it.
    pub swap_bytes: u64,
    /// `records`, `figures`, `kernel`: from where the heap's parts are known.
    pub source: &'static str,
    /// The parts of the resident memory.
    pub parts: Vec<Part>,
    /// Size classes with memory between live objects, most first.
    pub classes: Vec<Class>,
    /// What would free memory.
    pub advice: Vec<Advice>,
    /// The one setting that matters most.
    pub conclusion: String,
    /// What could not be read, and why.
    pub notes: Vec<String>,
}

/// Resident memory of a size class.
#[derive(Debug, Serialize)]
pub struct Class {
    /// Bytes of an object.
    pub object_bytes: u64,
    /// In use by the program.
    pub live_bytes: u64,
    /// Free between live objects.
    pub free_bytes: u64,
    /// The place that allocated most live objects of the class, if the process takes samples.
    pub pinned_by: Option<String>,
}

/// Prints where the memory of a process is.
pub fn main(args: &ExplainArgs) -> Result<u8> {
    let explained = explain(args.pid)?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&explained)? + "\n",
        false => text::of(&explained),
    };
    out::stdout(text.as_bytes());
    Ok(0)
}

fn explain(pid: u32) -> Result<Explained> {
    let Some(stat) = Stat::read(pid).filter(|stat| !stat.is_over()) else {
        bail!("{}", find::gone(pid));
    };
    let page = Page::find(pid)?;
    let mappings = smaps::read(pid, "smaps")?;
    if mappings.is_empty() {
        bail!("process {pid} has no memory of its own: it is a thread of the kernel, or has ended");
    }
    let mut notes = page.notes;
    let view = match &page.memory {
        Some(memory) => read_records(pid, memory, &page.words, &mappings, &mut notes),
        None => None,
    };
    let view = view.unwrap_or_else(|| match page.figures {
        Some(figures) => {
            notes.push(estimate(&figures));
            View::Figures(Box::new(figures))
        }
        None => View::Nothing,
    });
    if !page.has_ebbtide {
        notes.push(format!(
            "process {pid} does not run under Ebbtide, or has it linked in and may not be read"
        ));
    }
    let about = About {
        has_ebbtide: page.has_ebbtide,
        retain_ms: page.words.as_ref().map(|_| page.retain_ms),
        runtime: runtimes::find(&mappings)
            .filter(|runtime| page.has_ebbtide || !runtime.needs_ebbtide),
    };
    let sides = owners::sort(&mappings, &page.ranges, &owners::stack_pointers(pid));
    let parts = parts::all(&sides, &view, &about);
    let process = Process {
        pid,
        has_ebbtide: page.has_ebbtide,
        has_page: page.has_file,
        runtime: about.runtime,
    };
    let sum = |count: fn(&Mapping) -> u64| mappings.iter().map(count).sum();
    Ok(Explained {
        pid,
        program: stat.name,
        rss_bytes: sum(|mapping| mapping.counted.resident),
        swap_bytes: sum(|mapping| mapping.counted.swapped),
        source: match view {
            View::Records(_) => "records",
            View::Figures(_) => "figures",
            View::Nothing => "kernel",
        },
        classes: classes(&view, &profile::places_by_size(pid)),
        advice: advice::list(&parts, &view, &process),
        conclusion: advice::conclusion(&parts, &view, &process),
        parts,
        notes,
    })
}

/// The statistics page of a process, in a file or in its memory.
struct Page {
    has_ebbtide: bool,
    has_file: bool,
    /// The words, if any could be read.
    words: Option<Vec<u64>>,
    /// The figures, if the process ever wrote them.
    figures: Option<Figures>,
    retain_ms: u64,
    ranges: Vec<Range>,
    memory: Option<Memory>,
    notes: Vec<String>,
}

impl Page {
    fn find(pid: u32) -> Result<Self> {
        let mappings = smaps::read(pid, "maps")?;
        let file = find::search(&Scope::Pids(vec![pid])).found.pop();
        let file = file.and_then(|found| found.page.ok()?.words());
        let has_library = mappings.iter().any(|it| library::is_named(it.file_name()));
        let mut notes = Vec::new();
        let memory = Memory::open(pid, &mappings);
        let inside = memory
            .as_ref()
            .ok()
            .and_then(|memory| memory::find_page(memory, &mappings));
        let has_ebbtide = has_library || file.is_some() || inside.is_some();
        if let Err(error) = &memory
            && has_ebbtide
        {
            notes.push(memory::refused(pid, error));
        }
        let has_file = file.is_some();
        let words = inside.or(file);
        let mut ranges = words.as_deref().map_or(Vec::new(), memory::ranges);
        if ranges.is_empty() && has_ebbtide {
            ranges.extend(owners::guess_heap(&mappings));
            notes.push("Ebbtide's own figures are unknown: its heap is shown as one part".into());
        }
        let read = words
            .as_deref()
            .map(|words| Figures::from_values(|at| words[page::FIRST + at]));
        Ok(Self {
            has_ebbtide,
            has_file,
            retain_ms: read.map_or(0, |figures| figures.retain_ms),
            figures: read.filter(|figures| figures.written_ms != 0),
            words,
            ranges,
            memory: memory.ok(),
            notes,
        })
    }
}

/// Sorts the heap's pages by its records.
fn read_records(
    pid: u32,
    memory: &Memory,
    words: &Option<Vec<u64>>,
    mappings: &[Mapping],
    notes: &mut Vec<String>,
) -> Option<View> {
    let places = memory::places(words.as_deref()?)?;
    let ranges = memory::ranges(words.as_deref()?);
    let heap = ranges.iter().find(|range| range.owner == Owner::Heap)?;
    let inside = mappings
        .iter()
        .filter(|it| it.start < heap.end && it.end > heap.start);
    let used = inside.filter(|it| it.counted.resident + it.counted.swapped > 0);
    let (mut resident, mut parts) = (0, Vec::new());
    for mapping in used {
        resident += mapping.counted.resident;
        parts.push((mapping.start.max(heap.start), mapping.end.min(heap.end)));
    }
    let sorted = Residency::read(pid, places.base, &parts).and_then(|mut residency| {
        residency.fit(resident);
        heap::sort(memory, &places, &residency)
    });
    match sorted {
        Ok(sorted) => Some(View::Records(Box::new(sorted))),
        Err(error) => {
            notes.push(format!("the heap's records could not be read: {error}"));
            None
        }
    }
}

/// The size classes of the heap.
fn classes(view: &View, places: &HashMap<u64, String>) -> Vec<Class> {
    let View::Records(sorted) = view else {
        return Vec::new();
    };
    let Sorted { classes, .. } = &**sorted;
    let class = |class: usize| Class {
        object_bytes: class_bytes(class) as u64,
        live_bytes: classes[class].0,
        free_bytes: classes[class].1,
        pinned_by: places.get(&(class_bytes(class) as u64)).cloned(),
    };
    let mut classes: Vec<Class> = (1..CLASSES)
        .map(class)
        .filter(|it| it.free_bytes > 0)
        .collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.free_bytes));
    classes
}

/// Says what estimates from figures are worth.
fn estimate(figures: &Figures) -> String {
    let now = clock_gettime(ClockId::Monotonic);
    let now_ms = now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000;
    let age_ms = now_ms.saturating_sub(figures.written_ms);
    format!(
        "the heap's parts are estimates from figures that are {}.{} s old; they include memory that was never touched",
        age_ms / 1000,
        age_ms % 1000 / 100
    )
}
