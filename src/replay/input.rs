//! Recorded traffic: requests out of lines, and what is wrong with the lines that are none.
//!
//! Which of the two formats it is, the first line that is a request in one of them tells. Blank lines and comments are
//! nothing; any other line that is no request is a problem for whoever asked.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use super::access_log::AccessLog;
use super::lines::{Lines, MAX_LINE};
use super::trace::Trace;
use crate::clock::Timestamp;

/// How the lines of an input are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `time,client[,cost]`.
    Trace,
    /// The common or combined log format.
    AccessLog,
}

impl Format {
    /// The names, for people.
    pub const ACCEPTED: &str = "trace or access-log";
}

impl FromStr for Format {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "trace" => Ok(Self::Trace),
            "access-log" => Ok(Self::AccessLog),
            _ => Err(()),
        }
    }
}

/// One request of the past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    /// A trace names its clients as it likes; the clients of a log are addresses as a rule.
    pub(super) format: Format,
    pub(super) time: Timestamp,
    pub(super) client: Cow<'a, [u8]>,
    pub(super) cost: u64,
}

/// Why a line is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Problem<'a> {
    pub(super) what: &'static str,
    pub(super) given: &'a [u8],
    pub(super) accepted: &'static str,
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Enough to find the place.
        const SHOWN: usize = 80;
        let Self { what, given, accepted } = *self;
        let dots = if given.len() > SHOWN { "..." } else { "" };
        write!(f, "{what} is '{}{dots}'; accepted is {accepted}", given[..given.len().min(SHOWN)].escape_ascii())
    }
}

/// The requests of an input, one line at a time.
pub(super) struct Requests<R> {
    lines: Lines<R>,
    format: Option<Format>,
    trace: Trace,
    access_log: AccessLog,
}

impl<R: Read> Requests<R> {
    pub(super) fn new(source: R, format: Option<Format>) -> Self {
        Self { lines: Lines::new(source), format, trace: Trace::default(), access_log: AccessLog::default() }
    }

    /// Goes to the next line; false at the end.
    pub(super) fn advance(&mut self) -> io::Result<bool> {
        self.lines.advance()
    }

    /// The number of the line, from 1.
    pub(super) fn number(&self) -> u64 {
        self.lines.number()
    }

    /// What the line says; `None` when it is nothing that counts.
    pub(super) fn request(&mut self) -> Option<Result<Request<'_>, Problem<'_>>> {
        let Some(line) = self.lines.line() else {
            const { assert!(MAX_LINE == 65_536) };
            return Some(Err(Problem { what: "length", given: b"above 65536 bytes", accepted: "at most 65536 bytes" }));
        };
        // What some editors write before the first character.
        let line = if self.lines.number() == 1 { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        match line.trim_ascii_start() {
            [] | [b'#', ..] => return None,
            _ => {}
        }
        if self.format != Some(Format::AccessLog) && self.trace.read_names(line) {
            self.format = Some(Format::Trace);
            return None;
        }
        Some(match self.format {
            Some(Format::Trace) => self.trace.read(line),
            Some(Format::AccessLog) => self.access_log.read(line),
            None => {
                // The log format first: it is the narrower of the two.
                let (found, format) = match self.access_log.read(line) {
                    Ok(request) => (Ok(request), Format::AccessLog),
                    Err(_) => (self.trace.read(line), Format::Trace),
                };
                match found {
                    Ok(request) => {
                        self.format = Some(format);
                        Ok(request)
                    }
                    Err(_) => Err(Problem {
                        what: "line",
                        given: line,
                        accepted: "time,client[,cost], or the common or combined log format",
                    }),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests;
