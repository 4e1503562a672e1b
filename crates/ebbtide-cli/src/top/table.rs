//! The columns and the row order, for the view, the plain table and JSON.

use std::cmp::Ordering;
use std::sync::LazyLock;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use ebbtide_tools::out::{duration, short_bytes};
use serde::Serialize;

use crate::top::find::{Why, YOUNG};
use crate::top::watch::{Process, Untold, Watch};

/// A column.
#[derive(Debug)]
pub struct Column {
    /// The title above the column.
    pub title: &'static str,
    /// If the terminal is too narrow, columns with the highest rank are left out first.
    rank: u8,
    /// Maximum number of characters.
    pub width: u16,
    /// `≤` if the value is an upper bound: part of it may not be resident, or was not when it was counted.
    bound: &'static str,
    /// The explanation in the help.
    pub about: &'static str,
}

const COMMAND: &str = "COMMAND";
/// The longest command line in a plain table, in characters.
const MAX_COMMAND: usize = 60;

/// All columns, in their order: lines `title | rank | width | bound | about`.
pub static COLUMNS: LazyLock<Vec<Column>> = LazyLock::new(|| {
    let column = |line: &'static str| {
        let mut fields = line.split('|').map(str::trim);
        Some(Column {
            title: fields.next()?,
            rank: fields.next()?.parse().ok()?,
            width: fields.next()?.parse().ok()?,
            bound: fields.next()?,
            about: fields.next()?,
        })
    };
    let lines = include_str!("columns.txt").lines();
    lines.filter_map(column).collect()
});

impl Column {
    /// Whether the column is aligned to the left.
    pub fn is_left(&self) -> bool {
        ["NAME", "EXIT", COMMAND].contains(&self.title)
    }

    /// Whether the column takes the rest of the width.
    pub fn is_last(&self) -> bool {
        self.title == COMMAND
    }

    /// The title with the mark of an upper bound.
    pub fn head(&self) -> String {
        format!("{}{}", self.bound, self.title)
    }

    /// The value of a process as text.
    pub fn cell(&self, p: &Process) -> String {
        let f = &p.figures;
        match self.title {
            "PID" => p.pid.to_string(),
            "NAME" => p.name.clone(),
            "RSS" => short_bytes(p.rss_bytes),
            "NOLAZY" => p.rss_without_lazy_bytes.map_or("-".into(), short_bytes),
            "LIVE" => short_bytes(f.live_bytes),
            "DIRTY" => short_bytes(f.dirty_bytes),
            "LAZY" => short_bytes(f.lazy_bytes),
            "BETWEEN" => short_bytes(f.in_spans_bytes),
            "PEND" => short_bytes(f.pending_bytes),
            "UNSPLIT" => short_bytes(f.unsplit_bytes),
            "CACHED" => short_bytes(f.cached_bytes),
            "BACK/s" if p.rates.is_none() => "-".into(),
            "BACK/s" => short_bytes(p.back()),
            "BACK" => short_bytes(f.released_bytes),
            "AGAIN" => short_bytes(f.refaulted_bytes),
            "WORKERS" => duration(f.worker_ns),
            "EXIT" if p.is_going() => "going".into(),
            "EXIT" if p.ended.is_some() => "ended".into(),
            "EXIT" => p.exit.into(),
            "HELPER" if f.helper != 0 => f.helper.to_string(),
            COMMAND if !p.command.is_empty() => p.command.clone(),
            _ => "-".into(),
        }
    }
}

/// The columns that fit into the width.
pub fn fitting(width: u16) -> Vec<&'static Column> {
    let mut columns: Vec<&Column> = COLUMNS.iter().collect();
    // A blank follows each column.
    let needed = |columns: &[&Column]| columns.iter().map(|c| c.width + 1).sum::<u16>() - 1;
    while columns.len() > 2 && needed(&columns) > width {
        let last = columns.iter().map(|c| c.rank).max();
        columns.retain(|c| Some(c.rank) != last || c.rank == 0);
    }
    columns
}

/// An order of the rows: its name, and how it compares two processes.
pub type Order = (&'static str, fn(&Process, &Process) -> Ordering);

/// All orders. Amounts of memory come with the largest first.
pub const ORDERS: [Order; 6] = [
    ("resident", |a, b| b.rss_bytes.cmp(&a.rss_bytes)),
    ("live", |a, b| {
        b.figures.live_bytes.cmp(&a.figures.live_bytes)
    }),
    ("freed", |a, b| b.freed_bytes().cmp(&a.freed_bytes())),
    ("released", |a, b| b.back().cmp(&a.back())),
    ("name", |a, b| a.name.cmp(&b.name)),
    ("number", |a, b| a.pid.cmp(&b.pid)),
];

/// The processes in this order. Living processes come first, and equal ones by number.
pub fn sorted(processes: &[Process], (_, by): Order) -> Vec<&Process> {
    let mut rows: Vec<&Process> = processes.iter().collect();
    let is_over = |process: &Process| process.ended.is_some();
    rows.sort_by(|a, b| {
        is_over(a)
            .cmp(&is_over(b))
            .then(by(a, b))
            .then(a.pid.cmp(&b.pid))
    });
    rows
}

/// A plain table with all columns, and the notes below it.
pub fn text(watch: &Watch) -> String {
    let mut text = String::new();
    let rows = sorted(&watch.processes, ORDERS[0]);
    if rows.is_empty() {
        text.push_str("No process with figures.\n");
    } else {
        let mut table = Table::new();
        table.load_preset(NOTHING).force_no_tty();
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(COLUMNS.iter().map(Column::head));
        let cell = |c: &Column, process: &Process| match c.is_last() {
            true => c.cell(process).chars().take(MAX_COMMAND).collect(),
            false => c.cell(process),
        };
        table.add_rows(
            rows.iter()
                .map(|process| COLUMNS.iter().map(|c| cell(c, process))),
        );
        for (column, shape) in COLUMNS.iter().zip(table.column_iter_mut()) {
            shape.set_padding((0, 2));
            if !column.is_left() {
                shape.set_cell_alignment(CellAlignment::Right);
            }
        }
        text += &table.trim_fmt();
        text.push('\n');
    }
    for note in notes(watch) {
        text.push_str(&note);
        text.push('\n');
    }
    text
}

/// Notes about processes that are not shown.
pub fn notes(watch: &Watch) -> Vec<String> {
    const NAMED: usize = 5;
    let mut notes = Vec::new();
    let of = |why: Why| -> Vec<&Untold> {
        let untold = watch.untold.iter();
        untold.filter(|untold| untold.why == why).collect()
    };
    let (soon, young, untold) = (of(Why::Forked), of(Why::Young), of(Why::NotTold));
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
             'ebbtide run --conf stats_dir=/DIRECTORY -- …'; any directory that they may write to works, such as /dev/shm.",
            names(&untold)
        ));
    }
    if !young.is_empty() {
        notes.push(format!(
            "Told stats_dir, and without figures yet: {}; {YOUNG}.",
            names(&young)
        ));
    }
    if !soon.is_empty() {
        notes.push(format!(
            "Forked; they get figures of their own when they allocate more: {}.",
            names(&soon)
        ));
    }
    if watch.hidden > 0 {
        notes.push(format!(
            "Not readable: {} processes, of other users (root can read them) or closed to all users.",
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
pub fn json(watch: &Watch) -> String {
    let json = Json {
        schema: 1,
        processes: sorted(&watch.processes, ORDERS[0]),
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
        process.command = format!("/usr/bin/{name} --serve");
        process.rss_bytes = rss;
        process.figures.figures.live_bytes = live;
        process.figures.figures.dirty_bytes = dirty;
        process
    }

    /// A watch with three processes.
    pub fn watch() -> Watch {
        let mut watch = Watch::new(Scope::Pids(Vec::new()));
        watch.processes = vec![
            process(7, "small", 10 << 20, 9 << 20, 0),
            process(8, "large", 3 << 30, 1 << 30, 1 << 30),
            process(9, "idle", 3 << 20, 2 << 20, 2 << 30),
        ];
        watch
    }

    /// The processes in the order of this name.
    pub fn order(watch: &Watch, name: &str) -> Vec<u32> {
        let order = ORDERS.iter().find(|(shown, _)| *shown == name).unwrap();
        let rows = sorted(&watch.processes, *order);
        rows.iter().map(|p| p.pid).collect()
    }

    #[test]
    fn rows_are_ordered_and_the_ended_come_last() {
        let mut watch = watch();
        assert_eq!(order(&watch, "resident"), [8, 7, 9]);
        assert_eq!(order(&watch, "live"), [8, 7, 9]);
        assert_eq!(order(&watch, "freed"), [9, 8, 7]);
        assert_eq!(order(&watch, "name"), [9, 8, 7]);
        assert_eq!(order(&watch, "released"), [7, 8, 9]);
        assert_eq!(order(&watch, "number"), [7, 8, 9]);
        watch.processes[1].ended = Some(Instant::now());
        assert_eq!(order(&watch, "resident"), [7, 9, 8]);
    }

    #[test]
    fn every_column_has_a_value() {
        let mut all = process(7, "x", 1, 2, 3);
        all.rss_without_lazy_bytes = Some(4);
        all.rates = Some(Default::default());
        all.figures.figures.helper = 8;
        assert_eq!(COLUMNS.len(), 18);
        for column in COLUMNS.iter() {
            assert_ne!(column.cell(&all), "-", "{}", column.title);
        }
    }

    #[test]
    fn columns_go_where_there_is_no_room() {
        let titles = |width| -> Vec<&str> { fitting(width).iter().map(|c| c.title).collect() };
        assert_eq!(titles(200).len(), COLUMNS.len());
        assert_eq!(
            titles(50),
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
            .map(|pid| {
                let why = if pid == 20 { Why::Forked } else { Why::NotTold };
                Untold::new(pid, "quiet".into(), why)
            })
            .collect();
        watch
            .untold
            .push(Untold::new(40, "early".into(), Why::Young));
        watch.hidden = 4;
        let text = text(&watch);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("PID  NAME ") && lines[0].contains("HELPER  COMMAND"),
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
            text.contains("stats_dir=") && text.contains("Not readable: 4 processes"),
            "{text}"
        );
        assert!(
            text.contains("Forked") && !lines[4].contains("20 quiet"),
            "{text}"
        );
        assert!(
            text.contains("Told stats_dir, and without figures yet: 40 early;"),
            "{text}"
        );
        assert!(
            lines[0].contains(" ≤DIRTY ") && lines[0].contains(" LIVE "),
            "{text}"
        );
        let value: serde_json::Value = serde_json::from_str(&json(&watch)).unwrap();
        assert_eq!(value["processes"][0]["figures"]["dirty_bytes"], 1 << 30);
        assert_eq!(value["processes"][0]["ended"], false);
        assert_eq!(value["without_figures"][0]["soon"], true);
        assert_eq!(value["without_figures"][7]["why"], "young");
        watch.processes.clear();
        assert!(super::text(&watch).starts_with("No process"));
    }
}
