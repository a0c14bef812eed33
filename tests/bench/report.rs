//! What a bench leaves: a table, printed row by row and kept under `target/bench`, and a picture of its ratios beside it.

use std::path::Path;
use std::process::Command;
use std::{fs, thread};

use svg::Document;
use svg::node::element::{Line, Rectangle, Text};

/// One group of measurements.
pub(crate) struct Report {
    name: &'static str,
    lines: Vec<String>,
    bars: Vec<(String, f64)>,
}

impl Report {
    /// Prints the caption and the heads of the columns.
    pub(crate) fn begin(name: &'static str, caption: &str, columns: &[&str]) -> Self {
        let mut report = Self { name, lines: Vec::new(), bars: Vec::new() };
        report.print(format!("{caption}; {}", machine()));
        report.print(String::new());
        report.row(columns);
        report.row(&vec!["---"; columns.len()]);
        report
    }

    pub(crate) fn row(&mut self, cells: &[impl AsRef<str>]) {
        let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
        self.print(format!("| {} |", cells.join(" | ")));
    }

    /// A ratio for the picture.
    pub(crate) fn bar(&mut self, label: impl Into<String>, ratio: f64) {
        self.bars.push((label.into(), ratio));
    }

    fn print(&mut self, line: String) {
        println!("{line}");
        self.lines.push(line);
    }

    /// Writes the files.
    pub(crate) fn end(self) {
        println!();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
        fs::create_dir_all(&folder).expect("a folder for the reports");
        let file = |ending: &str| folder.join(format!("{}.{ending}", self.name));
        fs::write(file("md"), self.lines.join("\n") + "\n").expect("the table can be written");
        svg::save(file("svg"), &self.picture()).expect("the picture can be written");
    }

    /// A bar for each ratio, and a line at 1.
    fn picture(&self) -> Document {
        const ROW: usize = 22;
        const LEFT: f64 = 300.0;
        const WIDTH: f64 = 760.0;
        let longest = self.bars.iter().map(|(_, ratio)| *ratio).fold(1.2, f64::max);
        let x = |ratio: f64| LEFT + ratio / longest * (WIDTH - LEFT - 60.0);
        let height = (self.bars.len() + 3) * ROW;
        let text = |x: f64, y: usize, content: &str| {
            Text::new(content).set("x", x).set("y", y).set("font-family", "sans-serif").set("font-size", 12)
        };
        let mut picture = Document::new()
            .set("viewBox", (0, 0, WIDTH, height))
            .add(Rectangle::new().set("width", WIDTH).set("height", height).set("fill", "white"))
            .add(text(10.0, ROW, self.lines.first().map_or("", String::as_str)));
        for (index, (label, ratio)) in self.bars.iter().enumerate() {
            let y = (index + 2) * ROW;
            let bar = Rectangle::new().set("x", LEFT).set("y", y).set("height", ROW - 8).set("fill", "#4878a8");
            picture = picture.add(bar.set("width", x(*ratio) - LEFT)).add(text(10.0, y + 12, label)).add(text(
                x(*ratio) + 6.0,
                y + 12,
                &format!("{ratio:.2}"),
            ));
        }
        let one = Line::new().set("x1", x(1.0)).set("x2", x(1.0)).set("y1", 2 * ROW - 6).set("y2", height - ROW);
        picture.add(one.set("stroke", "black").set("stroke-dasharray", "4 3"))
    }
}

/// The size of the machine and the commit that was measured.
fn machine() -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let commit = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let commit = commit.ok().filter(|output| output.status.success());
    let commit = commit.map_or_else(|| "unknown".into(), |output| String::from_utf8_lossy(&output.stdout).into_owned());
    format!("{cores} cores, commit {}", commit.trim())
}

/// The one in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
