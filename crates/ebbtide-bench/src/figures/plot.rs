//! Pictures of results as SVG: memory over time, and figures side by side.

use std::fmt::Display;
use std::ops::Range;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

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

/// One figure.
#[derive(Debug)]
pub struct Bar {
    /// Its name, before it.
    pub name: String,
    /// What is written behind it.
    pub label: String,
    /// Median and quartiles; none where there is no figure.
    pub value: Option<(f64, Range<f64>)>,
}

const WIDTH: u32 = 860;
const NAMES: u32 = 230;
const HEIGHT: u32 = 340;
const ROW: i32 = 20;
/// Around a plot.
const MARGIN: i32 = 8;
const FONT: (&str, i32) = ("sans-serif", 13);

/// Told apart on white; the first is Ebbtide's.
const COLOURS: &[RGBColor] = &[
    RGBColor(10, 126, 164),
    RGBColor(209, 73, 91),
    RGBColor(237, 174, 73),
    RGBColor(102, 161, 130),
    RGBColor(141, 108, 171),
    RGBColor(192, 108, 46),
    RGBColor(91, 141, 239),
    RGBColor(154, 140, 60),
    RGBColor(209, 122, 184),
    RGBColor(63, 167, 160),
    RGBColor(150, 150, 150),
    RGBColor(224, 122, 95),
    RGBColor(107, 143, 35),
];

/// Of a character of a name, about.
const CHARACTER: usize = 7;

/// Room for the longest name, and a little.
fn names_width<'a>(names: impl Iterator<Item = &'a String>) -> i32 {
    let longest = names.map(|name| name.chars().count()).max().unwrap_or(0);
    let wanted = (longest * CHARACTER) as u32 + 30;
    wanted.clamp(NAMES, WIDTH / 2) as i32
}

/// From zero to the farthest value on either side of it: a machine can have more memory than before, too. Never so
/// short that a value lies beyond what a picture can hold.
fn axis(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((0.0, 0.0), |(low, high): (f64, f64), value| {
        (low.min(value), high.max(value))
    });
    low..if high - low < 1e-9 { low + 1.0 } else { high }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Lines over seconds; `y` names the axis. The first line is Ebbtide's.
pub fn curves(y: &str, lines: &[Line]) -> Result<String> {
    let height = HEIGHT.max((MARGIN + ROW * (lines.len() as i32 + 1)) as u32);
    drawing(height, |area| {
        let points = || lines.iter().flat_map(|line| &line.points);
        let x_axis = axis(points().map(|p| p.0));
        let y_axis = axis(points().map(|p| p.1));
        let y_axis = y_axis.start * 1.05..y_axis.end * 1.05;
        let names = lines.iter().map(|line| &line.name);
        let (plot, names) = area.split_horizontally(WIDTH as i32 - names_width(names));
        let mut chart = ChartBuilder::on(&plot)
            .margin(MARGIN)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(x_axis, y_axis)
            .map_err(told)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("s")
            .y_desc(y)
            .label_style(FONT)
            .draw()
            .map_err(told)?;
        // Ebbtide's line is drawn last, above the others.
        for (place, line) in lines.iter().enumerate().rev() {
            let points = line.points.iter().copied();
            let style = style(place, line.is_reference);
            if line.is_reference {
                let dashed = DashedLineSeries::new(points, 5, 4, style);
                chart.draw_series(dashed).map_err(told)?;
            } else {
                chart
                    .draw_series(LineSeries::new(points, style))
                    .map_err(told)?;
            }
            let at = MARGIN + ROW / 2 + place as i32 * ROW;
            let dash = PathElement::new([(4, at), (24, at)], style);
            names.draw(&dash).map_err(told)?;
            let name = Text::new(line.name.clone(), (30, at), left());
            names.draw(&name).map_err(told)?;
        }
        Ok(())
    })
}

/// Figures side by side, each with its quartiles; the first is Ebbtide's.
pub fn bars(rows: &[Bar]) -> Result<String> {
    let height = rows.len() as i32 * ROW + 2 * MARGIN;
    drawing(height as u32, |area| {
        let values = rows.iter().filter_map(|row| row.value.as_ref());
        let most = values.map(|(median, to)| median.max(to.end));
        let most = most.fold(0.0, f64::max).max(1e-9);
        let (from, to) = (
            names_width(rows.iter().map(|row| &row.name)),
            WIDTH as i32 - 140,
        );
        let at = |value: f64| from + (value.max(0.0) / most * f64::from(to - from)) as i32;
        for (place, row) in rows.iter().enumerate() {
            let middle = MARGIN + ROW / 2 + place as i32 * ROW;
            let name = Text::new(row.name.clone(), (from - 8, middle), right());
            area.draw(&name).map_err(told)?;
            let mut end = from;
            if let Some((median, quartiles)) = &row.value {
                let colour = COLOURS[usize::from(place > 0) * (COLOURS.len() - 3)];
                let corners = [(from, middle - 6), (at(*median).max(from + 1), middle + 6)];
                let bar = Rectangle::new(corners, colour.filled());
                area.draw(&bar).map_err(told)?;
                let spread = [(at(quartiles.start), middle), (at(quartiles.end), middle)];
                area.draw(&PathElement::new(spread, BLACK)).map_err(told)?;
                end = spread[1].0.max(corners[1].0);
            }
            let label = Text::new(row.label.clone(), (end + 6, middle), left());
            area.draw(&label).map_err(told)?;
        }
        Ok(())
    })
}

fn drawing(height: u32, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE).map_err(told)?;
    draw(&area)?;
    area.present().map_err(told)?;
    drop(area);
    Ok(svg)
}

fn style(place: usize, is_reference: bool) -> ShapeStyle {
    if is_reference {
        return BLACK.mix(0.6).stroke_width(1);
    }
    let colour = COLOURS[place % COLOURS.len()];
    colour.stroke_width(if place == 0 { 4 } else { 2 })
}

fn left() -> TextStyle<'static> {
    FONT.into_text_style(&(WIDTH, HEIGHT))
        .pos(Pos::new(HPos::Left, VPos::Center))
}

fn right() -> TextStyle<'static> {
    left().pos(Pos::new(HPos::Right, VPos::Center))
}

fn told(error: impl Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
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
    fn every_line_is_drawn_and_named() {
        let line = |name: &str, is_reference| Line {
            name: name.into(),
            points: vec![(0.0, 100.0), (9.0, 10.0)],
            is_reference,
        };
        let drawn = curves("MiB", &[line("a<b", false), line("live", true)]).unwrap();
        assert!(drawn.contains("a&lt;b") && drawn.contains("live") && drawn.contains("MiB"));
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
        // A machine that has more memory than before throughout, and one where nothing changed.
        for value in [-5.0, -1e12, 0.0, 1e-12, 1e12] {
            let line = Line {
                name: "a".into(),
                points: vec![(0.0, value), (9.0, value / 2.0)],
                is_reference: false,
            };
            let drawn = curves("MiB", &[line]).unwrap();
            assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{value}");
            let lines = drawn.lines().filter(|l| l.contains("polyline"));
            let own = lines.filter(|l| l.contains("#0A7EA4")).count();
            assert_eq!(own, 2, "the line and its name's: {value}: {drawn}");
        }
        let empty = curves("MiB", &[]).unwrap();
        assert!(empty.starts_with("<svg") && !empty.contains("NaN"));
    }

    #[test]
    fn every_figure_has_its_bar_or_its_reason() {
        let bar = |name: &str, value| Bar {
            name: name.into(),
            label: format!("{name}'s label"),
            value,
        };
        let one = bars(&[bar("none", None)]).unwrap();
        let two = bars(&[bar("own", Some((2.0, 1.0..3.0))), bar("none", None)]).unwrap();
        for text in ["own", "own&apos;s label", "none&apos;s label"] {
            assert!(
                two.contains(text) || two.contains(&text.replace("&apos;", "'")),
                "{two}"
            );
        }
        let rectangles = |svg: &str| svg.matches("<rect").count();
        assert_eq!(rectangles(&two), rectangles(&one) + 1);
    }
}
