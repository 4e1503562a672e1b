//! The columns, and the order of the rows: for the view, for a plain table, and as JSON.

use std::cmp::Ordering;

use ebbtide_tools::out::{duration, short_bytes};
use serde::Serialize;

use crate::top::watch::{Process, Untold, Watch};

/// A column.
#[derive(Debug)]
pub struct Column {
    /// Above it.
    pub title: &'static str,
    /// What it means.
    pub about: &'static str,
    /// Where there is no room, those with the highest go first.
    pub rank: u8,
    /// At most so many characters.
    pub width: u16,
    /// What stands in it.
    pub cell: fn(&Process) -> String,
}

/// Columns that are aligned to the left.
pub const LEFT: [&str; 2] = ["NAME", "EXIT"];

const fn column(
    title: &'static str,
    rank: u8,
    width: u16,
    cell: fn(&Process) -> String,
    about: &'static str,
) -> Column {
    Column {
        title,
        about,
        rank,
        width,
        cell,
    }
}

/// All of them, in their order.
pub const COLUMNS: &[Column] = &[
    column("PID", 0, 7, |p| p.pid.to_string(), "the process"),
    column("NAME", 0, 15, |p| p.name.clone(), "its program"),
    column(
        "RSS",
        1,
        5,
        |p| short_bytes(p.rss_bytes),
        "resident now; after the end, with its helper",
    ),
    column(
        "NOLAZY",
        4,
        6,
        no_lazy,
        "of that, without pages that the kernel may take",
    ),
    column(
        "LIVE",
        2,
        5,
        |p| short_bytes(p.figures.live_bytes),
        "with the program, resident as far as touched",
    ),
    column(
        "DIRTY",
        3,
        5,
        |p| short_bytes(p.figures.dirty_bytes),
        "freed, and still there",
    ),
    column(
        "LAZY",
        5,
        5,
        |p| short_bytes(p.figures.lazy_bytes),
        "freed, and the kernel's to take",
    ),
    column(
        "PEND",
        9,
        5,
        |p| short_bytes(p.figures.pending_bytes),
        "on its way to the kernel",
    ),
    column(
        "UNSPLIT",
        10,
        7,
        |p| short_bytes(p.figures.unsplit_bytes),
        "in huge pages that could not be split",
    ),
    column(
        "CACHED",
        8,
        6,
        |p| short_bytes(p.figures.cached_bytes),
        "in the caches of the CPUs",
    ),
    column(
        "BACK/s",
        3,
        6,
        back,
        "given back to the kernel, by the second",
    ),
    column(
        "BACK",
        6,
        5,
        |p| short_bytes(p.figures.released_bytes),
        "given back since it began",
    ),
    column(
        "AGAIN",
        7,
        5,
        |p| short_bytes(p.figures.refaulted_bytes),
        "given back, and used again",
    ),
    column(
        "WORKERS",
        11,
        8,
        |p| duration(p.figures.worker_ns),
        "time that workers spent releasing",
    ),
    column("EXIT", 12, 8, exit, "how it ends: inline or detached"),
    column(
        "HELPER",
        13,
        7,
        helper,
        "the process that takes its memory back",
    ),
];

fn no_lazy(p: &Process) -> String {
    p.rss_without_lazy_bytes.map_or("-".into(), short_bytes)
}

fn back(p: &Process) -> String {
    p.rates
        .map_or("-".into(), |rates| short_bytes(rates.back()))
}

fn exit(p: &Process) -> String {
    let shown = match p.ended {
        Some(_) if p.is_going() => "going",
        Some(_) => "ended",
        None => p.exit,
    };
    shown.into()
}

fn helper(p: &Process) -> String {
    match p.figures.helper {
        0 => "-".into(),
        pid => pid.to_string(),
    }
}

/// The columns for which there is room.
pub fn fitting(width: u16) -> Vec<&'static Column> {
    let mut columns: Vec<&Column> = COLUMNS.iter().collect();
    // Each with a blank behind it.
    let needed = |columns: &[&Column]| columns.iter().map(|c| c.width + 1).sum::<u16>() - 1;
    while columns.len() > 2 && needed(&columns) > width {
        let last = columns.iter().map(|c| c.rank).max();
        columns.retain(|c| Some(c.rank) != last || c.rank == 0);
    }
    columns
}

/// What the rows are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Most resident first.
    Rss,
    /// Most with the program first.
    Live,
    /// Most free and still there first, lazy included.
    Free,
    /// Most given back lately first.
    Back,
    /// By name.
    Name,
    /// By number.
    Pid,
}

impl Sort {
    /// What a key press makes of it.
    pub fn next(self) -> Self {
        match self {
            Sort::Rss => Sort::Live,
            Sort::Live => Sort::Free,
            Sort::Free => Sort::Back,
            Sort::Back => Sort::Name,
            Sort::Name => Sort::Pid,
            Sort::Pid => Sort::Rss,
        }
    }

    /// In words.
    pub fn shown(self) -> &'static str {
        match self {
            Sort::Rss => "resident",
            Sort::Live => "live",
            Sort::Free => "freed and there",
            Sort::Back => "given back",
            Sort::Name => "name",
            Sort::Pid => "number",
        }
    }

    /// Living processes first; where two are alike, the lower number.
    pub fn order(self, a: &Process, b: &Process) -> Ordering {
        let free = |p: &Process| p.figures.dirty_bytes + p.figures.lazy_bytes;
        let back = |p: &Process| p.rates.map_or(0, |rates| rates.back());
        let by = match self {
            Sort::Rss => b.rss_bytes.cmp(&a.rss_bytes),
            Sort::Live => b.figures.live_bytes.cmp(&a.figures.live_bytes),
            Sort::Free => free(b).cmp(&free(a)),
            Sort::Back => back(b).cmp(&back(a)),
            Sort::Name => a.name.cmp(&b.name),
            Sort::Pid => Ordering::Equal,
        };
        let ended = |p: &Process| p.ended.is_some();
        (ended(a).cmp(&ended(b))).then(by).then(a.pid.cmp(&b.pid))
    }

    /// The processes in this order.
    pub fn sorted(self, processes: &[Process]) -> Vec<&Process> {
        let mut rows: Vec<&Process> = processes.iter().collect();
        rows.sort_by(|a, b| self.order(a, b));
        rows
    }
}

/// A plain table with all columns, and what is to be said below it.
pub fn text(watch: &Watch, sort: Sort) -> String {
    let rows = sort.sorted(&watch.processes);
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|process| COLUMNS.iter().map(|c| (c.cell)(process)).collect())
        .collect();
    let width = |at: usize| {
        let widths = cells.iter().map(|row| row[at].chars().count());
        widths.chain([COLUMNS[at].title.len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (at, cell) in cells.enumerate() {
            let width = widths[at];
            line.push_str(&match LEFT.contains(&COLUMNS[at].title) {
                true => format!("{cell:<width$}  "),
                false => format!("{cell:>width$}  "),
            });
        }
        line.trim_end().to_owned() + "\n"
    };
    let mut text = String::new();
    if rows.is_empty() {
        text.push_str("No process with figures.\n");
    } else {
        text.push_str(&line(&mut COLUMNS.iter().map(|c| c.title)));
        for row in &cells {
            text.push_str(&line(&mut row.iter().map(String::as_str)));
        }
    }
    for note in notes(watch) {
        text.push_str(&note);
        text.push('\n');
    }
    text
}

/// What is to be said of processes that are not shown.
pub fn notes(watch: &Watch) -> Vec<String> {
    const NAMED: usize = 5;
    let mut notes = Vec::new();
    let (soon, untold): (Vec<&Untold>, Vec<&Untold>) = watch.untold.iter().partition(|u| u.soon);
    let names = |some: &[&Untold]| {
        let names = some
            .iter()
            .take(NAMED)
            .map(|u| format!("{} {}", u.pid, u.name));
        let more = some.len().saturating_sub(NAMED);
        let more = (more > 0).then(|| format!("and {more} more"));
        names.chain(more).collect::<Vec<_>>().join(", ")
    };
    if !untold.is_empty() {
        notes.push(format!(
            "Under Ebbtide, but without figures: {}. Start them with EBBTIDE_CONF=stats_dir=/DIRECTORY, or by \
             'ebbtide run --conf stats_dir=/DIRECTORY -- …'; any directory they may write to will do, such as /dev/shm.",
            names(&untold)
        ));
    }
    if !soon.is_empty() {
        notes.push(format!(
            "Forked, with figures of their own as soon as they allocate more: {}.",
            names(&soon)
        ));
    }
    if watch.hidden > 0 {
        notes.push(format!(
            "Not looked at: {}, of other users (root sees them) or closed to everybody.",
            watch.hidden
        ));
    }
    notes
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    processes: Vec<&'a Process>,
    without_figures: &'a [Untold],
    hidden_processes: usize,
}

/// One JSON object and a line feed.
pub fn json(watch: &Watch, sort: Sort) -> String {
    let json = Json {
        schema: 1,
        processes: sort.sorted(&watch.processes),
        without_figures: &watch.untold,
        hidden_processes: watch.hidden,
    };
    serde_json::to_string(&json).unwrap_or_default() + "\n"
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::top::find::Scope;
    use std::time::Instant;

    /// A process with some figures.
    pub fn process(pid: u32, name: &str, rss: u64, live: u64, dirty: u64) -> Process {
        let mut process = Process::new(pid, 0);
        process.name = name.into();
        process.rss_bytes = rss;
        process.figures.figures.live_bytes = live;
        process.figures.figures.dirty_bytes = dirty;
        process
    }

    /// Three of them.
    pub fn watch() -> Watch {
        let mut watch = Watch::new(Scope::Pids(Vec::new()));
        watch.processes = vec![
            process(7, "small", 10 << 20, 9 << 20, 0),
            process(8, "large", 3 << 30, 1 << 30, 1 << 30),
            process(9, "idle", 3 << 20, 2 << 20, 2 << 30),
        ];
        watch
    }

    fn order(watch: &Watch, sort: Sort) -> Vec<u32> {
        sort.sorted(&watch.processes)
            .iter()
            .map(|p| p.pid)
            .collect()
    }

    #[test]
    fn rows_are_ordered_and_the_ended_come_last() {
        let mut watch = watch();
        assert_eq!(order(&watch, Sort::Rss), [8, 7, 9]);
        assert_eq!(order(&watch, Sort::Free), [9, 8, 7]);
        assert_eq!(order(&watch, Sort::Name), [9, 8, 7]);
        assert_eq!(order(&watch, Sort::Back), [7, 8, 9]);
        watch.processes[1].ended = Some(Instant::now());
        assert_eq!(order(&watch, Sort::Rss), [7, 9, 8]);
        let mut sort = Sort::Rss;
        for _ in 0..6 {
            sort = sort.next();
        }
        assert_eq!(sort, Sort::Rss, "all of them in turn");
    }

    #[test]
    fn columns_go_where_there_is_no_room() {
        let titles = |width| -> Vec<&str> { fitting(width).iter().map(|c| c.title).collect() };
        assert_eq!(titles(200).len(), COLUMNS.len());
        assert_eq!(
            titles(48),
            ["PID", "NAME", "RSS", "LIVE", "DIRTY", "BACK/s"]
        );
        assert_eq!(titles(1), ["PID", "NAME"]);
        for width in 23..200 {
            let used: u16 = fitting(width).iter().map(|c| c.width + 1).sum();
            assert!(used - 1 <= width, "{width}");
        }
    }

    #[test]
    fn the_plain_table_says_what_is_not_in_it() {
        let mut watch = watch();
        watch.untold = (20..27)
            .map(|pid| Untold {
                pid,
                name: "quiet".into(),
                soon: pid == 20,
            })
            .collect();
        watch.hidden = 4;
        let text = text(&watch, Sort::Rss);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("PID  NAME ") && lines[0].ends_with("HELPER"),
            "{text}"
        );
        assert!(
            lines[1].starts_with("  8  large") && lines[1].contains(" 3.0G "),
            "{text}"
        );
        assert!(
            text.contains("21 quiet") && text.contains("and 1 more"),
            "{text}"
        );
        assert!(
            text.contains("stats_dir=") && text.contains("Not looked at: 4"),
            "{text}"
        );
        assert!(
            text.contains("Forked") && !lines[4].contains("20 quiet"),
            "{text}"
        );
        let value: serde_json::Value = serde_json::from_str(&json(&watch, Sort::Rss)).unwrap();
        assert_eq!(value["processes"][0]["figures"]["dirty_bytes"], 1 << 30);
        assert_eq!(value["processes"][0]["ended"], false);
        assert_eq!(value["without_figures"][0]["soon"], true);
        watch.processes.clear();
        assert!(super::text(&watch, Sort::Rss).starts_with("No process"));
    }
}
