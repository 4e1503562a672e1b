//! Pictures of results as SVG: memory over time, and figures side by side.
//!
//! A picture is [`WIDTH`] units wide and its text [`FONT`] units high, so the text stays readable where a picture fills the
//! width of a phone. Attributes hold the light colours; [`style`] replaces them where the reader prefers a dark page.

use std::fmt::Write;
use std::ops::Range;

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
const WIDTH: i32 = 400;
/// Pixels across of a file, where its page does not say otherwise.
const FILE_WIDTH: i32 = 640;
/// Height of text.
const FONT: i32 = 13;
/// Width of a character, about.
const CHARACTER: i32 = 7;
/// Around everything.
const MARGIN: i32 = 8;
/// Height of a line of the list of names.
const ROW: i32 = 20;
/// Height of a line of the caption.
const CAPTION_ROW: i32 = 17;
/// Height of a bar with its name.
const BAR_ROW: i32 = 38;
const BAR: i32 = 12;
/// Where the curves are, and their height.
const ACROSS: Range<i32> = 52..WIDTH - 12;
const DOWN: i32 = 220;
/// Between the highest curve and the end of its axis, so that a line at the top is not taken for a frame.
const HEADROOM: f64 = 1.05;
/// Steps of an axis, at most.
const STEPS: f64 = 5.0;

/// On a light ground and on a dark one, in the order of lines; the first is Ebbtide's.
const COLOURS: [[&str; 2]; 13] = [
    ["#0A7EA4", "#4CC2EA"],
    ["#C8324A", "#FF7F8E"],
    ["#A86F00", "#F0B94D"],
    ["#3F7F5C", "#7CCBA2"],
    ["#7A55A0", "#BFA0E0"],
    ["#8C4A1A", "#E09A66"],
    ["#2F62C9", "#8FB4FF"],
    ["#6F6420", "#CFC16A"],
    ["#A8478A", "#EE9FD2"],
    ["#1F7F78", "#6FD6CE"],
    ["#5F5F5F", "#B5B5B5"],
    ["#B34A2F", "#FFA98F"],
    ["#4A7010", "#A9D45C"],
];
/// The colour of every bar but Ebbtide's.
const OTHERS: usize = 10;
/// The same two of text, of the ground and of the grid.
const INK: [&str; 2] = ["#111111", "#E6E6E6"];
/// The ground.
pub const GROUND: [&str; 2] = ["#FFFFFF", "#16181C"];
const GRID: [&str; 2] = ["#DDDDDD", "#3A3E45"];

/// The dark colours, for a page or a file with pictures.
pub fn style() -> String {
    let mut css = String::from("@media (prefers-color-scheme: dark) {");
    let mut rule = |class: &str, property: &str, colour: &str| {
        let _ = write!(css, ".plot .{class}{{{property}:{colour}}}");
    };
    for (place, [_, dark]) in COLOURS.iter().enumerate() {
        rule(&format!("s{place}"), "stroke", dark);
        rule(&format!("f{place}"), "fill", dark);
    }
    rule("ink", "fill", INK[1]);
    rule("reference", "stroke", INK[1]);
    rule("ground", "fill", GROUND[1]);
    rule("grid", "stroke", GRID[1]);
    css.push('}');
    css
}

/// A drawing as a file of its own.
pub fn file(svg: &str) -> String {
    let head = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{FILE_WIDTH}\" ");
    let style = format!(">\n<style>{}</style>\n", style());
    svg.replacen("<svg ", &head, 1).replacen(">\n", &style, 1)
}

/// Lines over seconds; `unit` is that of the other axis, and `caption` stands above. The first line is Ebbtide's. A line that ends before the others is
/// marked there and continued in dots.
pub fn curves(title: &str, caption: &str, unit: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (x_axis, y_axis) = (axis(points().map(|p| p.0)), axis(points().map(|p| p.1)));
    let y_axis = y_axis.start * HEADROOM..y_axis.end * HEADROOM;
    let mut svg = Drawing::default();
    let top = svg.caption(caption);
    let (across, down) = (ACROSS, top..top + DOWN);
    let x = |value: f64| {
        place(
            value,
            &x_axis,
            f64::from(across.start)..f64::from(across.end),
        )
    };
    let y = |value: f64| place(value, &y_axis, f64::from(down.end)..f64::from(down.start));
    for value in ticks(&y_axis) {
        svg.grid(
            (across.start.into(), y(value)),
            (across.end.into(), y(value)),
        );
        svg.text(
            (f64::from(across.start - 6), y(value)),
            "end",
            &number(value),
        );
    }
    for value in ticks(&x_axis) {
        svg.grid(
            (x(value), down.end.into()),
            (x(value), f64::from(down.end + 4)),
        );
        svg.text(
            (x(value), f64::from(down.end + 14)),
            "middle",
            &number(value),
        );
    }
    svg.text(
        (across.end.into(), f64::from(down.end + 32)),
        "end",
        "seconds",
    );
    // Ebbtide's line is drawn last, above the others.
    for (number, line) in lines.iter().enumerate().rev() {
        let points: Vec<_> = line.points.iter().map(|p| (x(p.0), y(p.1))).collect();
        svg.line(number, line.is_reference, &points);
        if let Some(&last) = points.last()
            && last.0 < f64::from(across.end) - 1.0
        {
            svg.continued(number, last, across.end.into());
        }
    }
    let longest = lines.iter().map(|line| width(&line.name) + 40).max();
    let columns = if longest.unwrap_or(0) <= WIDTH / 2 {
        2
    } else {
        1
    };
    let top = down.end + 52;
    for (number, line) in lines.iter().enumerate() {
        let at = number as i32;
        let left = MARGIN + at % columns * (WIDTH / 2);
        let middle = f64::from(top + at / columns * ROW);
        let dash = [(f64::from(left), middle), (f64::from(left + 20), middle)];
        svg.line(number, line.is_reference, &dash);
        svg.text((f64::from(left + 26), middle), "start", &line.name);
    }
    let height = top + (lines.len() as i32 + columns - 1) / columns * ROW;
    let ends = lines.iter().filter_map(|line| {
        let (at, value) = line.points.last()?;
        Some(format!(
            "{} {} {unit} after {} s",
            line.name,
            number(*value),
            number(*at)
        ))
    });
    svg.done(height, title, &ends.collect::<Vec<_>>().join("; "))
}

/// Figures side by side, each with its quartiles; the first is Ebbtide's.
pub fn bars(title: &str, caption: &str, rows: &[Bar]) -> String {
    let values = rows.iter().filter_map(|row| row.value.as_ref());
    let most = values.map(|(median, to)| median.max(to.end));
    let scale = 0.0..most.fold(0.0, f64::max).max(1e-9);
    let x = |value: f64| {
        place(
            value.max(0.0),
            &scale,
            f64::from(MARGIN)..f64::from(WIDTH - MARGIN),
        )
    };
    let mut svg = Drawing::default();
    let first = svg.caption(caption);
    for (number, row) in rows.iter().enumerate() {
        let top = first + number as i32 * BAR_ROW;
        let middle = f64::from(top + FONT / 2 + 1);
        let room = WIDTH - 2 * MARGIN - width(&row.label) - CHARACTER;
        svg.text((MARGIN.into(), middle), "start", &fitting(&row.name, room));
        svg.text((f64::from(WIDTH - MARGIN), middle), "end", &row.label);
        let Some((median, quartiles)) = &row.value else {
            continue;
        };
        let bar = (x(0.0), f64::from(top + FONT + 5));
        svg.bar(
            if number == 0 { 0 } else { OTHERS },
            bar,
            (x(*median) - bar.0).max(1.0),
        );
        let spread = bar.1 + f64::from(BAR) / 2.0;
        svg.spread((x(quartiles.start), spread), (x(quartiles.end), spread));
    }
    let figures = rows
        .iter()
        .map(|row| format!("{}: {}", row.name, row.label));
    let height = first + rows.len() as i32 * BAR_ROW;
    svg.done(height, title, &figures.collect::<Vec<_>>().join("; "))
}

/// The markup so far.
#[derive(Default)]
struct Drawing(String);

type Point = (f64, f64);

impl Drawing {
    /// Above everything, in as many lines as it takes; gives where the rest begins.
    fn caption(&mut self, text: &str) -> i32 {
        let mut top = MARGIN;
        for line in wrapped(text, WIDTH - 2 * MARGIN) {
            self.text((MARGIN.into(), f64::from(top + FONT / 2)), "start", &line);
            top += CAPTION_ROW;
        }
        top + MARGIN
    }

    fn text(&mut self, (x, y): Point, anchor: &str, text: &str) {
        let (ink, text) = (INK[0], escape(text));
        self.add(format_args!(
            "<text class=\"ink\" x=\"{x:.1}\" y=\"{y:.1}\" dy=\"0.35em\" text-anchor=\"{anchor}\" fill=\"{ink}\">{text}</text>"
        ));
    }

    fn grid(&mut self, (x1, y1): Point, (x2, y2): Point) {
        let grid = GRID[0];
        self.add(format_args!(
            "<line class=\"grid\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{grid}\"/>"
        ));
    }

    fn line(&mut self, number: usize, is_reference: bool, points: &[Point]) {
        let colour = number % COLOURS.len();
        let look = match (is_reference, number) {
            (true, _) => format!(
                "class=\"reference\" stroke=\"{}\" stroke-dasharray=\"5 4\"",
                INK[0]
            ),
            (false, 0) => format!(
                "class=\"s0\" stroke=\"{}\" stroke-width=\"4\"",
                COLOURS[0][0]
            ),
            (false, _) => format!(
                "class=\"s{colour}\" stroke=\"{}\" stroke-width=\"2\"",
                COLOURS[colour][0]
            ),
        };
        let points: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let points = points.join(" ");
        self.add(format_args!(
            "<polyline {look} fill=\"none\" points=\"{points}\"/>"
        ));
    }

    /// From the end of a line to the end of the window.
    fn continued(&mut self, number: usize, (x, y): Point, end: f64) {
        let number = number % COLOURS.len();
        let colour = COLOURS[number][0];
        self.add(format_args!(
            "<circle class=\"f{number}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"
        ));
        self.add(format_args!(
            "<path class=\"s{number} continued\" d=\"M{x:.1} {y:.1}H{end:.1}\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"2 5\"/>"
        ));
    }

    fn bar(&mut self, number: usize, (x, y): Point, width: f64) {
        let colour = COLOURS[number][0];
        self.add(format_args!(
            "<rect class=\"f{number}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>"
        ));
    }

    fn spread(&mut self, (x1, y): Point, (x2, _): Point) {
        let ink = INK[0];
        self.add(format_args!(
            "<path class=\"reference\" d=\"M{x1:.1} {y:.1}H{x2:.1}\" stroke=\"{ink}\" stroke-width=\"2\"/>"
        ));
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.0, "{element}");
    }

    fn done(self, height: i32, title: &str, about: &str) -> String {
        let (title, about, ground) = (escape(title), escape(about), GROUND[0]);
        format!(
            "<svg class=\"plot\" role=\"img\" aria-label=\"{title}\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"{FONT}\">\n<title>{title}</title>\n<desc>{about}</desc>\n\
             <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\" fill=\"{ground}\"/>\n{}</svg>\n",
            self.0
        )
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

fn place(value: f64, from: &Range<f64>, to: Range<f64>) -> f64 {
    to.start + (value - from.start) / (from.end - from.start) * (to.end - to.start)
}

/// Round numbers on an axis.
fn ticks(axis: &Range<f64>) -> impl Iterator<Item = f64> {
    let least = (axis.end - axis.start) / STEPS;
    let power = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|step| *step >= least);
    let step = step.unwrap_or(10.0 * power);
    let (first, last) = ((axis.start / step).ceil(), (axis.end / step).floor());
    (0..=(last - first) as i64).map(move |i| (first + i as f64) * step)
}

/// As short as it can be without another meaning.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if !(1e-3..1e6).contains(&v) => format!("{value:.1e}"),
        _ => {
            let text = format!("{value:.3}");
            text.trim_end_matches('0').trim_end_matches('.').into()
        }
    }
}

fn width(text: &str) -> i32 {
    text.chars().count() as i32 * CHARACTER
}

/// A text in lines, cut between words.
fn wrapped(text: &str, room: i32) -> Vec<String> {
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
fn fitting(text: &str, room: i32) -> String {
    if width(text) <= room {
        return text.into();
    }
    let kept = (room / CHARACTER - 1).max(1) as usize;
    text.chars().take(kept).chain(['…']).collect()
}

/// For text inside markup.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[Point], is_reference: bool) -> Line {
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
            "a&lt;b",
            "live",
            "MiB",
            "<title>t &amp; u</title>",
            "a&lt;b 10 MiB after 9 s",
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
            let own = lines.filter(|l| l.contains("#0A7EA4")).count();
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
            continued.contains("s1 ") && continued.contains("H388.0"),
            "{continued}"
        );
        assert_eq!(drawn.matches("<circle").count(), 1);
    }

    #[test]
    fn every_figure_has_its_bar_or_its_reason() {
        let bar = |name: &str, value| Bar {
            name: name.into(),
            label: format!("{name}'s label"),
            value,
        };
        let one = bars("t", "c", &[bar("none", None)]);
        let two = bars(
            "t",
            "c",
            &[bar("own", Some((2.0, 1.0..3.0))), bar("none", None)],
        );
        for text in ["own", "own's label", "none's label"] {
            assert!(two.contains(text), "{two}");
        }
        let rectangles = |svg: &str| svg.matches("<rect").count();
        assert_eq!(rectangles(&two), rectangles(&one) + 1);
        let long = bars("t", "c", &[bar(&"x".repeat(99), None)]);
        assert!(long.contains("x…</text>") && long.contains(&"x".repeat(99)));
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
        let of = |to: f64| ticks(&(0.0..to)).map(number).collect::<Vec<_>>().join(" ");
        assert_eq!(of(9.0), "0 2 4 6 8");
        assert_eq!(of(1.0), "0 0.2 0.4 0.6 0.8 1");
        assert_eq!(of(270.0), "0 100 200");
    }
}
