//! The picture: a lane for each limit over one axis of time. What was let in stands above the line and is solid, what was
//! refused hangs below it and is hollow, so that it needs no colour to be told.
//!
//! Few requests are a mark each; many are bars, of how many there were in each stretch of time.

use std::iter::successors;

use svg::Document;
use svg::node::element::{Circle, Group, Line, Rectangle, Style, Text, Title};

use super::{Lane, Picture};
use crate::replay::columns::shown;

/// Units of the picture, as wide as a page.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 24.0;
const RIGHT: f64 = 24.0;
const HEAD: f64 = 76.0;
const LANE: f64 = 124.0;
const FOOT: f64 = 44.0;

/// From the top of a lane to its line, and from the line as far as marks reach on either side.
const BASE: f64 = 74.0;
const REACH: f64 = 44.0;

/// Marks and bars stand in columns of this width.
const COLUMN: f64 = 6.0;

/// Marks of one column stand on each other, and so many have room.
const STACK: usize = 5;

/// A mark that stands alone needs no more.
const LONGEST_MARK: f64 = 18.0;

/// More borders than this are a grey wall.
const MAX_BORDERS: u64 = 60;

/// About so many times are told.
const TICKS: u64 = 8;

/// A longer name would leave the picture.
const NAME: usize = 60;

/// Both on light and on dark paper, whichever the reader has.
const STYLE: &str = "\
text { font-family: system-ui, sans-serif; font-size: 13px; fill: #1f2430; }
.head { font-size: 17px; font-weight: 600; }
.lane { font-weight: 600; }
.soft { fill: #5c6470; }
.paper { fill: #ffffff; }
.line { stroke: #5c6470; }
.border { stroke: #9aa1ab; stroke-dasharray: 3 4; }
.in { fill: #1769aa; }
.out { fill: none; stroke: #b8400a; stroke-width: 1.4; }
@media (prefers-color-scheme: dark) {
text { fill: #e6e8eb; }
.soft { fill: #a7aeb8; }
.paper { fill: #14171c; }
.line { stroke: #a7aeb8; }
.border { stroke: #6a727d; }
.in { fill: #6cb6ff; }
.out { stroke: #ff9d5c; }
}";

/// Where times are on the axis.
struct Axis {
    first: u64,
    last: u64,
    /// With a little room at either end.
    start: u64,
    end: u64,
}

impl Axis {
    fn of(times: &[u64]) -> Self {
        let first = times.iter().copied().min().unwrap_or(0);
        let last = times.iter().copied().max().unwrap_or(0);
        let room = (last - first) / 40 + 1;
        Self { first, last, start: first.saturating_sub(room), end: last.saturating_add(room) }
    }

    #[expect(clippy::cast_precision_loss, reason = "a place in a picture")]
    fn x(&self, time: u64) -> f64 {
        let share = (time - self.start) as f64 / (self.end - self.start) as f64;
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    /// The column of a time.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place on the axis is small and positive"
    )]
    fn column(&self, time: u64) -> usize {
        ((self.x(time) - LEFT) / COLUMN) as usize
    }
}

pub(super) fn svg(picture: &Picture) -> Document {
    let axis = Axis::of(&picture.times);
    #[expect(clippy::cast_precision_loss, reason = "a handful of lanes")]
    let lanes_end = HEAD + picture.lanes.len() as f64 * LANE;
    let height = lanes_end + FOOT;
    let mut name: String = shown(&picture.client).chars().filter(|c| !matches!(c, '\u{fffe}' | '\u{ffff}')).collect();
    if let Some((cut, _)) = name.char_indices().nth(NAME) {
        name.truncate(cut);
        name += "…";
    }
    let requests = picture.times.len();
    let span = label(axis.last - axis.first);
    let mut document = Document::new()
        .set("viewBox", format!("0 0 {WIDTH} {height}"))
        .set("width", WIDTH)
        .set("height", height)
        .set("role", "img")
        .add(Title::new(format!("{name}: {requests} requests under {} limits", picture.lanes.len())))
        .add(Style::new(STYLE))
        .add(Rectangle::new().set("class", "paper").set("width", WIDTH).set("height", height))
        .add(text(LEFT, 28.0, "head", format!("{name}: {requests} requests in {span}")))
        .add(legend())
        .add(ticks(&axis, lanes_end));
    // All lanes have one scale, or they could not be compared.
    let counts: Vec<(Vec<usize>, Vec<usize>)> =
        picture.lanes.iter().map(|lane| per_column(lane, picture, &axis)).collect();
    let most = counts.iter().flat_map(|(allowed, refused)| allowed.iter().chain(refused)).copied().max().unwrap_or(0);
    let borders = borders(picture.window, &axis);
    let mut top = HEAD;
    for (lane, (allowed, refused)) in picture.lanes.iter().zip(&counts) {
        let base = top + BASE;
        let group =
            borders.iter().fold(heading(lane, top), |group, &x| group.add(border(x, base - REACH, base + REACH)));
        document = document.add(if most <= STACK {
            marks(group, lane, picture, &axis, most, base)
        } else {
            bars(group, allowed, refused, most, base)
        });
        top += LANE;
    }
    if most > STACK {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "for people"
        )]
        let width = ((axis.end - axis.start) as f64 * COLUMN / (WIDTH - LEFT - RIGHT)) as u64;
        let scale = format!("a bar is {}; the longest is {most} requests", label(width));
        document = document.add(text(WIDTH - RIGHT, 54.0, "soft", scale).set("text-anchor", "end"));
    }
    document
}

/// What a lane is called, what it did in figures, and its line.
fn heading(lane: &Lane, top: f64) -> Group {
    let (requests, base) = (lane.allowed.len(), top + BASE);
    let let_in = lane.allowed.iter().filter(|allowed| **allowed).count();
    let figures = format!("{let_in} of {requests} let in, at most {} in a window", lane.most_in_window);
    let line = Line::new().set("class", "line").set("x1", LEFT).set("x2", WIDTH - RIGHT);
    Group::new()
        .add(text(LEFT, top + 20.0, "lane", format!("{} {}", lane.name, lane.settings)))
        .add(text(WIDTH - RIGHT, top + 20.0, "soft", figures).set("text-anchor", "end"))
        .add(line.set("y1", base).set("y2", base))
}

fn text(x: f64, y: f64, class: &str, content: String) -> Text {
    Text::new(content).set("class", class).set("x", x).set("y", y)
}

fn legend() -> Group {
    Group::new()
        .add(Rectangle::new().set("class", "in").set("x", LEFT).set("y", 43.0).set("width", 4).set("height", 11))
        .add(text(LEFT + 11.0, 54.0, "soft", "let in".into()))
        .add(Circle::new().set("class", "out").set("cx", LEFT + 65.0).set("cy", 49.0).set("r", 3.4))
        .add(text(LEFT + 75.0, 54.0, "soft", "refused".into()))
        .add(border(LEFT + 142.0, 42.0, 56.0))
        .add(text(LEFT + 150.0, 54.0, "soft", "border of a window".into()))
}

fn border(x: f64, from: f64, to: f64) -> Line {
    Line::new().set("class", "border").set("x1", x).set("x2", x).set("y1", from).set("y2", to)
}

/// The borders of the windows since the epoch; none when there are too many to tell apart.
fn borders(window: u64, axis: &Axis) -> Vec<f64> {
    let (first, last) = (axis.start.div_ceil(window), axis.end / window);
    if last.saturating_sub(first) >= MAX_BORDERS {
        return Vec::new();
    }
    (first..=last).map(|number| axis.x(number * window)).collect()
}

/// Times since the first request, at round distances.
fn ticks(axis: &Axis, lanes_end: f64) -> Group {
    let step = round_step((axis.last - axis.first) / TICKS);
    let mut group = Group::new();
    // The last time may be the last that there is.
    let times = successors(Some(axis.first), |time| time.checked_add(step)).take_while(|&time| time <= axis.last);
    for time in times {
        let x = axis.x(time);
        let tick = Line::new().set("class", "line").set("x1", x).set("x2", x);
        group = group
            .add(tick.set("y1", lanes_end).set("y2", lanes_end + 6.0))
            .add(text(x, lanes_end + 22.0, "soft", label(time - axis.first)).set("text-anchor", "middle"));
    }
    group
}

/// The smallest round distance that is at least as long, in microseconds.
fn round_step(least: u64) -> u64 {
    const SECOND: u64 = 1_000_000;
    const ROUND: [u64; 15] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200];
    let below = (0..6).flat_map(|zeros| [1, 2, 5].map(|digit| digit * 10u64.pow(zeros)));
    let steps = below.chain(ROUND.map(|seconds| seconds * SECOND));
    steps.into_iter().find(|&step| step >= least).unwrap_or_else(|| least.next_multiple_of(86_400 * SECOND))
}

/// A span of time, for people: its largest unit and the next one.
fn label(micros: u64) -> String {
    const UNITS: [(&str, u64); 6] =
        [("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("µs", 1)];
    let largest = UNITS.iter().position(|(_, unit)| micros >= *unit);
    let Some(largest) = largest else { return "0 s".into() };
    let parts = UNITS[largest..].iter().take(2).scan(micros, |rest, (name, unit)| {
        let count = *rest / unit;
        *rest %= unit;
        Some((count > 0).then(|| format!("{count} {name}")))
    });
    parts.flatten().collect::<Vec<_>>().join(" ")
}

/// How many were let in and how many refused, in each column.
fn per_column(lane: &Lane, picture: &Picture, axis: &Axis) -> (Vec<usize>, Vec<usize>) {
    let columns = axis.column(axis.end) + 1;
    let mut counts = (vec![0; columns], vec![0; columns]);
    for (&time, &allowed) in picture.times.iter().zip(&lane.allowed) {
        let side = if allowed { &mut counts.0 } else { &mut counts.1 };
        side[axis.column(time)] += 1;
    }
    counts
}

/// A mark for each request; those of one column stand on each other.
#[expect(clippy::cast_precision_loss, reason = "a handful of marks on each other")]
fn marks(mut group: Group, lane: &Lane, picture: &Picture, axis: &Axis, most: usize, base: f64) -> Group {
    let step = (REACH / most.max(1) as f64).min(LONGEST_MARK);
    let (mut allowed, mut refused) = per_column(lane, picture, axis);
    allowed.fill(0);
    refused.fill(0);
    for (&time, &let_in) in picture.times.iter().zip(&lane.allowed) {
        let x = axis.x(time);
        let side = if let_in { &mut allowed } else { &mut refused };
        let nth = &mut side[axis.column(time)];
        let from_line = *nth as f64 * step;
        *nth += 1;
        group = if let_in {
            let mark =
                Rectangle::new().set("class", "in").set("x", round(x - 2.0)).set("y", round(base - from_line - step));
            group.add(mark.set("width", 4).set("height", round(step - 1.0)))
        } else {
            let mark = Circle::new().set("class", "out").set("cx", round(x)).set("cy", round(base + from_line + 5.5));
            group.add(mark.set("r", 3.4))
        };
    }
    group
}

/// A bar for each column that has any.
#[expect(clippy::cast_precision_loss, reason = "the height of a bar")]
fn bars(mut group: Group, allowed: &[usize], refused: &[usize], most: usize, base: f64) -> Group {
    let height = |count: usize| (count as f64 / most as f64 * REACH).max(1.0);
    for (column, (&allowed, &refused)) in allowed.iter().zip(refused).enumerate() {
        let left = LEFT + column as f64 * COLUMN;
        if allowed > 0 {
            let bar = Rectangle::new().set("class", "in").set("x", round(left + 0.5)).set("width", COLUMN - 1.0);
            group = group.add(bar.set("y", round(base - height(allowed))).set("height", round(height(allowed))));
        }
        if refused > 0 {
            let bar = Rectangle::new().set("class", "out").set("x", round(left + 1.2)).set("width", COLUMN - 2.4);
            group = group.add(bar.set("y", base).set("height", round(height(refused))));
        }
    }
    group
}

/// Hundredths suffice for the eye and keep the file small.
fn round(place: f64) -> f64 {
    (place * 100.0).round() / 100.0
}
