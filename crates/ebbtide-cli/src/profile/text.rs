//! A profile for people: the places that allocated most, then the tree of calls in short.

use std::collections::HashMap;
use std::fmt::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use ebbtide_interface::profile::LIFETIMES;
use ebbtide_tools::out;

use super::model::{Amount, Line, Profile, Stack, View, is_passing};

/// How many places are shown.
const MOST_SITES: usize = 30;
/// Parts of the tree below this share of all bytes are left out.
const LEAST_SHARE: f64 = 0.01;
/// Most lines of the tree.
const MOST_LINES: usize = 60;
/// Longer names are cut.
const LONGEST_NAME: usize = 60;
/// Calls in a row, without a branch, that are shown by name.
const MOST_IN_ROW: usize = 3;

/// A table of places, then the tree. `is_change`: the amounts are differences.
pub fn of(profile: &Profile, view: View, is_change: bool) -> String {
    let sites = sites(profile, |stack| stack.amounts[view as usize]);
    let all: f64 = sites.iter().map(|(_, amount)| amount.bytes.abs()).sum();
    if all == 0.0 {
        return match is_change {
            true => "No difference.\n".into(),
            false => "No samples.\n".into(),
        };
    }
    let mut table = table();
    table.set_header(["bytes", "share", "±", "objects", "allocated by"]);
    for (line, amount) in sites.iter().take(MOST_SITES) {
        table.add_row([
            bytes(amount.bytes, is_change),
            share(amount.bytes.abs() / all),
            error(amount),
            count(amount.objects, is_change),
            shown(line),
        ]);
    }
    right(&mut table, 4);
    let mut text = String::new();
    add(&mut text, &table);
    let rest = &sites[sites.len().min(MOST_SITES)..];
    if !rest.is_empty() {
        let sum = rest.iter().map(|(_, amount)| amount.bytes).sum();
        let _ = writeln!(
            text,
            "{} by {} other places",
            bytes(sum, is_change),
            rest.len()
        );
    }
    text.push_str("\nCalls, the outermost first:\n");
    let mut tree = Tree::default();
    for stack in &profile.stacks {
        let lines: Vec<Line> = profile.lines(stack).collect();
        tree.add(
            lines[site_of(&lines)..].iter().rev(),
            stack.amounts[view as usize].bytes,
        );
    }
    let mut printer = Printer {
        text: &mut text,
        least: all * LEAST_SHARE,
        all,
        is_change,
        lines: 0,
    };
    printer.children(&tree, 0);
    if printer.lines >= MOST_LINES {
        let _ = writeln!(text, "…");
    }
    text
}

/// A table of places with the lifetimes of their objects.
pub fn lifetimes(profile: &Profile) -> String {
    let sites = sites(profile, |stack| stack.amounts[View::Allocated as usize]);
    let mut freed: HashMap<Line, [f64; LIFETIMES]> = HashMap::new();
    for stack in &profile.stacks {
        let buckets = freed
            .entry(site(profile, stack))
            .or_insert([0.0; LIFETIMES]);
        let objects = buckets.iter_mut().zip(&stack.lifetimes);
        objects.for_each(|(sum, objects)| *sum += objects);
    }
    let mut table = table();
    table.set_header([
        "allocated",
        "objects",
        "freed",
        "10 %",
        "half",
        "90 %",
        "allocated by",
    ]);
    for (line, amount) in sites.iter().take(MOST_SITES) {
        let buckets = &freed[line];
        let all: f64 = buckets.iter().sum();
        let below = |share| match all > 0.0 {
            true => below(buckets, share * all),
            false => "-".into(),
        };
        table.add_row([
            bytes(amount.bytes, false),
            count(amount.objects, false),
            share(all / amount.objects.max(1.0)),
            below(0.1),
            below(0.5),
            below(0.9),
            shown(line),
        ]);
    }
    right(&mut table, 6);
    let mut text = String::from(
        "Share of the objects that were freed, and the time within which 10 %, half and 90 % of these were:\n",
    );
    add(&mut text, &table);
    text
}

/// The end of the bucket up to which so many objects were freed.
fn below(buckets: &[f64; LIFETIMES], objects: f64) -> String {
    let mut sum = 0.0;
    let bucket = buckets.iter().position(|in_it| {
        sum += in_it;
        sum >= objects
    });
    match bucket {
        Some(at) if at + 1 < LIFETIMES => format!("< {}", time(1 << (10 + at))),
        _ => format!("≥ {}", time(1 << (10 + LIFETIMES - 2))),
    }
}

/// A time in a few characters.
fn time(ns: u64) -> String {
    let units = [
        (3_600_000_000_000, "h"),
        (60_000_000_000, "min"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "µs"),
    ];
    let (unit_ns, unit) = units
        .into_iter()
        .find(|&(unit_ns, _)| ns >= unit_ns)
        .unwrap_or((1, "ns"));
    format!("{} {unit}", (ns + unit_ns / 2) / unit_ns)
}

/// Which call allocated: the innermost one that does not only pass a request on.
fn site_of(lines: &[Line]) -> usize {
    let site = lines.iter().position(|line| !is_passing(&line.function));
    site.unwrap_or(0)
}

/// The place that allocated.
fn site(profile: &Profile, stack: &Stack) -> Line {
    let mut lines: Vec<Line> = profile.lines(stack).collect();
    match lines.is_empty() {
        false => lines.swap_remove(site_of(&lines)),
        true => Line {
            function: "unknown".into(),
            file: String::new(),
            line: 0,
        },
    }
}

/// A place in a table.
fn shown(line: &Line) -> String {
    let function = short(&line.function);
    Line {
        function,
        ..line.clone()
    }
    .shown()
}

/// For each size of objects, the place with most live ones.
pub fn places_by_size(profile: &Profile) -> HashMap<u64, String> {
    let mut sums: HashMap<(u64, Line), f64> = HashMap::new();
    for stack in &profile.stacks {
        let live = stack.amounts[View::Live as usize].objects;
        *sums.entry((stack.size, site(profile, stack))).or_default() += live;
    }
    let mut sums: Vec<_> = sums.into_iter().filter(|&(_, live)| live > 0.0).collect();
    // The last one of a size stays.
    sums.sort_by(|(a_place, a), (b_place, b)| a.total_cmp(b).then_with(|| b_place.cmp(a_place)));
    let places = sums.iter().map(|((size, line), _)| (*size, shown(line)));
    places.collect()
}

/// The places with their amounts, most bytes first.
fn sites(profile: &Profile, amount: impl Fn(&Stack) -> Amount) -> Vec<(Line, Amount)> {
    let mut sums: HashMap<Line, Amount> = HashMap::new();
    for stack in &profile.stacks {
        *sums.entry(site(profile, stack)).or_default() += amount(stack);
    }
    let mut sites: Vec<(Line, Amount)> =
        sums.into_iter().filter(|(_, it)| it.bytes != 0.0).collect();
    sites.sort_by(|(a_line, a), (b_line, b)| {
        b.bytes
            .abs()
            .total_cmp(&a.bytes.abs())
            .then_with(|| a_line.cmp(b_line))
    });
    sites
}

/// Functions and those that they call.
#[derive(Default)]
struct Tree {
    bytes: f64,
    children: HashMap<String, Tree>,
}

impl Tree {
    fn add<'a>(&mut self, calls: impl Iterator<Item = &'a Line>, bytes: f64) {
        self.bytes += bytes;
        let mut tree = self;
        for call in calls {
            tree = tree.children.entry(short(&call.function)).or_default();
            tree.bytes += bytes;
        }
    }

    /// The called functions, most bytes first.
    fn sorted(&self) -> Vec<(&String, &Tree)> {
        let mut sorted: Vec<_> = self.children.iter().collect();
        sorted.sort_by(|(a_name, a), (b_name, b)| {
            b.bytes
                .abs()
                .total_cmp(&a.bytes.abs())
                .then_with(|| a_name.cmp(b_name))
        });
        sorted
    }
}

struct Printer<'a> {
    text: &'a mut String,
    least: f64,
    all: f64,
    is_change: bool,
    lines: usize,
}

impl Printer<'_> {
    fn children(&mut self, tree: &Tree, depth: usize) {
        for (name, child) in tree.sorted() {
            if child.bytes.abs() < self.least || self.lines >= MOST_LINES {
                break;
            }
            // Calls without a branch are one line.
            let mut row = vec![name.as_str()];
            let mut last = child;
            while let Some((name, only)) = last.sorted().first()
                && only.bytes == last.bytes
            {
                row.push(name);
                last = only;
            }
            if row.len() > MOST_IN_ROW + 1 {
                let hidden = row.len() - MOST_IN_ROW;
                let end = row.split_off(row.len() - MOST_IN_ROW + 1);
                row.truncate(1);
                let between = format!("({hidden} calls)");
                self.line(child.bytes, depth, &[&row[..], &[&between], &end].concat());
            } else {
                self.line(child.bytes, depth, &row);
            }
            self.children(last, depth + 1);
        }
    }

    fn line(&mut self, bytes_here: f64, depth: usize, row: &[&str]) {
        self.lines += 1;
        let _ = writeln!(
            self.text,
            "{:>8}  {:>7}  {}{}",
            bytes(bytes_here, self.is_change),
            share(bytes_here.abs() / self.all),
            "  ".repeat(depth),
            row.join(" → ")
        );
    }
}

/// A name without arguments of templates and functions, if it is long.
fn short(name: &str) -> String {
    if name.chars().count() <= LONGEST_NAME {
        return name.into();
    }
    let (mut short, mut depth, mut before) = (String::new(), 0, ' ');
    for sign in name.chars() {
        // Operators, and a type that a name begins with, have such signs too.
        let is_name = short.ends_with(|c: char| c.is_alphanumeric() || "_>]".contains(c));
        let is_inside = depth > 0 || is_name && !short.ends_with("operator");
        match sign {
            '<' | '(' if is_inside => {
                if depth == 0 {
                    short.push_str(&format!("{sign}…"));
                }
                depth += 1;
            }
            '>' if before == '-' && depth > 0 => {}
            '>' | ')' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    short.push(sign);
                }
            }
            _ if depth == 0 => short.push(sign),
            _ => {}
        }
        before = sign;
    }
    short
}

/// Bytes with a sign, if they are a change.
fn bytes(n: f64, is_change: bool) -> String {
    format!(
        "{}{}",
        sign(n, is_change),
        out::bytes(n.abs().round() as u64)
    )
}

fn count(n: f64, is_change: bool) -> String {
    format!(
        "{}{}",
        sign(n, is_change),
        out::count(n.abs().round() as u64)
    )
}

fn sign(n: f64, is_change: bool) -> &'static str {
    match is_change {
        _ if n < 0.0 => "-",
        true => "+",
        false => "",
    }
}

fn share(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// The sampling error of bytes, as a share of them.
fn error(amount: &Amount) -> String {
    let relative = 100.0 * amount.error() / amount.bytes.abs();
    match relative {
        0.0..0.05 => "0 %".into(),
        0.0..10.0 => format!("{relative:.1} %"),
        0.0..1000.0 => format!("{relative:.0} %"),
        _ => "> 999 %".into(),
    }
}

fn table() -> Table {
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table
}

fn right(table: &mut Table, columns: usize) {
    let columns = table.column_iter_mut().take(columns);
    columns.for_each(|column| column.set_cell_alignment(CellAlignment::Right));
}

fn add(text: &mut String, table: &Table) {
    for line in table.lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::tests::profile;

    fn example() -> Profile {
        profile(&[
            (
                &["operator new(unsigned long)", "keep", "run", "main"],
                1 << 30,
                [3, 4, 4],
            ),
            (&["burst", "a", "b", "c", "d", "main"], 1 << 30, [1, 9, 1]),
            (&["rare", "main"], 64, [1, 1, 1]),
        ])
    }

    #[test]
    fn places_are_in_order_with_share_and_error() {
        let text = of(&example(), View::Live, false);
        let rows: Vec<&str> = text.lines().collect();
        let words = |row: usize| rows[row].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(0), "bytes share ± objects allocated by");
        assert_eq!(words(1), "3.0 GiB 75.0 % 0 % 3 keep (test.c:3)");
        assert_eq!(words(2), "1.0 GiB 25.0 % 0 % 1 burst (test.c:3)");
        // One sample.
        assert_eq!(words(3), "512.0 KiB 0.0 % 100 % 8,193 rare (test.c:3)");
    }

    #[test]
    fn the_tree_is_short() {
        let text = of(&example(), View::Live, false);
        let (_, tree) = text.split_once("first:\n").unwrap();
        let words = tree
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        assert_eq!(
            words.collect::<Vec<_>>(),
            [
                "4.0 GiB 100.0 % main",
                "3.0 GiB 75.0 % run → keep",
                "1.0 GiB 25.0 % d → (2 calls) → a → burst",
            ]
        );
    }

    #[test]
    fn each_size_has_a_place() {
        let profile = profile(&[
            (&["few"], 64, [1, 9, 9]),
            (&["many"], 64, [3, 3, 3]),
            (&["freed"], 32, [0, 3, 3]),
            (&["large"], 4096, [1, 1, 1]),
        ]);
        let expected = [(64, "many (test.c:3)"), (4096, "large (test.c:3)")];
        assert_eq!(
            places_by_size(&profile),
            HashMap::from(expected.map(|(size, place)| (size, place.into())))
        );
    }

    #[test]
    fn long_names_lose_their_arguments() {
        let long = "std::map<int, std::string, std::less<int> >::operator[](int const&) const";
        assert_eq!(short(long), "std::map<…>::operator[](…) const");
        let long =
            "<demo::Service<alloc::string::String> as demo::Handler<demo::Request>>::handle_all";
        assert_eq!(
            short(long),
            "<demo::Service<…> as demo::Handler<…>>::handle_all"
        );
        let long = "std::ostream& std::operator<< <char, std::char_traits<char> >(std::ostream&)";
        assert_eq!(
            short(long),
            "std::ostream& std::operator<< <char, std::char_traits<…> >(…)"
        );
        let long = "demo::Service<T>::call<fn(demo::Request) -> demo::Answer>::with_all_options";
        assert_eq!(short(long), "demo::Service<…>::call<…>::with_all_options");
        assert_eq!(short("f<int>(int)"), "f<int>(int)");
    }

    #[test]
    fn changes_have_a_sign() {
        let old = profile(&[
            (&["keep"], 1 << 30, [5, 5, 5]),
            (&["same"], 1 << 30, [1, 1, 1]),
        ]);
        let new = profile(&[
            (&["keep"], 1 << 30, [2, 5, 5]),
            (&["same"], 1 << 30, [1, 1, 1]),
            (&["more"], 1 << 30, [1, 1, 1]),
        ]);
        let text = of(&new.without(&old), View::Live, true);
        assert!(
            text.contains("-3.0 GiB") && text.contains("+1.0 GiB"),
            "{text}"
        );
        assert!(!text.contains("same"), "{text}");
        let none = old.clone().without(&old);
        assert_eq!(of(&none, View::Live, true), "No difference.\n");
    }

    #[test]
    fn lifetimes_are_ends_of_buckets() {
        let mut profile = profile(&[(&["burst"], 1 << 30, [2, 10, 2])]);
        let lifetimes = &mut profile.stacks[0].lifetimes;
        lifetimes.resize(LIFETIMES, 0.0);
        (lifetimes[0], lifetimes[10], lifetimes[LIFETIMES - 1]) = (2.0, 4.0, 2.0);
        let text = super::lifetimes(&profile);
        let row = text
            .lines()
            .last()
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(
            row,
            "10.0 GiB 10 80.0 % < 1 µs < 1 ms ≥ 18 min burst (test.c:3)"
        );
    }
}
