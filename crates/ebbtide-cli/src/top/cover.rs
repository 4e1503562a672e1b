//! What keys lay over the view of `ebbtide top`: the help, the parts of a process's memory, its settings; and the line that asks before a
//! release.
//!
//! A cover belongs to the process that was selected when it was opened, wherever the process stands in the table later.

use std::fs::File;

use ebbtide_tools::out::{bytes, duration};
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use crate::top::request;
use crate::top::table::{COLUMNS, Column};
use crate::top::watch::{Process, Watch};

/// The cover that is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cover {
    /// None.
    #[default]
    None,
    /// Columns and keys.
    Help,
    /// The parts of this process's memory.
    Parts(u32),
    /// The settings of this process, and a new one as it is typed.
    Settings(u32, String),
    /// The question whether this process shall release its free memory.
    Release(u32),
}

/// What a key does to a cover.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// It stays.
    Stay,
    /// It closes.
    Close,
    /// It closes, and this process is asked for this.
    Ask(u32, String),
}

/// A request to a process that has not answered yet.
#[derive(Debug)]
pub struct Asked {
    pid: u32,
    number: u64,
    text: String,
    /// While it is open, other observers are refused.
    _others_wait: Option<File>,
}

impl Cover {
    /// Handles a key while the cover is open.
    pub fn on_key(&mut self, code: KeyCode) -> Step {
        match (self, code) {
            (Cover::Settings(_, text), KeyCode::Char(c)) => text.push(c),
            (Cover::Settings(_, text), KeyCode::Backspace) => {
                text.pop();
            }
            (Cover::Settings(pid, text), KeyCode::Enter) if !text.is_empty() => {
                return Step::Ask(*pid, text.trim().to_owned());
            }
            (Cover::Release(pid), KeyCode::Char('y')) => {
                return Step::Ask(*pid, request::RELEASE_TEXT.into());
            }
            (Cover::Release(_) | Cover::Settings(..), _) => return Step::Close,
            (_, KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q' | '?' | 'h' | 'p')) => {
                return Step::Close;
            }
            _ => {}
        }
        Step::Stay
    }

    /// The line that replaces the line of keys.
    pub fn question(&self, watch: &Watch) -> Option<String> {
        let Cover::Release(pid) = self else {
            return None;
        };
        let name = watch.by_pid(*pid).map_or("", |process| &process.name);
        Some(format!(
            " Release all free memory of {pid} {name}? y: yes, any other key: no"
        ))
    }

    /// Draws what covers the view.
    pub fn draw(&self, frame: &mut Frame<'_>, watch: &Watch, notes: &[String]) {
        let area = frame.area();
        match self {
            Cover::None | Cover::Release(_) => {}
            Cover::Help => framed(frame, area, " ebbtide top ", help(notes)),
            Cover::Parts(pid) => of_process(frame, watch, *pid, "memory", parts),
            Cover::Settings(pid, text) => {
                of_process(frame, watch, *pid, "settings", |process| {
                    settings(process, text)
                });
            }
        }
    }
}

/// Asks the process. Returns what to show: that it was asked, or why not.
pub fn ask(watch: &Watch, pid: u32, text: &str) -> (Option<Asked>, String) {
    let sent = request::check(text).and_then(|()| {
        let process = watch.by_pid(pid).filter(|process| process.ended.is_none());
        let ended = || anyhow::anyhow!("process {pid} has ended");
        process.ok_or_else(ended)?.ask(text)
    });
    match sent {
        Ok((number, others_wait)) => {
            let told = format!(
                " {pid}: '{text}' was asked; it answers when it has a worker or makes a slow call"
            );
            let text = text.to_owned();
            let asked = Asked {
                pid,
                number,
                text,
                _others_wait: Some(others_wait),
            };
            (Some(asked), told)
        }
        Err(error) => (None, format!(" {error:#}")),
    }
}

impl Asked {
    /// The answer, once it is there.
    pub fn answer(&self, watch: &Watch) -> Option<String> {
        let result = watch.by_pid(self.pid)?.answer(self.number)?;
        let told = request::answer(&self.text, result);
        Some(format!(" {}: {told}", self.pid))
    }
}

/// Draws a cover about a process in the middle of the view.
fn of_process(
    frame: &mut Frame<'_>,
    watch: &Watch,
    pid: u32,
    what: &str,
    lines: impl FnOnce(&Process) -> Vec<Line<'static>>,
) {
    const WIDTH: u16 = 72;
    let (name, lines) = match watch.by_pid(pid) {
        Some(process) => (process.name.clone(), lines(process)),
        None => (String::new(), vec![Line::from(" The process has ended.")]),
    };
    let all = frame.area();
    // Long lines are wrapped.
    let inside = usize::from(WIDTH.min(all.width).saturating_sub(2)).max(1);
    let rows: usize = lines
        .iter()
        .map(|l| l.width().div_ceil(inside).max(1))
        .sum();
    let height = (rows as u16 + 2).min(all.height);
    let area = all.centered(
        Constraint::Length(WIDTH.min(all.width)),
        Constraint::Length(height),
    );
    framed(frame, area, &format!(" {pid} {name}: {what} "), lines);
}

fn framed(frame: &mut Frame<'_>, area: Rect, title: &str, lines: Vec<Line<'static>>) {
    frame.render_widget(Clear, area);
    let text = Paragraph::new(lines).wrap(Wrap { trim: false });
    frame.render_widget(text.block(Block::bordered().title(title.to_owned())), area);
}

/// Columns and keys.
fn help(notes: &[String]) -> Vec<Line<'static>> {
    // The keys come first, in case the terminal is too small for the rest.
    let mut lines = vec![
        Line::from(" q, Esc: quit   up, down, Home, End: select   s: change the order   ?: help"),
        Line::from(
            " p: parts of the process's memory   e: its settings   r: let it release its free memory",
        ),
        Line::from(" ≤: an upper bound, because part of it may not be resident"),
        Line::from(""),
    ];
    let line = |c: &Column| Line::from(format!(" {:<9} {}", c.head(), c.about));
    lines.extend(COLUMNS.iter().map(line));
    lines.push(Line::from(""));
    lines.extend(notes.iter().map(|note| Line::from(format!(" {note}"))));
    lines
}

/// The parts of a process's memory, with their sizes.
fn parts(process: &Process) -> Vec<Line<'static>> {
    let f = &process.figures;
    let without_lazy = process.rss_without_lazy_bytes;
    let rows = [
        ("resident", "", Some(process.rss_bytes)),
        ("without lazy pages", "", without_lazy),
        ("live: the program holds it", "≤", Some(f.live_bytes)),
        (
            "  of that, allocations above 256 KiB",
            "≤",
            Some(f.large_bytes),
        ),
        ("dirty: freed and kept", "≤", Some(f.dirty_bytes)),
        (
            "lazy: freed, the kernel may take it",
            "≤",
            Some(f.lazy_bytes),
        ),
        ("between live objects", "≤", Some(f.in_spans_bytes)),
        ("in caches of CPUs", "≤", Some(f.cached_bytes)),
        ("on its way to the kernel", "≤", Some(f.pending_bytes)),
        (
            "in huge pages that did not split",
            "≤",
            Some(f.unsplit_bytes),
        ),
        ("per-CPU data", "≤", Some(f.percpu_bytes)),
        ("Ebbtide's own records", "≤", Some(f.metadata_bytes)),
    ];
    let shown = |value: Option<u64>| value.map_or("-".into(), bytes);
    let lines = rows.map(|(name, bound, value)| {
        let value = format!("{bound}{}", shown(value));
        Line::from(format!(" {name:<38}{value:>14}"))
    });
    lines.into()
}

/// The settings of a process, and the line for a new one.
fn settings(process: &Process, typed: &str) -> Vec<Line<'static>> {
    let f = &process.figures;
    let conf = match process.conf.as_str() {
        "" => "none, so all keys have their defaults",
        conf => conf,
    };
    let mode = match f.rseq_mode {
        1 => "rseq: no locks in malloc and free",
        _ => "portable: under locks",
    };
    vec![
        Line::from(format!(" EBBTIDE_CONF at the start: {conf}")),
        Line::from(format!(" mode: {mode}")),
        Line::from(format!(" exit: {}", process.exit)),
        Line::from(format!(" workers have used {}", duration(f.worker_ns))),
        Line::from(""),
        Line::from(format!(" new value: {typed}█")).bold(),
        Line::from(" retain_ms=… and limit=… can change now. Enter: set   Esc: close").dim(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::table::tests::watch;

    fn typed(cover: &mut Cover, text: &str) {
        text.chars()
            .for_each(|c| assert_eq!(cover.on_key(KeyCode::Char(c)), Step::Stay));
    }

    #[test]
    fn a_release_needs_a_yes() {
        let step = |code| Cover::Release(8).on_key(code);
        assert_eq!(step(KeyCode::Char('y')), Step::Ask(8, "release".into()));
        for code in [
            KeyCode::Enter,
            KeyCode::Char('n'),
            KeyCode::Esc,
            KeyCode::Char('r'),
        ] {
            assert_eq!(step(code), Step::Close);
        }
        let question = Cover::Release(8).question(&watch()).unwrap();
        assert!(
            question.contains("8 large?") && question.contains("y: yes"),
            "{question}"
        );
        assert_eq!(Cover::Help.question(&watch()), None);
    }

    #[test]
    fn a_setting_is_typed() {
        let mut cover = Cover::Settings(7, String::new());
        assert_eq!(cover.clone().on_key(KeyCode::Enter), Step::Close);
        typed(&mut cover, "retain_ms=12q");
        assert_eq!(cover.on_key(KeyCode::Backspace), Step::Stay);
        assert_eq!(
            cover.on_key(KeyCode::Enter),
            Step::Ask(7, "retain_ms=12".into())
        );
        assert_eq!(cover.on_key(KeyCode::Esc), Step::Close);
    }

    #[test]
    fn what_cannot_be_asked_is_told() {
        let watch = watch();
        let told = |pid, text| {
            let (asked, told) = ask(&watch, pid, text);
            assert!(asked.is_none());
            told
        };
        assert!(told(7, "retian_ms=1").contains("retain_ms"));
        assert!(told(99, "release").contains("99 has ended"));
        assert!(told(7, "release").contains("statistics page is gone"));
    }

    #[test]
    fn an_answer_is_awaited() {
        let mut watch = watch();
        let asked = |text: &str| Asked {
            pid: 7,
            number: 3,
            text: text.into(),
            _others_wait: None,
        };
        assert_eq!(asked("release").answer(&watch), None);
        let figures = &mut watch.processes[0].figures.figures;
        (figures.request_done, figures.request_result) = (3, 2 << 20);
        assert_eq!(
            asked("release").answer(&watch).unwrap(),
            " 7: ≤ 2.0 MiB released"
        );
        watch.processes[0].figures.figures.request_result = 0;
        assert_eq!(
            asked("limit=1G").answer(&watch).unwrap(),
            " 7: limit=1G is set"
        );
        watch.processes[0].figures.figures.request_result = 2;
        assert!(
            asked("thp=off")
                .answer(&watch)
                .unwrap()
                .contains("cannot change")
        );
    }
}
