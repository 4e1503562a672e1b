//! The stacked chart of `ebbtide top`: resident memory over time, in layers.
//!
//! A column of characters is a time slot. Slots have fixed borders, so the chart moves as a whole. A character is
//! eight steps high. It shows the lowest layer in it, and as background the largest of the other layers.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::widgets::Widget;

use crate::top::watch::{Point, SPAN};

/// Number of layers.
pub const LAYERS: usize = 4;
/// Names of the layers, from the bottom up.
pub const NAMES: [&str; LAYERS] = ["other", "live", "dirty", "lazy"];
/// Colours of the layers.
pub const COLOURS: [Color; LAYERS] = [Color::DarkGray, Color::Green, Color::Red, Color::Yellow];
/// Characters of the layers on a terminal without colours.
pub const SHADES: [&str; LAYERS] = [":", "█", "▓", "░"];

const STEPS: u64 = 8;
const BARS: [&str; STEPS as usize] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Possible time spans. The chart shows the shortest one that holds the whole history.
const SPANS: [Duration; 3] = [Duration::from_secs(30), Duration::from_secs(60), SPAN];

/// The last point in each of `count` time slots, and the time span of all slots.
pub fn slots(
    history: &VecDeque<Point>,
    epoch: Instant,
    now: Instant,
    count: usize,
) -> (Vec<Option<Point>>, Duration) {
    let age = history
        .front()
        .map_or(Duration::ZERO, |p| now.saturating_duration_since(p.at));
    let span = SPANS.into_iter().find(|span| *span >= age).unwrap_or(SPAN);
    let mut slots: Vec<Option<Point>> = vec![None; count];
    let slot_ns = (span.as_nanos() / count.max(1) as u128).max(1);
    let number = |at: Instant| at.saturating_duration_since(epoch).as_nanos() / slot_ns;
    let last = number(now);
    for point in history {
        let back = last.saturating_sub(number(point.at)) as usize;
        if let Some(place) = count.checked_sub(back + 1) {
            slots[place] = Some(*point);
        }
    }
    // A slot without a point shows the point before it: slots may be shorter than the sample interval.
    for place in 1..count {
        slots[place] = slots[place].or(slots[place - 1]);
    }
    (slots, span)
}

/// The chart widget.
#[derive(Debug)]
pub struct Stacked<'a> {
    /// The slots, oldest first.
    pub slots: &'a [Option<Point>],
    /// The value at the upper edge.
    pub most_bytes: u64,
    /// Whether layers are shown in colours; otherwise in shades.
    pub is_coloured: bool,
}

impl Widget for Stacked<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let height = u64::from(area.height) * STEPS;
        for (x, slot) in (area.left()..area.right()).zip(self.slots) {
            let Some(point) = slot else { continue };
            let tops = tops(point.layers(), self.most_bytes, height);
            for (row, y) in (area.top()..area.bottom()).rev().enumerate() {
                let (symbol, style) = self.cell(tops, row as u64 * STEPS);
                if let Some(cell) = buffer.cell_mut((x, y)) {
                    cell.set_symbol(symbol).set_style(style);
                }
            }
        }
    }
}

/// The upper end of each layer, in steps from the bottom.
fn tops(layers: [u64; LAYERS], most: u64, height: u64) -> [u64; LAYERS] {
    let mut sum = 0u128;
    layers.map(|layer| {
        sum += u128::from(layer);
        let steps = sum * u128::from(height) / u128::from(most.max(1));
        (steps as u64).min(height)
    })
}

impl Stacked<'_> {
    /// The character and style of the cell whose lower edge is at `low` steps.
    fn cell(&self, tops: [u64; LAYERS], low: u64) -> (&'static str, Style) {
        let filled = |layer: usize| {
            let below = if layer == 0 { 0 } else { tops[layer - 1] };
            let (from, to) = (below.max(low), tops[layer].min(low + STEPS));
            to.saturating_sub(from)
        };
        if !self.is_coloured {
            let most = (0..LAYERS).max_by_key(|&layer| filled(layer)).unwrap_or(0);
            // A layer that fills half of a character is shown.
            let symbol = if filled(most) * 2 >= STEPS {
                SHADES[most]
            } else {
                " "
            };
            return (symbol, Style::new());
        }
        let Some(lowest) = (0..LAYERS).find(|&layer| filled(layer) > 0) else {
            return (" ", Style::new());
        };
        let steps = filled(lowest);
        let behind = (lowest + 1..LAYERS).max_by_key(|&layer| filled(layer));
        let behind = behind.filter(|&layer| filled(layer) > 0);
        // The rest of the character has one background: a layer, or nothing.
        let is_empty = STEPS - (0..LAYERS).map(filled).sum::<u64>() > behind.map_or(0, filled);
        let style = Style::new().fg(COLOURS[lowest]);
        match behind {
            Some(behind) if !is_empty => (BARS[steps as usize - 1], style.bg(COLOURS[behind])),
            _ => (BARS[steps as usize - 1], style),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at: Instant, rss: u64) -> Point {
        Point {
            at,
            rss_bytes: rss,
            live_bytes: rss / 2,
            dirty_bytes: rss / 4,
            lazy_bytes: 0,
            released_bytes: 0,
            refaulted_bytes: 0,
            worker_ns: 0,
        }
    }

    #[test]
    fn slots_keep_the_last_point_and_carry_it() {
        let epoch = Instant::now();
        let at = |s: f64| epoch + Duration::from_secs_f64(s);
        let history = [(1.0, 1), (1.4, 2), (7.0, 3)];
        let history: VecDeque<Point> = history.map(|(s, rss)| point(at(s), rss)).into();
        let (slots, span) = slots(&history, epoch, at(9.5), 30);
        assert_eq!(span, Duration::from_secs(30));
        let values: Vec<u64> = slots.iter().map(|s| s.map_or(0, |p| p.rss_bytes)).collect();
        assert_eq!(values[..21], [0; 21]);
        assert_eq!(values[21..], [2, 2, 2, 2, 2, 2, 3, 3, 3]);
        let (_, span) = super::slots(&history, epoch, at(100.0), 30);
        assert_eq!(span, SPAN);
        assert!(super::slots(&history, epoch, at(9.0), 0).0.is_empty());
    }

    #[test]
    fn layers_stand_on_each_other() {
        assert_eq!(tops([25, 50, 25, 0], 200, 16), [2, 6, 8, 8]);
        assert_eq!(tops([0; 4], 0, 16), [0; 4]);
        let chart = |is_coloured| Stacked {
            slots: &[],
            most_bytes: 0,
            is_coloured,
        };
        let (symbol, style) = chart(true).cell([2, 6, 8, 8], 0);
        assert_eq!(
            (symbol, style.fg, style.bg),
            ("▂", Some(COLOURS[0]), Some(COLOURS[1]))
        );
        assert_eq!(chart(true).cell([2, 6, 8, 8], 8).0, " ");
        assert_eq!(
            chart(true).cell([3, 3, 3, 3], 0),
            ("▃", Style::new().fg(COLOURS[0]))
        );
        assert_eq!(chart(false).cell([2, 6, 8, 8], 0).0, "█");
        assert_eq!(chart(false).cell([0, 0, 8, 8], 0).0, "▓");
        assert_eq!(chart(false).cell([0, 0, 0, 3], 0).0, " ");
    }
}
