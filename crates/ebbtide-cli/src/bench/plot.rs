//! Line plots as SVG, without a library: axes with round numbers, one line per
//! name, dashed reference lines, names beside the plot.
//!
//! Colours of text and grid are those of the page around it.

use std::fmt::Write;

/// One line.
#[derive(Debug)]
pub struct Line {
    /// Its name, in the list beside the plot.
    pub name: String,
    /// Points in the order of x.
    pub points: Vec<(f64, f64)>,
    /// A reference rather than a measurement.
    pub is_reference: bool,
}

const WIDTH: f64 = 860.0;
/// More where there are many names.
const HEIGHT: f64 = 340.0;
const NAME_HEIGHT: f64 = 17.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 200.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 42.0;

/// Told apart on white and on black; the first is Ebbtide's.
const COLOURS: &[&str] = &[
    "#0a7ea4", "#d1495b", "#edae49", "#66a182", "#8d6cab", "#c06c2e", "#5b8def", "#9a8c3c",
    "#d17ab8", "#3fa7a0", "#a0a0a0", "#e07a5f", "#6b8f23",
];

/// A plot of `lines`; `x` and `y` name the axes.
pub fn svg(x: &str, y: &str, lines: &[Line]) -> String {
    let height = HEIGHT.max(TOP + NAME_HEIGHT * (lines.len() as f64 + 0.5));
    let points = || lines.iter().flat_map(|l| &l.points);
    let x_max = points().map(|p| p.0).fold(0.0, f64::max).max(1e-9);
    let y_step = step(points().map(|p| p.1).fold(0.0, f64::max).max(1e-9));
    let y_max = (points().map(|p| p.1).fold(0.0, f64::max) / y_step)
        .ceil()
        .max(1.0)
        * y_step;
    let at_x = |v: f64| LEFT + v / x_max * (WIDTH - LEFT - RIGHT);
    let at_y = |v: f64| height - BOTTOM - v.max(0.0) / y_max * (height - TOP - BOTTOM);

    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n",
        escape(&format!("{y} over {x}"))
    );
    let mut text = |px: f64, py: f64, anchor: &str, what: &str| {
        let _ = writeln!(
            out,
            "<text x=\"{px:.1}\" y=\"{py:.1}\" text-anchor=\"{anchor}\">{}</text>",
            escape(what)
        );
    };
    let bottom = height - BOTTOM;
    for tick in ticks(x_max, step(x_max)) {
        text(at_x(tick), bottom + 16.0, "middle", &number(tick));
    }
    for tick in ticks(y_max, y_step) {
        text(LEFT - 8.0, at_y(tick) + 4.0, "end", &number(tick));
    }
    text((LEFT + WIDTH - RIGHT) / 2.0, height - 6.0, "middle", x);
    let _ = writeln!(
        out,
        "<text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        (TOP + bottom) / 2.0,
        escape(y)
    );
    for tick in ticks(y_max, y_step) {
        let _ = writeln!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {0:.1}H{1:.1}\"/>",
            at_y(tick),
            WIDTH - RIGHT
        );
    }
    // Ebbtide's line is drawn last, above the others.
    for (i, line) in lines.iter().enumerate().rev() {
        let mut path = String::new();
        for (n, (px, py)) in line.points.iter().enumerate() {
            let letter = if n == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{:.1} {:.1}", at_x(*px), at_y(*py));
        }
        let (class, colour) = look(i, line);
        let legend = TOP + 8.0 + i as f64 * NAME_HEIGHT;
        let _ = writeln!(
            out,
            "<g class=\"{class}\" stroke=\"{colour}\"><title>{0}</title><path d=\"{path}\"/>\
             <path d=\"M{1:.1} {legend:.1}h18\"/><text x=\"{2:.1}\" y=\"{3:.1}\">{0}</text></g>",
            escape(&line.name),
            WIDTH - RIGHT + 12.0,
            WIDTH - RIGHT + 36.0,
            legend + 4.0
        );
    }
    out.push_str("</svg>\n");
    out
}

fn look(place: usize, line: &Line) -> (&'static str, &'static str) {
    if line.is_reference {
        ("line reference", "currentColor")
    } else if place == 0 {
        ("line own", COLOURS[0])
    } else {
        ("line", COLOURS[1 + (place - 1) % (COLOURS.len() - 1)])
    }
}

/// 1, 2 or 5 times a power of ten, four to ten of which reach `max`.
fn step(max: f64) -> f64 {
    let power = 10f64.powf(max.log10().floor());
    match max / power {
        m if m < 2.0 => power / 5.0,
        m if m < 5.0 => power / 2.0,
        _ => power,
    }
}

fn ticks(max: f64, step: f64) -> impl Iterator<Item = f64> {
    let count = (max / step + 1e-6).floor() as u32;
    (0..=count).map(move |i| f64::from(i) * step)
}

fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
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

    #[test]
    fn steps_are_round_and_few() {
        for (max, expected) in [(9.0, 1.0), (1024.0, 200.0), (3.0, 0.5), (0.3, 0.05)] {
            assert!((step(max) - expected).abs() < 1e-9, "{max}");
            assert!((4..=11).contains(&ticks(max, step(max)).count()), "{max}");
        }
        assert_eq!(number(0.5), "0.5");
        assert_eq!(number(200.0), "200");
    }

    #[test]
    fn every_line_is_drawn_and_named() {
        let line = |name: &str, is_reference| Line {
            name: name.into(),
            points: vec![(0.0, 100.0), (9.0, 10.0)],
            is_reference,
        };
        let drawn = svg("s", "MiB", &[line("a<b", false), line("live", true)]);
        assert!(drawn.contains("a&lt;b") && drawn.contains("reference"));
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
        let empty = svg("s", "MiB", &[]);
        assert!(empty.starts_with("<svg") && !empty.contains("NaN"));
    }
}
