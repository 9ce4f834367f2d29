//! Plots as SVG that lies in a page: axes, lines, stacked bars, legends.
//!
//! Owns scales (value to pixel), ticks and the placing of text so that none lies upon another. Knows no record. It is written
//! here, not taken from a plotting crate, because the colours are the page's (light, dark and print by its style sheet) and
//! because one plot is drawn at two widths, so that its text keeps its size on a phone. Invariant: each point given is drawn
//! or, where the scale has no place for it (not finite; not above zero on a logarithm), left out, never moved; all text is
//! escaped here.

use std::fmt::Write;

use crate::words::{self, TimeUnit, escape};

/// Width of a character of the page's 12-pixel font: wide enough for digits and most letters.
const CHARACTER_PX: f64 = 6.8;
const LINE_PX: f64 = 15.0;
/// More would be a smear.
const TICKS_MAX: usize = 24;

/// The size in which the page shows it; the narrow one fits a phone, and half of a wide page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub width: f64,
    pub height: f64,
}

pub const WIDE: Size = Size { width: 1080.0, height: 400.0 };
pub const NARROW: Size = Size { width: 520.0, height: 340.0 };

#[derive(Clone, Debug)]
pub struct Axis {
    pub title: String,
    pub logarithmic: bool,
    pub from: f64,
    pub to: f64,
    pub ticks: Vec<Tick>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    pub at: f64,
    /// Empty for a line of the grid without a number.
    pub label: String,
}

impl Axis {
    /// From 0 to a round number at or above `largest`.
    pub fn linear(title: &str, largest: f64) -> Axis {
        let largest = if largest.is_finite() && largest > 0.0 { largest.clamp(1e-6, 1e15) } else { 1.0 };
        let step = step(largest / 5.0);
        let count = (largest / step - 1e-9).ceil() as usize;
        let ticks = (0..=count).map(|index| index as f64 * step);
        let ticks = ticks.map(|at| Tick { at, label: words::exact(at) }).collect();
        Axis { title: title.to_owned(), logarithmic: false, from: 0.0, to: count as f64 * step, ticks }
    }

    /// From a 1, 2 or 5 at or below `smallest` to one at or above `largest`; both above zero.
    pub fn logarithmic(title: &str, smallest: f64, largest: f64) -> Axis {
        let (smallest, largest) = positive_range(smallest, largest);
        let from = round_down(smallest);
        let mut to = round_up(largest);
        if to <= from {
            to = round_up(from * 1.5);
        }
        let decades = (to / from).log10();
        let mut ticks = Vec::new();
        let every = (decades / 8.0).ceil().max(1.0) as i32;
        for exponent in from.log10().floor() as i32..=to.log10().ceil() as i32 {
            for mantissa in [1.0, 2.0, 5.0] {
                let at = mantissa * 10f64.powi(exponent);
                let labelled = if mantissa == 1.0 { exponent.rem_euclid(every) == 0 } else { decades <= 2.5 };
                let inside = at >= from * 0.999 && at <= to * 1.001;
                if inside && (labelled || decades <= 5.0) {
                    ticks.push(Tick { at, label: if labelled { words::exact(at) } else { String::new() } });
                }
            }
        }
        Axis { title: title.to_owned(), logarithmic: true, from, to, ticks }
    }

    /// For quantiles drawn at `1 / (1 - q)`: as much room for 99 % to 99.9 % as for 90 % to 99 %.
    pub fn percentiles(title: &str, largest: f64) -> Axis {
        let to = if largest.is_finite() { largest.clamp(10.0, 1e9) } else { 10.0 };
        let mut ticks = vec![Tick { at: 2.0, label: "50 %".to_owned() }];
        for nines in 1..=9 {
            let at = 10f64.powi(nines);
            if at <= to * 1.001 {
                let decimals = (nines - 2).max(0) as usize;
                ticks.push(Tick { at, label: format!("{:.decimals$} %", 100.0 - 100.0 / at) });
            }
        }
        Axis { title: title.to_owned(), logarithmic: true, from: 1.0, to, ticks }
    }

    /// A logarithm with a tick at each power of two.
    pub fn powers_of_two(title: &str, smallest: f64, largest: f64) -> Axis {
        let (smallest, largest) = positive_range(smallest, largest);
        let first = smallest.log2().floor() as i32;
        let last = (largest.log2().ceil() as i32).max(first + 1);
        let every = ((last - first) / 16 + 1).max(1) as usize;
        let ticks = (first..=last).step_by(every).map(|power| 2f64.powi(power));
        let ticks = ticks.map(|at| Tick { at, label: words::exact(at) }).collect();
        Axis { title: title.to_owned(), logarithmic: true, from: 2f64.powi(first), to: 2f64.powi(last), ticks }
    }

    /// Where the value lies between the two pixels that the axis' ends have; `None` where the scale has no place for it.
    pub fn place(&self, value: f64, from_px: f64, to_px: f64) -> Option<f64> {
        if !value.is_finite() || (self.logarithmic && value <= 0.0) {
            return None;
        }
        let part = if self.logarithmic {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        Some(from_px + part * (to_px - from_px))
    }
}

/// Both above zero and finite, or a decade that stands for nothing measured.
fn positive_range(smallest: f64, largest: f64) -> (f64, f64) {
    let usable = |value: f64| value.is_finite() && value > 0.0;
    if usable(smallest) && usable(largest) && smallest <= largest {
        (smallest.clamp(1e-9, 1e15), largest.clamp(1e-9, 1e15))
    } else {
        (1.0, 10.0)
    }
}

/// 1, 2 or 5 times a power of ten, at or above the value.
fn step(value: f64) -> f64 {
    round_up(value.clamp(1e-9, 1e15))
}

fn round_up(value: f64) -> f64 {
    let power = 10f64.powi(value.log10().floor() as i32);
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|round| *round >= value * 0.999_999)
        .unwrap_or(value)
}

fn round_down(value: f64) -> f64 {
    let power = 10f64.powi(value.log10().floor() as i32);
    [5.0, 2.0, 1.0].into_iter().map(|digit| digit * power).find(|round| *round <= value * 1.000_001).unwrap_or(value)
}

/// The unit in which an axis over these times reads best: that of the geometric middle.
pub fn unit_over(smallest_us: f64, largest_us: f64) -> TimeUnit {
    let (smallest, largest) = positive_range(smallest_us, largest_us);
    words::unit_of((smallest * largest).sqrt().max(largest / 5000.0))
}

/// A colour of the page's style sheet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// One of eight that colour-blind readers tell apart; more begin anew.
    Of(usize),
    /// A place on a scale from low to high, 0 to 7.
    Level(usize),
    /// For what is left over.
    Rest,
}

impl Colour {
    fn class(self) -> String {
        match self {
            Colour::Of(index) => format!("c{}", index % 8),
            Colour::Level(level) => format!("l{}", level.min(7)),
            Colour::Rest => "rest".to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    Solid,
    Dashed,
    /// A further round of a line that is drawn strongly.
    Faint,
    /// Marks without a line between them.
    Absent,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub colour: Colour,
    pub stroke: Stroke,
    /// Whether each point gets a mark of its own, beside the line.
    pub marks: bool,
    pub points: Vec<Place>,
}

/// A point of a line.
#[derive(Clone, Debug, Default)]
pub struct Place {
    pub x: f64,
    pub y: f64,
    /// Shown under the pointer; nothing is shown where it is empty.
    pub readout: String,
    /// Written beside the point where there is room.
    pub note: String,
}

/// Lines over two axes.
#[derive(Clone, Debug)]
pub struct Chart {
    /// For those who do not see it.
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
}

/// A rectangle that holds text or a mark, so that no text is set upon it.
#[derive(Clone, Copy, Debug)]
struct Extent {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Extent {
    fn meets(self, other: Extent) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    fn inside(self, other: Extent) -> bool {
        self.left >= other.left && self.right <= other.right && self.top >= other.top && self.bottom <= other.bottom
    }
}

fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER_PX
}

impl Chart {
    pub fn svg(&self, size: Size) -> String {
        let widest = self.y.ticks.iter().map(|tick| text_width(&tick.label)).fold(0.0, f64::max);
        let plot = Extent { left: widest + 12.0, top: 30.0, right: size.width - 26.0, bottom: size.height - 46.0 };
        let mut svg = open_svg(&self.title, size);
        self.draw_axes(&mut svg, plot);
        for line in &self.lines {
            self.draw_line(&mut svg, line, plot);
        }
        self.draw_notes(&mut svg, plot);
        // Above all else, so that the pointer finds them.
        for line in &self.lines {
            self.draw_targets(&mut svg, line, plot);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn spot(&self, place: &Place, plot: Extent) -> Option<(f64, f64)> {
        let x = self.x.place(place.x, plot.left, plot.right)?;
        let y = self.y.place(place.y, plot.bottom, plot.top)?;
        Some((x, y))
    }

    fn draw_axes(&self, svg: &mut String, plot: Extent) {
        let Extent { left, top, right, bottom } = plot;
        for (tick, y) in spaced(&self.y, bottom, top, |_| LINE_PX) {
            rule(svg, "grid", (left, y), (right, y));
            text(svg, "tick end", left - 8.0, y + 4.0, &tick);
        }
        for (tick, x) in spaced(&self.x, left, right, |label| text_width(label) + 10.0) {
            rule(svg, "grid", (x, top), (x, bottom));
            text(svg, "tick middle", x, bottom + 18.0, &tick);
        }
        rule(svg, "axis", (left, bottom), (right, bottom));
        text(svg, "title", 0.0, 14.0, &self.y.title);
        text(svg, "title end", right, bottom + 40.0, &self.x.title);
    }

    fn draw_line(&self, svg: &mut String, line: &Line, plot: Extent) {
        let class = line.colour.class();
        let spots: Vec<(f64, f64)> = line.points.iter().filter_map(|place| self.spot(place, plot)).collect();
        let points: Vec<String> = spots.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let mut draw = |stroke: &str| {
            let _ = writeln!(svg, "<polyline class=\"line {class}{stroke}\" points=\"{}\"/>", points.join(" "));
        };
        match line.stroke {
            Stroke::Solid => draw(""),
            Stroke::Dashed => draw(" dashed"),
            Stroke::Faint => draw(" faint"),
            Stroke::Absent => {}
        }
        if line.marks {
            for (x, y) in spots {
                let hollow = if line.stroke == Stroke::Dashed { " hollow" } else { "" };
                let _ = writeln!(svg, "<circle class=\"mark {class}{hollow}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>");
            }
        }
    }

    fn draw_targets(&self, svg: &mut String, line: &Line, plot: Extent) {
        let class = line.colour.class();
        for place in line.points.iter().filter(|place| !place.readout.is_empty()) {
            if let Some((x, y)) = self.spot(place, plot) {
                let readout = escape(&place.readout);
                let _ = writeln!(
                    svg,
                    "<circle class=\"target {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\"><title>{readout}</title></circle>"
                );
            }
        }
    }

    /// Each note goes where it meets no mark, no line and no other note; where there is no such place it is left to the
    /// pointer and the tables.
    fn draw_notes(&self, svg: &mut String, plot: Extent) {
        let mut taken = Vec::new();
        let mut segments = Vec::new();
        for line in &self.lines {
            let spots: Vec<(f64, f64)> = line.points.iter().filter_map(|place| self.spot(place, plot)).collect();
            if line.stroke != Stroke::Absent {
                segments.extend(spots.windows(2).map(|pair| (pair[0], pair[1])));
            }
            if line.marks {
                taken.extend(spots.iter().map(|&(x, y)| around(x, y, 9.0, 9.0)));
            }
        }
        let outer = Extent { left: plot.left, top: plot.top - 12.0, right: plot.right + 26.0, bottom: plot.bottom };
        for place in self.lines.iter().flat_map(|line| &line.points).filter(|place| !place.note.is_empty()) {
            let Some((x, y)) = self.spot(place, plot) else { continue };
            let width = text_width(&place.note);
            let beside = width / 2.0 + 9.0;
            let candidates = [
                (0.0, -14.0),
                (0.0, 14.0),
                (beside, 0.0),
                (-beside, 0.0),
                (beside, -12.0),
                (-beside, -12.0),
                (beside, 12.0),
                (-beside, 12.0),
            ];
            let free =
                candidates.into_iter().map(|(right, down)| around(x + right, y + down, width, 13.0)).find(|extent| {
                    extent.inside(outer)
                        && !taken.iter().any(|other| extent.meets(*other))
                        && !segments.iter().any(|segment| crosses(*segment, *extent))
                });
            if let Some(extent) = free {
                taken.push(extent);
                text(svg, "note middle", (extent.left + extent.right) / 2.0, extent.bottom - 2.5, &place.note);
            }
        }
    }
}

fn around(x: f64, y: f64, width: f64, height: f64) -> Extent {
    Extent { left: x - width / 2.0, top: y - height / 2.0, right: x + width / 2.0, bottom: y + height / 2.0 }
}

/// Whether the segment passes through the rectangle, looked at in steps: near enough for choosing a place for a note.
fn crosses((from, to): ((f64, f64), (f64, f64)), extent: Extent) -> bool {
    (0..=48).any(|index| {
        let part = f64::from(index) / 48.0;
        let (x, y) = (from.0 + part * (to.0 - from.0), from.1 + part * (to.1 - from.1));
        around(x, y, 1.0, 1.0).meets(extent)
    })
}

/// The ticks and their pixels; a label that would touch the one before it is left out, its line stays.
fn spaced(axis: &Axis, from_px: f64, to_px: f64, room: impl Fn(&str) -> f64) -> Vec<(String, f64)> {
    let mut last: Option<(f64, f64)> = None;
    let mut kept = Vec::new();
    for tick in axis.ticks.iter().take(TICKS_MAX) {
        let Some(at) = axis.place(tick.at, from_px, to_px) else { continue };
        let mut label = tick.label.clone();
        if !label.is_empty() {
            let half = room(&label) / 2.0;
            if last.is_some_and(|(place, other_half)| (at - place).abs() < half + other_half) {
                label.clear();
            } else {
                last = Some((at, half));
            }
        }
        kept.push((label, at));
    }
    kept
}

fn open_svg(title: &str, size: Size) -> String {
    let Size { width, height } = size;
    let class = if size.width == WIDE.width { "wide" } else { "narrow" };
    format!("<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n", escape(title))
}

fn rule(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(svg, "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
}

fn text(svg: &mut String, class: &str, x: f64, y: f64, content: &str) {
    if !content.is_empty() {
        let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(content));
    }
}

/// Horizontal bars, each made of parts.
#[derive(Clone, Debug)]
pub struct Bars {
    pub title: String,
    pub x: Axis,
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    /// Written at the end of the row.
    pub total: String,
    pub parts: Vec<Part>,
}

#[derive(Clone, Debug)]
pub struct Part {
    pub colour: Colour,
    pub value: f64,
    pub readout: String,
}

impl Bars {
    /// As high as its rows need.
    pub fn svg(&self, width: f64) -> String {
        const ROW_PX: f64 = 46.0;
        let bottom = 6.0 + ROW_PX * self.rows.len() as f64;
        let (left, right) = (8.0, width - 26.0);
        let mut svg = open_svg(&self.title, Size { width, height: bottom + 46.0 });
        for (label, x) in spaced(&self.x, left, right, |label| text_width(label) + 10.0) {
            rule(&mut svg, "grid", (x, 4.0), (x, bottom));
            text(&mut svg, "tick middle", x, bottom + 18.0, &label);
        }
        rule(&mut svg, "axis", (left, bottom), (right, bottom));
        text(&mut svg, "title end", right, bottom + 40.0, &self.x.title);
        for (index, row) in self.rows.iter().enumerate() {
            let top = 6.0 + ROW_PX * index as f64;
            let room = right - left - text_width(&row.total) - 16.0;
            text(&mut svg, "row", left, top + 13.0, &shortened(&row.name, room));
            text(&mut svg, "row strong end", right, top + 13.0, &row.total);
            self.draw_row(&mut svg, row, top + 19.0, left, right);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn draw_row(&self, svg: &mut String, row: &Row, top: f64, left: f64, right: f64) {
        let mut before = 0.0;
        for part in row.parts.iter().filter(|part| part.value.is_finite() && part.value > 0.0) {
            let (Some(from), Some(to)) =
                (self.x.place(before, left, right), self.x.place(before + part.value, left, right))
            else {
                continue;
            };
            let class = part.colour.class();
            let (width, readout) = ((to - from).max(0.5), escape(&part.readout));
            let _ = writeln!(
                svg,
                "<rect class=\"part {class}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"18\"><title>{readout}</title></rect>"
            );
            before += part.value;
        }
    }
}

/// Cut with an ellipsis where it is wider than the room.
fn shortened(text: &str, room_px: f64) -> String {
    let most = (room_px / CHARACTER_PX).max(4.0) as usize;
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(most - 1).collect();
    cut.push('…');
    cut
}

/// What a colour and stroke mean.
#[derive(Clone, Debug)]
pub struct Key {
    pub colour: Colour,
    pub symbol: Symbol,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol {
    Solid,
    Dashed,
    Bar,
}

/// Outside the plot and in the page's own text, so that long names wrap.
pub fn legend(keys: &[Key]) -> String {
    let mut html = String::from("<ul class=\"legend\">\n");
    for key in keys {
        let class = key.colour.class();
        let sample = match key.symbol {
            Symbol::Solid => format!("<line class=\"line {class}\" x1=\"0\" y1=\"6\" x2=\"22\" y2=\"6\"/>"),
            Symbol::Dashed => format!("<line class=\"line {class} dashed\" x1=\"0\" y1=\"6\" x2=\"22\" y2=\"6\"/>"),
            Symbol::Bar => format!("<rect class=\"part {class}\" x=\"4\" y=\"0\" width=\"12\" height=\"12\"/>"),
        };
        let name = escape(&key.name);
        let _ = writeln!(
            html,
            "<li><svg class=\"key\" viewBox=\"0 0 22 12\" width=\"22\" height=\"12\" aria-hidden=\"true\">{sample}</svg><span>{name}</span></li>"
        );
    }
    html.push_str("</ul>\n");
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| tick.label.as_str()).filter(|label| !label.is_empty()).collect()
    }

    fn near(found: Option<f64>, wanted: f64) {
        let found = found.expect("a place");
        assert!((found - wanted).abs() < 1e-6, "{found}, not {wanted}");
    }

    #[test]
    fn scales_map_known_values_to_known_pixels() {
        let linear = Axis::linear("", 18.0);
        assert_eq!((linear.from, linear.to), (0.0, 20.0));
        assert_eq!(labels(&linear), ["0", "5", "10", "15", "20"]);
        near(linear.place(0.0, 100.0, 500.0), 100.0);
        near(linear.place(5.0, 100.0, 500.0), 200.0);
        // Pixels may run downwards, as those of y do.
        near(linear.place(20.0, 300.0, 0.0), 0.0);

        let logarithmic = Axis::logarithmic("", 0.6, 90.0);
        assert_eq!((logarithmic.from, logarithmic.to), (0.5, 100.0));
        assert_eq!(labels(&logarithmic), ["0.5", "1", "2", "5", "10", "20", "50", "100"]);
        let decade = 400.0 / 200f64.log10();
        near(logarithmic.place(5.0, 0.0, 400.0), decade);
        near(logarithmic.place(50.0, 0.0, 400.0), 2.0 * decade);
        assert_eq!(logarithmic.place(0.0, 0.0, 1.0), None);
        assert_eq!(logarithmic.place(f64::NAN, 0.0, 1.0), None);

        let percentiles = Axis::percentiles("", 10_000.0);
        assert_eq!(labels(&percentiles), ["50 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        near(percentiles.place(1.0 / (1.0 - 0.99), 0.0, 400.0), 200.0);

        let twos = Axis::powers_of_two("", 1.0, 64.0);
        assert_eq!(labels(&twos), ["1", "2", "4", "8", "16", "32", "64"]);
        near(twos.place(8.0, 0.0, 600.0), 300.0);
    }

    #[test]
    fn any_range_makes_a_usable_axis() {
        let odd = [0.0, -1.0, 1e-300, 1e-9, 0.1, 1.0, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        for smallest in odd {
            for largest in odd {
                let axes = [
                    Axis::linear("", largest),
                    Axis::logarithmic("", smallest, largest),
                    Axis::percentiles("", largest),
                    Axis::powers_of_two("", smallest, largest),
                ];
                for axis in axes {
                    assert!(axis.from.is_finite() && axis.to.is_finite() && axis.from < axis.to, "{axis:?}");
                    assert!(!axis.ticks.is_empty() && axis.ticks.len() < 80, "{axis:?}");
                    assert!(axis.ticks.iter().all(|tick| tick.at >= axis.from * 0.99 && tick.at <= axis.to * 1.01));
                }
            }
        }
    }

    #[test]
    fn labels_that_would_touch_are_left_out() {
        let axis = Axis::linear("", 100.0);
        let wide = spaced(&axis, 0.0, 500.0, text_width);
        let tight = spaced(&axis, 0.0, 30.0, text_width);
        assert_eq!(wide.iter().filter(|(label, _)| !label.is_empty()).count(), 6);
        let kept: Vec<f64> = tight.iter().filter(|(label, _)| !label.is_empty()).map(|(_, at)| *at).collect();
        assert_eq!(tight.len(), 6);
        assert!(kept.windows(2).all(|pair| pair[1] - pair[0] >= CHARACTER_PX), "{kept:?}");
        assert!(kept.len() < 4, "{kept:?}");
    }

    fn chart(points: Vec<Place>) -> Chart {
        let line = Line { colour: Colour::Of(0), stroke: Stroke::Solid, marks: true, points };
        Chart { title: "a < b".to_owned(), x: Axis::linear("x", 10.0), y: Axis::linear("y", 10.0), lines: vec![line] }
    }

    #[test]
    fn points_without_a_place_are_left_out_and_the_others_stay() {
        let place = |x: f64, y: f64| Place { x, y, readout: "<r>".to_owned(), note: String::new() };
        let svg = chart(vec![place(1.0, 1.0), place(2.0, f64::NAN), place(10.0, 0.0)]).svg(NARROW);
        assert_eq!(svg.matches("class=\"mark ").count(), 2);
        assert_eq!(svg.matches("<title>&lt;r&gt;</title>").count(), 2);
        assert!(svg.contains("aria-label=\"a &lt; b\""));
        // The lower right corner of the plot.
        assert!(svg.contains("cx=\"494.0\" cy=\"294.0\""), "{svg}");
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn notes_do_not_lie_upon_one_another() {
        let place = |x: f64| Place { x, y: 5.0, readout: String::new(), note: "12345".to_owned() };
        let crowd = chart((0..200).map(|index| place(f64::from(index) * 0.05)).collect()).svg(NARROW);
        let apart = chart(vec![place(1.0), place(5.0), place(9.0)]).svg(NARROW);
        assert_eq!(apart.matches("class=\"note").count(), 3);
        let notes = crowd.matches("class=\"note").count();
        assert!(notes > 4 && notes < 40, "{notes}");
    }

    #[test]
    fn a_name_too_long_is_cut() {
        assert_eq!(shortened("abcdefgh", 1000.0), "abcdefgh");
        assert_eq!(shortened("abcdefgh", CHARACTER_PX * 5.0), "abcd…");
    }
}
