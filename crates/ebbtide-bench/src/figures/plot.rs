//! Pictures of results as SVG: memory over time, and figures side by side.
//!
//! A picture is [`WIDTH`] units wide and its text 13 units high, so the text stays readable where a picture fills the
//! width of a phone. The templates `curves.svg`, `bars.svg` and `panels.svg` draw; `plot.css` has the colours of a light page and of
//! a dark one.

use std::ops::Range;

use askama::Template;

/// One line.
#[derive(Debug)]
pub struct Line {
    /// Its name, in the list below the plot.
    pub name: String,
    /// Points in the order of x.
    pub points: Vec<(f64, f64)>,
    /// A reference rather than a measurement.
    pub is_reference: bool,
}

/// One figure.
#[derive(Debug)]
pub struct Bar {
    /// Its name, above it.
    pub name: String,
    /// The text at the right of the name.
    pub label: String,
    /// Median and quartiles; none where there is no figure.
    pub value: Option<(f64, Range<f64>)>,
}

/// Units across. A phone shows about as many pixels.
const WIDTH: usize = 400;
/// Pixels across of a file, where its page does not say otherwise.
const FILE_WIDTH: usize = 640;
/// Width of a character, about.
const CHARACTER: usize = 7;
/// Around everything.
const MARGIN: usize = 8;
/// Of a line of the caption, and of a bar.
const LONGEST: usize = WIDTH - 2 * MARGIN;
/// Height of a line of the list of names.
const ROW: usize = 20;
/// Height of a line of the caption.
const CAPTION_ROW: usize = 17;
/// Height of a bar with its name.
const BAR_ROW: usize = 38;
/// Where the curves are, their height, and where the list of names begins.
const ACROSS: Range<f64> = 52.0..388.0;
const DOWN: usize = 220;
const LEGEND: usize = DOWN + 52;
/// Between the highest curve and the end of its axis, so that a line at the top is not taken for a frame.
const HEADROOM: f64 = 1.05;
/// Steps of an axis, at most.
const STEPS: f64 = 5.0;
/// Colours of lines; one that comes later has a colour again.
const COLOURS: usize = 13;

/// A drawing as a file of its own.
pub fn file(svg: &str) -> String {
    let style = include_str!("../../templates/plot.css");
    let head = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{FILE_WIDTH}\" ");
    let style = format!(">\n<style>{style}</style>\n");
    svg.replacen("<svg ", &head, 1).replacen(">\n", &style, 1)
}

/// What every picture has.
struct Frame {
    title: String,
    /// All values in words.
    about: String,
    /// Above everything, in as many lines as it takes.
    caption: Vec<String>,
    /// Where the drawing begins below the caption, and where it ends.
    top: usize,
    height: usize,
}

impl Frame {
    fn new(title: &str, caption: &str, about: Vec<String>, drawing: usize) -> Self {
        let caption = wrapped(caption, LONGEST);
        let top = MARGIN + caption.len() * CAPTION_ROW + MARGIN;
        Frame {
            title: title.into(),
            about: about.join("; "),
            caption,
            top,
            height: top + drawing,
        }
    }
}

#[derive(Template)]
#[template(path = "curves.svg")]
struct Curves<'a> {
    frame: Frame,
    lines: &'a [Line],
    x_axis: Range<f64>,
    y_axis: Range<f64>,
    /// Of the list of names.
    columns: usize,
}

/// Lines over seconds; `unit` is that of the other axis, and `caption` stands above. The first line is Ebbtide's. A line
/// that ends before the others is marked there and continued in dots.
pub fn curves(title: &str, caption: &str, unit: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let y_axis = axis(points().map(|p| p.1));
    let is_short = |line: &Line| width(&line.name) + 40 <= WIDTH / 2;
    let columns = if lines.iter().all(is_short) { 2 } else { 1 };
    let ends = lines.iter().filter_map(|line| {
        let (at, value) = line.points.last()?;
        let (at, value) = (number(at), number(value));
        Some(format!("{} {value} {unit} after {at} s", line.name))
    });
    let height = LEGEND + lines.len().div_ceil(columns) * ROW;
    let curves = Curves {
        frame: Frame::new(title, caption, ends.collect(), height),
        lines,
        x_axis: axis(points().map(|p| p.0)),
        y_axis: y_axis.start * HEADROOM..y_axis.end * HEADROOM,
        columns,
    };
    curves.to_string()
}

impl Curves<'_> {
    fn x(&self, value: &f64) -> f64 {
        place(*value, &self.x_axis, ACROSS)
    }

    fn y(&self, value: &f64) -> f64 {
        place(*value, &self.y_axis, DOWN as f64..0.0)
    }

    /// Where a line ends, if that is before the end of the window.
    fn early_end(&self, line: &Line) -> Option<(f64, f64)> {
        let (x, y) = line.points.last()?;
        Some((self.x(x), self.y(y))).filter(|(x, _)| *x < ACROSS.end - 1.0)
    }
}

/// One of several small plots.
#[derive(Debug)]
pub struct Panel {
    /// Its name, above it.
    pub name: String,
    /// Its lines; those of the same name have the same colour in all panels.
    pub lines: Vec<Line>,
}

/// Panels side by side.
const PANELS: usize = 2;
/// Where the curves of a panel are.
const PANEL_ACROSS: Range<f64> = 34.0..186.0;
const PANEL_DOWN: Range<f64> = 18.0..106.0;
/// Height of a panel with its name and axis.
const PANEL_ROW: usize = 138;

#[derive(Template)]
#[template(path = "panels.svg")]
struct Panels<'a> {
    frame: Frame,
    panels: Vec<Small<'a>>,
    names: Vec<&'a str>,
    /// Of the list of names.
    columns: usize,
    legend: usize,
}

/// A panel with its axes.
struct Small<'a> {
    name: &'a str,
    /// Each with its colour. The last one is above the others.
    lines: Vec<(usize, Vec<(f64, f64)>)>,
    x_axis: Range<f64>,
    y_axis: Range<f64>,
}

/// Small plots with a common list of names. The first line of the first panel is Ebbtide's.
pub fn panels(title: &str, caption: &str, panels: &[Panel]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for line in panels.iter().flat_map(|panel| &panel.lines) {
        if !names.contains(&line.name.as_str()) {
            names.push(&line.name);
        }
    }
    let ends = panels.iter().flat_map(|panel| {
        let highest = |line: &Line| line.points.iter().map(|p| p.1).fold(0.0, f64::max);
        let told = |line: &Line| {
            format!(
                "{}, {}: at most {:.0}",
                panel.name,
                line.name,
                highest(line)
            )
        };
        panel.lines.iter().map(told).collect::<Vec<_>>()
    });
    let small = panels.iter().map(|panel| {
        let points = || panel.lines.iter().flat_map(|line| &line.points);
        let colour = |line: &Line| names.iter().position(|name| *name == line.name);
        let lines = panel.lines.iter().rev();
        Small {
            name: &panel.name,
            lines: lines
                .map(|line| (colour(line).unwrap_or(0) % COLOURS, thinned(&line.points)))
                .collect(),
            x_axis: axis(points().map(|p| p.0)),
            y_axis: axis(points().map(|p| p.1 * HEADROOM)),
        }
    });
    let small = small.collect();
    let is_short = |name: &&str| width(name) + 40 <= WIDTH / 2;
    let columns = if names.iter().all(is_short) { 2 } else { 1 };
    let legend = panels.len().div_ceil(PANELS) * PANEL_ROW + MARGIN;
    let height = legend + names.len().div_ceil(columns) * ROW;
    let panels = Panels {
        frame: Frame::new(title, caption, ends.collect(), height),
        panels: small,
        names,
        columns,
        legend,
    };
    panels.to_string()
}

/// As many points as a panel can show, the highest of each part.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let room = (PANEL_ACROSS.end - PANEL_ACROSS.start) as usize;
    let parts = points.chunks(points.len().div_ceil(room).max(1));
    let highest = parts.filter_map(|part| {
        part.iter()
            .copied()
            .reduce(|a, b| if b.1 > a.1 { b } else { a })
    });
    highest.collect()
}

impl Small<'_> {
    fn x(&self, value: &f64) -> f64 {
        place(*value, &self.x_axis, PANEL_ACROSS)
    }

    fn y(&self, value: &f64) -> f64 {
        place(*value, &self.y_axis, PANEL_DOWN.end..PANEL_DOWN.start)
    }
}

fn class(colour: usize, line: &Line) -> String {
    match line.is_reference {
        true => "reference".into(),
        false => format!("c{colour}"),
    }
}

#[derive(Template)]
#[template(path = "bars.svg")]
struct Bars<'a> {
    frame: Frame,
    rows: &'a [Bar],
    /// From zero to the largest value.
    scale: Range<f64>,
}

/// Figures side by side, each with its quartiles; the first is Ebbtide's.
pub fn bars(title: &str, caption: &str, rows: &[Bar]) -> String {
    let values = rows.iter().filter_map(|row| row.value.as_ref());
    let most = values.map(|(median, to)| median.max(to.end));
    let figures = rows.iter();
    let figures = figures.map(|row| format!("{}: {}", row.name, row.label));
    let bars = Bars {
        frame: Frame::new(title, caption, figures.collect(), rows.len() * BAR_ROW),
        rows,
        scale: 0.0..most.fold(1e-9, f64::max),
    };
    bars.to_string()
}

impl Bars<'_> {
    fn length(&self, value: &f64) -> f64 {
        place(value.max(0.0), &self.scale, 0.0..LONGEST as f64)
    }

    /// As much of the name as has room beside the label.
    fn name(&self, row: &Bar) -> String {
        let label = width(&row.label) + CHARACTER;
        fitting(&row.name, LONGEST.saturating_sub(label))
    }
}

/// From zero to the farthest value on either side of it: a machine can have more memory than before, too. Never so
/// short that a value lies beyond what a picture can hold.
fn axis(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((0.0, 0.0), |(low, high): (f64, f64), value| {
        (low.min(value), high.max(value))
    });
    low..if high - low < 1e-9 { low + 1.0 } else { high }
}

/// To a tenth of a unit.
fn place(value: f64, from: &Range<f64>, to: Range<f64>) -> f64 {
    let at = to.start + (value - from.start) / (from.end - from.start) * (to.end - to.start);
    (at * 10.0).round() / 10.0
}

/// Round numbers on an axis.
fn ticks(axis: &Range<f64>) -> Vec<f64> {
    let least = (axis.end - axis.start) / STEPS;
    let power = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|step| *step >= least);
    let step = step.unwrap_or(10.0 * power);
    let (first, last) = ((axis.start / step).ceil(), (axis.end / step).floor());
    let numbers = 0..=(last - first) as i64;
    numbers.map(|i| (first + i as f64) * step).collect()
}

/// As short as it can be without another meaning.
fn number(value: &f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if !(1e-3..1e6).contains(&v) => format!("{value:.1e}"),
        _ => {
            let text = format!("{value:.3}");
            text.trim_end_matches('0').trim_end_matches('.').into()
        }
    }
}

fn width(text: &str) -> usize {
    text.chars().count() * CHARACTER
}

/// A text in lines, cut between words.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        if let Some(line) = lines.last_mut()
            && (line.is_empty() || width(line) + width(word) + CHARACTER <= room)
        {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        } else {
            lines.push(word.into());
        }
    }
    lines
}

/// The beginning of a text for which there is not enough room.
fn fitting(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.into();
    }
    let kept = (room / CHARACTER).saturating_sub(1).max(1);
    text.chars().take(kept).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[(f64, f64)], is_reference: bool) -> Line {
        Line {
            name: name.into(),
            points: points.into(),
            is_reference,
        }
    }

    #[test]
    fn every_line_is_drawn_and_named() {
        let falls = [(0.0, 100.0), (9.0, 10.0)];
        let lines = [line("a<b", &falls, false), line("live", &falls, true)];
        let drawn = curves("t & u", "memory, MiB", "MiB", &lines);
        for text in [
            "a&#60;b",
            "live",
            "MiB",
            "<title>t &#38; u</title>",
            "a&#60;b 10 MiB after 9 s",
        ] {
            assert!(drawn.contains(text), "{text}: {drawn}");
        }
        assert!(!drawn.contains("NaN") && !drawn.contains("inf") && !drawn.contains("continued"));
        // A machine that has more memory than before throughout, and one where nothing changed.
        for value in [-5.0, -1e12, 0.0, 1e-12, 1e12] {
            let drawn = curves(
                "t",
                "memory, MiB",
                "MiB",
                &[line("a", &[(0.0, value), (9.0, value / 2.0)], false)],
            );
            assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{value}");
            let lines = drawn.lines().filter(|l| l.contains("polyline"));
            let own = lines.filter(|l| l.contains("class=\"c0\"")).count();
            assert_eq!(own, 2, "the line and its name's: {value}: {drawn}");
        }
        let empty = curves("t", "memory, MiB", "MiB", &[]);
        assert!(empty.starts_with("<svg") && !empty.contains("NaN"));
    }

    #[test]
    fn a_line_that_ends_early_is_continued_to_the_end() {
        let whole = line("whole", &[(0.0, 9.0), (9.0, 9.0)], false);
        let early = line("early", &[(0.0, 9.0), (3.0, 1.0)], false);
        let drawn = curves("t", "memory, MiB", "MiB", &[whole, early]);
        let continued = drawn.lines().find(|l| l.contains("continued")).unwrap();
        assert!(
            continued.contains("c1 ") && continued.contains("H388\""),
            "{continued}"
        );
        assert_eq!(drawn.matches("<circle").count(), 1);
    }

    #[test]
    fn every_figure_has_its_bar_or_its_reason() {
        let bar = |name: &str, value| Bar {
            name: name.into(),
            label: format!("label of {name}"),
            value,
        };
        let one = bars("t", "c", &[bar("none", None)]);
        let two = bars(
            "t",
            "c",
            &[bar("own", Some((2.0, 1.0..3.0))), bar("none", None)],
        );
        for text in ["own", "label of own", "label of none"] {
            assert!(two.contains(text), "{two}");
        }
        let rectangles = |svg: &str| svg.matches("<rect").count();
        assert_eq!(rectangles(&two), rectangles(&one) + 1);
        let long = bars("t", "c", &[bar(&"x".repeat(99), None)]);
        assert!(long.contains("x…</text>") && long.contains(&"x".repeat(99)));
    }

    #[test]
    fn panels_share_colours_and_names() {
        let falls = [(0.0, 100.0), (9.0, 10.0)];
        let panel = |name: &str, lines: &[&str]| Panel {
            name: name.into(),
            lines: lines.iter().map(|name| line(name, &falls, false)).collect(),
        };
        let three = [
            panel("one & one", &["a", "b"]),
            panel("two", &["b"]),
            panel("three", &[]),
        ];
        let drawn = panels("t", "memory, MiB", &three);
        // Three lines, and two in the list of names.
        assert_eq!(drawn.matches("<polyline class=\"c0\"").count(), 2);
        assert_eq!(drawn.matches("<polyline class=\"c1\"").count(), 3);
        assert!(drawn.contains("one &#38; one") && drawn.contains("two, b: at most 100"));
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
        // Ebbtide's line is above the others.
        assert!(drawn.find("\"c1\"").unwrap() < drawn.find("\"c0\"").unwrap());
        let many: Vec<(f64, f64)> = (0..994).map(|n| (n as f64, (n % 7) as f64)).collect();
        let few = thinned(&many);
        assert!((100..=152).contains(&few.len()) && few.iter().all(|p| p.1 == 6.0));
    }

    #[test]
    fn a_file_has_its_style_and_a_name_space() {
        let file = file(&bars("t", "c", &[]));
        assert!(file.starts_with("<svg xmlns=") && file.contains("prefers-color-scheme"));
        assert_eq!(file.matches("<style>").count(), 1);
    }

    #[test]
    fn a_caption_is_cut_between_words() {
        assert_eq!(wrapped("a bb ccc", 5 * CHARACTER), ["a bb", "ccc"]);
        assert_eq!(wrapped("toolong b", 5 * CHARACTER), ["toolong", "b"]);
    }

    #[test]
    fn ticks_are_round() {
        let of = |to: f64| {
            ticks(&(0.0..to))
                .iter()
                .map(number)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(of(9.0), "0 2 4 6 8");
        assert_eq!(of(1.0), "0 0.2 0.4 0.6 0.8 1");
        assert_eq!(of(270.0), "0 100 200");
    }
}
