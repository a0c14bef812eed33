//! Text in columns, for people.

use std::io::{self, Write};

/// Columns as wide as their widest value; the first few hold words and begin at the left, the others hold numbers.
pub(super) fn align(rows: &[Vec<String>], words: usize, out: &mut dyn Write) -> io::Result<()> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (column, (text, width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            line += &if column < words { format!("{gap}{text:<width$}") } else { format!("{gap}{text:>width$}") };
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// A name for a terminal. One out of a log may hold anything.
pub(super) fn shown(name: &str) -> String {
    let mut shown = String::new();
    for c in name.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}
