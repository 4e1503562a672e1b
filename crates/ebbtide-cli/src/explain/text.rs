//! The table for people.

use std::fmt::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use ebbtide_tools::out;

use super::Explained;
use super::advice::Advice;

/// How many size classes are shown.
const MOST_CLASSES: usize = 5;

/// The whole text.
pub fn of(explained: &Explained) -> String {
    let Explained {
        pid,
        program,
        rss_bytes,
        swap_bytes,
        ..
    } = explained;
    let mut text = format!(
        "{pid} {program}: {} resident, {} swapped out\n\n",
        out::bytes(*rss_bytes),
        out::bytes(*swap_bytes)
    );
    let is_swapped = *swap_bytes > 0;
    let mut table = table();
    let mut header = vec!["resident", "share", "part", "what it is"];
    if is_swapped {
        header.insert(2, "swapped");
    }
    table.set_header(header);
    for part in &explained.parts {
        let mut row = vec![
            out::bytes(part.bytes),
            share(part.bytes, *rss_bytes),
            part.title.into(),
            part.about.clone(),
        ];
        if is_swapped {
            row.insert(2, out::bytes(part.swapped_bytes));
        }
        table.add_row(row);
    }
    right(&mut table, if is_swapped { 3 } else { 2 });
    add(&mut text, &table);
    if !explained.classes.is_empty() {
        text.push_str("\nSize classes with the most free memory between live objects:\n");
        let mut table = self::table();
        let classes = || explained.classes.iter().take(MOST_CLASSES);
        let has_places = classes().any(|class| class.pinned_by.is_some());
        let mut header = vec!["objects", "in use", "free"];
        header.extend(has_places.then_some("pinned by"));
        table.set_header(header);
        for class in classes() {
            let sizes = [class.object_bytes, class.live_bytes, class.free_bytes];
            let mut row = sizes.map(out::bytes).to_vec();
            row.extend(class.pinned_by.clone());
            table.add_row(row);
        }
        right(&mut table, 3);
        add(&mut text, &table);
    }
    for (is_certain, title) in [
        (true, "Free memory goes by (the lines overlap):"),
        (false, "Other memory, at most:"),
    ] {
        let advice = explained.advice.iter();
        let rows = advice.filter(|advice| advice.is_certain == is_certain);
        let rows = rows.map(|advice| {
            let Advice { action, about, .. } = advice;
            vec![
                out::bytes(advice.frees_bytes),
                action.clone(),
                about.clone(),
            ]
        });
        let mut table = self::table();
        table.add_rows(rows);
        if table.is_empty() {
            continue;
        }
        right(&mut table, 1);
        let _ = writeln!(text, "\n{title}");
        add(&mut text, &table);
    }
    let _ = writeln!(text, "\n{}", explained.conclusion);
    for note in &explained.notes {
        let _ = writeln!(text, "Note: {note}.");
    }
    text
}

fn table() -> Table {
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    table
}

/// Aligns the first columns to the right.
fn right(table: &mut Table, columns: usize) {
    for column in table.column_iter_mut().take(columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn add(text: &mut String, table: &Table) {
    for line in table.lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn share(part: u64, all: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / all.max(1) as f64)
}
