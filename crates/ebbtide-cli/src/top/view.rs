//! The view of `ebbtide top` on a terminal: a table of all processes, and the last minutes of the selected process.
//!
//! On a small terminal, parts are left out in this order: the charts, columns, notes, and at last everything but the
//! rows.

use std::time::{Duration, Instant};

use ebbtide_tools::out::{bytes, duration, short_bytes};
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::Constraint::{Length, Min};
use ratatui::layout::{Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Sparkline, Table, TableState};

use crate::top::chart::{COLOURS, NAMES, SHADES, Stacked, slots};
use crate::top::cover::{self, Asked, Cover, Step};
use crate::top::table::{Column, ORDERS, Order, fitting, notes, sorted};
use crate::top::watch::{Point, Process, Watch};

/// Minimum height of a terminal for charts.
const HIGH: u16 = 14;
/// Height of a picture from which on it has lines of returned memory.
const TALL: u16 = 8;
const LEGEND: u16 = 30;
const SCALE: u16 = 6;
const KEYS: &str = " q quit ↑↓ select s sort p parts e settings r release ? help";

/// The state that keys change.
#[derive(Debug)]
pub struct View {
    /// The place of the order of the rows in [`ORDERS`].
    order: usize,
    /// What covers the view, or asks a question below it.
    pub cover: Cover,
    /// Whether layers are shown in colours; otherwise in shades.
    pub is_coloured: bool,
    selected: Option<u32>,
    /// A request without an answer so far.
    asked: Option<Asked>,
    /// What is shown in place of the keys, until the next key.
    told: Option<String>,
    epoch: Instant,
    interval: Duration,
    rows: TableState,
}

impl View {
    /// A view without a selection.
    pub fn new(interval: Duration, is_coloured: bool) -> Self {
        View {
            order: 0,
            cover: Cover::None,
            is_coloured,
            selected: None,
            asked: None,
            told: None,
            epoch: Instant::now(),
            interval,
            rows: TableState::default(),
        }
    }

    /// Time between two samples.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// The order of the rows.
    pub fn order(&self) -> Order {
        ORDERS[self.order]
    }

    /// Chooses the next order.
    pub fn next_order(&mut self) {
        self.order = (self.order + 1) % ORDERS.len();
    }

    /// Moves the selection by so many rows.
    pub fn step(&mut self, watch: &Watch, by: isize) {
        let rows = sorted(&watch.processes, self.order());
        let now = self.place(&rows).unwrap_or(0);
        let last = rows.len().saturating_sub(1);
        let next = now.saturating_add_signed(by).min(last);
        self.selected = rows.get(next).map(|process| process.pid);
    }

    /// The selected process.
    pub fn selected(&self, watch: &Watch) -> Option<u32> {
        let rows = sorted(&watch.processes, self.order());
        self.place(&rows).map(|place| rows[place].pid)
    }

    /// Handles a key for the cover, if there is one. `false`: the key is for the view.
    pub fn on_cover_key(&mut self, watch: &Watch, code: KeyCode) -> bool {
        self.told = None;
        if self.cover == Cover::None {
            return false;
        }
        match self.cover.on_key(code) {
            Step::Stay => {}
            Step::Close => self.cover = Cover::None,
            Step::Ask(pid, text) => {
                self.cover = Cover::None;
                let (asked, told) = cover::ask(watch, pid, &text);
                (self.asked, self.told) = (asked, Some(told));
            }
        }
        true
    }

    /// Shows the answer to a request, if it came with the last sample.
    pub fn hear(&mut self, watch: &Watch) {
        if let Some(told) = self.asked.as_ref().and_then(|asked| asked.answer(watch)) {
            (self.asked, self.told) = (None, Some(told));
        }
    }

    /// The selected process's current row; the first row if none is selected.
    fn place(&self, rows: &[&Process]) -> Option<usize> {
        let selected = rows.iter().position(|p| Some(p.pid) == self.selected);
        selected.or((!rows.is_empty()).then_some(0))
    }

    /// Draws the whole view.
    pub fn draw(&mut self, frame: &mut Frame<'_>, watch: &Watch) {
        let area = frame.area();
        let notes = notes(watch);
        let has_notes = area.height >= 8 && !notes.is_empty();
        let rows = sorted(&watch.processes, self.order());
        let selected = self.place(&rows).map(|place| rows[place]);
        let [head, keys] = [3, 5].map(|least| u16::from(area.height >= least));
        let below = u16::from(has_notes);
        let free = area.height.saturating_sub(head + below + keys);
        let is_high = area.height >= HIGH && area.width >= 40 && selected.is_some();
        let table = match is_high {
            true => (rows.len() as u16 + 1).clamp(2, free / 2),
            false => free,
        };
        let parts = [
            Length(head),
            Length(table),
            Min(0),
            Length(below),
            Length(keys),
        ];
        let [head, body, picture, below, keys] = Layout::vertical(parts).areas(area);
        frame.render_widget(self.head(watch), head);
        self.table(frame, body, &rows);
        if let Some(process) = selected.filter(|_| is_high) {
            self.pictures(frame, picture, process);
        }
        frame.render_widget(Line::from(format!(" {}", notes.join(" "))).italic(), below);
        let line = match self.cover.question(watch).or_else(|| self.told.clone()) {
            Some(text) => Line::from(text).bold(),
            None => Line::from(KEYS).dim(),
        };
        frame.render_widget(line, keys);
        self.cover.draw(frame, watch, &notes);
    }

    fn head(&self, watch: &Watch) -> Line<'static> {
        let alive = watch.processes.iter().filter(|p| p.ended.is_none());
        let alive = alive.count();
        let sum = |of: fn(&Process) -> u64| watch.processes.iter().map(of).sum::<u64>();
        Line::from(format!(
            " ebbtide top: {} {}, {} resident, {} live, {}/s released; every {} s, by {}",
            alive,
            if alive == 1 { "process" } else { "processes" },
            bytes(sum(|p| p.rss_bytes)),
            bytes(sum(|p| p.figures.live_bytes * u64::from(p.ended.is_none()))),
            bytes(sum(Process::back)),
            self.interval.as_secs_f64(),
            self.order().0,
        ))
        .bold()
    }

    fn table(&mut self, frame: &mut Frame<'_>, area: Rect, rows: &[&Process]) {
        if rows.is_empty() {
            let text = " No process under Ebbtide has figures; new ones will appear here.";
            frame.render_widget(Paragraph::new(text), area);
            return;
        }
        let columns = fitting(area.width);
        let aligned = |column: &Column, text: String| match column.is_left() {
            true => Line::from(text),
            false => Line::from(text).right_aligned(),
        };
        let header = columns.iter().map(|c| aligned(c, c.head()));
        let lines = rows.iter().map(|process| {
            let cells = columns.iter().map(|c| aligned(c, c.cell(process)));
            let row = Row::new(cells);
            if process.ended.is_some() {
                row.dim()
            } else {
                row
            }
        });
        let widths = columns.iter().map(|c| match c.is_last() {
            true => Min(c.width),
            false => Length(c.width),
        });
        let table = Table::new(lines, widths)
            .header(Row::new(header).underlined())
            .row_highlight_style(Style::new().reversed());
        self.rows.select(self.place(rows));
        frame.render_stateful_widget(table, area, &mut self.rows);
    }

    fn pictures(&self, frame: &mut Frame<'_>, area: Rect, process: &Process) {
        let mut title = format!(" {} {} ", process.pid, process.command);
        if !process.conf.is_empty() {
            title.push_str(&format!("[{}] ", process.conf));
        }
        let block = Block::new().borders(Borders::TOP).title(title);
        let inside = block.inner(area);
        frame.render_widget(block, area);
        let legend = if inside.width >= 70 { LEGEND } else { 0 };
        let [left, right] = Layout::horizontal([Min(10), Length(legend)]).areas(inside);
        let rates = u16::from(inside.height >= TALL);
        let parts = [Min(3), Length(1), Length(rates), Length(rates)];
        let [chart, axis, back, again] = Layout::vertical(parts).areas(left);
        let [scale, chart] = behind_scale(chart);
        let width = usize::from(chart.width);
        let (slots, span) = slots(&process.history, self.epoch, Instant::now(), width);
        let points = slots.iter().flatten();
        let most = points.map(|point| point.rss_bytes).max().unwrap_or(0);
        let [top, _, bottom] = Layout::vertical([Length(1), Min(0), Length(1)]).areas(scale);
        frame.render_widget(Line::from(format!("{:>5}", short_bytes(most))), top);
        frame.render_widget(Line::from(format!("{:>5}", "0")), bottom);
        let stacked = Stacked {
            slots: &slots,
            most_bytes: most,
            is_coloured: self.is_coloured,
        };
        frame.render_widget(stacked, chart);
        let ago = format!("{:>6}{} s ago", "", span.as_secs());
        frame.render_widget(Line::from(ago).dim(), axis);
        frame.render_widget(Line::from("now").right_aligned().dim(), axis);
        let slot_s = span.as_secs_f64() / f64::from(chart.width.max(1));
        let rate = |of: fn(&Point) -> u64| -> Vec<u64> {
            let pairs = slots.windows(2).map(|pair| match pair {
                [Some(a), Some(b)] => (of(b).saturating_sub(of(a)) as f64 / slot_s) as u64,
                _ => 0,
            });
            [0].into_iter().chain(pairs).collect()
        };
        sparkline(frame, back, "back", &rate(|p| p.released_bytes));
        sparkline(frame, again, "again", &rate(|p| p.refaulted_bytes));
        frame.render_widget(self.legend(process), right);
    }

    fn legend(&self, process: &Process) -> Paragraph<'static> {
        let layers = process.history.back().map_or([0; 4], Point::layers);
        let named = (0..layers.len()).rev().map(|at| {
            let sign = match self.is_coloured {
                true => Span::from("██").fg(COLOURS[at]),
                false => Span::from(SHADES[at].repeat(2)),
            };
            let text = format!(" {:<14}{:>10}", NAMES[at], bytes(layers[at]));
            Line::from(vec![Span::from(" "), sign, Span::from(text)])
        });
        let f = &process.figures;
        let most = |n| format!("≤{}", bytes(n));
        let busy = process.rates.unwrap_or_default().worker_share * 100.0;
        let age_s = process.figures_age_ms.map(|ms| ms as f64 / 1e3);
        let age = age_s.map(|age| ("figures of", format!("{age:.1} s ago")));
        let others = [
            ("between live", most(f.in_spans_bytes)),
            ("cached", most(f.cached_bytes)),
            ("own records", bytes(f.metadata_bytes)),
            ("unsplit", most(f.unsplit_bytes)),
            ("released", most(f.released_bytes)),
            ("workers", duration(f.worker_ns)),
            ("of a CPU now", format!("{busy:.1} %")),
            ("longest stall", duration(f.longest_stall_ns)),
        ];
        let pinned = (f.pinned_bytes > 0).then(|| ("pinned", bytes(f.pinned_bytes)));
        let others = others.into_iter().chain(pinned).chain(age);
        let line = |(name, value)| Line::from(format!("    {name:<14}{value:>10}"));
        let lines: Vec<Line<'static>> = named.chain(others.map(line)).collect();
        Paragraph::new(lines)
    }
}

/// The place of a label, and the place behind it.
fn behind_scale(area: Rect) -> [Rect; 2] {
    Layout::horizontal([Length(SCALE), Min(1)]).areas(area)
}

/// Draws a line of bars, with its name in front and the highest value behind.
fn sparkline(frame: &mut Frame<'_>, area: Rect, name: &str, values: &[u64]) {
    let [label, bars] = behind_scale(area);
    frame.render_widget(Line::from(format!("{name:>5}")).dim(), label);
    frame.render_widget(Sparkline::default().data(values), bars);
    let most = values.iter().copied().max().unwrap_or(0);
    if most > 0 {
        let text = format!(" ≤ {}/s", short_bytes(most));
        let width = text.chars().count() as u16;
        let at = Rect {
            x: bars.right().saturating_sub(width).max(bars.x),
            width: width.min(bars.width),
            ..bars
        };
        frame.render_widget(Line::from(text).dim(), at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::find::Why;
    use crate::top::table::tests::watch;
    use crate::top::watch::Untold;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    /// Three processes; the largest has a history in which memory is released.
    fn sample() -> Watch {
        let mut watch = watch();
        let now = Instant::now();
        for (place, free) in [1u64 << 30, 1 << 30, 0].into_iter().enumerate() {
            let live = 1 << 30;
            watch.processes[1].history.push_back(Point {
                at: now - Duration::from_secs(10 - 4 * place as u64),
                rss_bytes: live + free,
                live_bytes: live,
                dirty_bytes: free,
                lazy_bytes: 0,
                released_bytes: (1 << 30) - free,
                refaulted_bytes: 0,
                worker_ns: 0,
            });
        }
        watch
            .untold
            .push(Untold::new(99, "quiet".into(), Why::NotTold));
        watch
    }

    fn drawn(view: &mut View, watch: &Watch, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame, watch)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..height).map(line).collect()
    }

    fn view() -> View {
        let mut view = View::new(Duration::from_secs(1), false);
        // The samples are older than the view would be.
        view.epoch -= Duration::from_secs(60);
        view
    }

    #[test]
    fn everything_has_its_place_on_a_usual_terminal() {
        let lines = drawn(&mut view(), &sample(), 132, 40);
        assert!(
            lines[0].contains("3 processes, 3.0 GiB resident"),
            "{}",
            lines[0]
        );
        assert!(
            lines[1].contains("PID") && lines[1].contains("≤BETWEEN"),
            "{}",
            lines[1]
        );
        assert!(
            lines[2].contains("large") && lines[2].contains("3.0G"),
            "{}",
            lines[2]
        );
        assert!(lines[38].contains("99 quiet") && lines[39].contains("q quit"));
        let all = lines.join("\n");
        assert!(all.contains("30 s ago") && all.contains("dirty"), "{all}");
        // Live memory is at the bottom; above it is memory that was freed, and then released.
        let column = |x: usize| -> String {
            let chart = lines[6..35].iter().rev();
            chart.map(|line| line.chars().nth(x).unwrap()).collect()
        };
        let at = lines[34].chars().position(|c| c == '█').unwrap();
        let before = column(at);
        assert!(
            before.starts_with("██████████") && before.contains("▓▓▓▓▓▓▓▓▓▓"),
            "{before}"
        );
        let end = lines[34].chars().collect::<Vec<_>>();
        let end = (0..132 - 30).rev().find(|&x| end[x] == '█').unwrap();
        assert!(
            !column(end).contains('▓') && column(end).contains("██████████"),
            "{all}"
        );
        // The release line: the label covers all but the last bars.
        let back = lines.iter().find(|line| line.starts_with(" back")).unwrap();
        assert!(back.contains("≤"), "{back}");
    }

    #[test]
    fn small_terminals_keep_the_rows() {
        let mut view = view();
        for (width, height) in [
            (80, 24),
            (80, 10),
            (40, 18),
            (39, 30),
            (24, 6),
            (10, 3),
            (3, 1),
            (1, 1),
        ] {
            let lines = drawn(&mut view, &sample(), width, height);
            assert_eq!(lines.len(), usize::from(height));
            if width >= 24 && height >= 6 {
                let all = lines.join("\n");
                assert!(all.contains("large") && all.contains("q quit"), "{all}");
            }
        }
        let narrow = drawn(&mut view, &sample(), 48, 24).join("\n");
        assert!(
            narrow.contains("LIVE") && !narrow.contains("HELPER"),
            "{narrow}"
        );
        view.cover = Cover::Help;
        for (width, height) in [(100, 40), (20, 5), (1, 1)] {
            drawn(&mut view, &sample(), width, height);
        }
        let help = drawn(&mut view, &sample(), 100, 40).join("\n");
        assert!(
            help.contains("used again") && help.contains("stats_dir="),
            "{help}"
        );
    }

    #[test]
    fn a_small_terminal_shows_rows_and_a_chart() {
        let lines = drawn(&mut view(), &sample(), 60, 15);
        let all = lines.join("\n");
        assert!(lines[0].contains("3 processes, 3.0 GiB resident"), "{all}");
        assert!(
            lines[1].contains("NOLAZY") && lines[1].contains("≤BACK/s"),
            "{all}"
        );
        for (line, name) in lines[2..].iter().zip(["large", "small", "idle"]) {
            assert!(line.contains(name), "{all}");
        }
        assert!(lines[6..12].iter().any(|line| line.contains("██")), "{all}");
        assert!(all.contains("30 s ago") && !all.contains("again"), "{all}");
        assert!(lines[14].contains("r release ? help"), "{all}");
        let mut view = view();
        view.cover = Cover::Parts(8);
        let parts = drawn(&mut view, &sample(), 60, 15).join("\n");
        assert!(
            parts.contains("8 large: memory") && parts.contains("between live objects"),
            "{parts}"
        );
        assert!(parts.contains("own records"), "{parts}");
    }

    #[test]
    fn a_large_terminal_shows_everything() {
        let mut view = view();
        let lines = drawn(&mut view, &sample(), 200, 60);
        let all = lines.join("\n");
        for column in crate::top::table::COLUMNS.iter() {
            assert!(
                lines[1].contains(&column.head()),
                "{}: {}",
                column.title,
                lines[1]
            );
        }
        assert!(lines[2].contains("/usr/bin/large --serve"), "{all}");
        assert!(
            all.contains("between live") && all.contains("again"),
            "{all}"
        );
        view.cover = Cover::Settings(8, "limit=1".into());
        let settings = drawn(&mut view, &sample(), 200, 60).join("\n");
        assert!(
            settings.contains("8 large: settings") && settings.contains("new value: limit=1█"),
            "{settings}"
        );
    }

    #[test]
    fn keys_open_covers_and_answers_are_shown() {
        let (mut view, mut watch) = (view(), sample());
        assert!(!view.on_cover_key(&watch, KeyCode::Char('r')));
        view.cover = Cover::Release(view.selected(&watch).unwrap());
        let question = |view: &mut View, watch: &Watch| drawn(view, watch, 80, 24)[23].clone();
        assert!(question(&mut view, &watch).contains("memory of 8 large?"));
        assert!(view.on_cover_key(&watch, KeyCode::Char('y')));
        let told = question(&mut view, &watch);
        assert!(told.contains("page is gone"), "there is no process: {told}");
        assert!(!view.on_cover_key(&watch, KeyCode::Down));
        assert!(question(&mut view, &watch).contains("q quit"));
        view.cover = Cover::Help;
        assert!(view.on_cover_key(&watch, KeyCode::Esc) && view.cover == Cover::None);
        watch.processes.clear();
        assert_eq!(view.selected(&watch), None);
    }

    #[test]
    fn the_selection_stays_with_its_process() {
        let (mut view, mut watch) = (view(), sample());
        view.step(&watch, 1);
        assert_eq!(view.selected, Some(7));
        view.next_order();
        view.next_order();
        assert_eq!(view.order().0, "freed");
        assert_eq!(view.place(&sorted(&watch.processes, view.order())), Some(2));
        view.step(&watch, 5);
        assert_eq!(view.selected, Some(7));
        view.step(&watch, isize::MIN);
        assert_eq!(view.selected, Some(9));
        watch.processes.clear();
        view.step(&watch, 1);
        assert_eq!(view.selected, None);
        let lines = drawn(&mut view, &watch, 100, 30).join("\n");
        assert!(lines.contains("No process"), "{lines}");
    }
}
