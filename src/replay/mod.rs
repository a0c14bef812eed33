//! Replay: what a limit would have done to recorded traffic.
//!
//! The limiter that serves is asked about every request of the past, with a clock that shows the time of the request. No
//! waiting, no reaper: time in a log may go back, to where a state that was dropped would have counted. One pass, so that
//! standard input does; memory grows with the number of clients, not of requests.
//!
//! | file | what it does |
//! |---|---|
//! | `lines` | bytes into lines, unpacked, of bounded length |
//! | `input`, `trace`, `access_log` | lines into requests, or into what is wrong with them |
//! | `clients` | names into numbers |
//! | `run` | every request once, and a word about lines that are none |
//! | `decisions` | a line of CSV for each request |
//! | `report` | totals of several limits over the same requests, side by side |
//! | `suggest` | the smallest limit that would have refused hardly anybody |
//! | `plot` | one client's traffic as a picture |
//! | `generate` | traffic for those who have none |
//! | `columns` | text in columns |

mod access_log;
mod clients;
mod columns;
mod decisions;
mod generate;
mod input;
mod lines;
mod plot;
mod report;
mod run;
mod suggest;
mod trace;

use std::fmt;
use std::io::{self, BufWriter, Read, Write};

use crate::policy::Policies;

pub use generate::{Pattern, Traffic};
pub use input::Format;
pub use lines::unpacked;
pub use plot::Plot;
pub use report::{Form, Report, Row};
pub use run::Reading;
use run::Recording;
pub use suggest::{Share, Suggest};

/// What is made of the traffic.
#[derive(Clone, Debug)]
pub enum Task {
    /// What these policies together say about each request, as CSV.
    Decisions(Policies),
    /// What several limits would have done, in totals.
    Report(Report),
    /// The smallest limits that would have refused hardly anybody.
    Suggest(Suggest),
    /// One client's traffic as SVG.
    Plot(Plot),
}

/// Reads `input` to its end and writes to `out` what the task asks for; `err` gets what is to be said about the input.
///
/// # Errors
/// When the input cannot be read on, the output cannot be written, or there is no request in lines that are not empty; with
/// [`Reading::strict`], at the first line that is no request. What can be said about the requests before an input that cannot
/// be read on, and the decisions before any error, are written all the same.
pub fn run(
    task: &Task,
    reading: Reading,
    input: impl Read,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), ReplayError> {
    let mut out = BufWriter::with_capacity(OUTPUT_BUFFER, out);
    let mut broken = None;
    let recording = Recording { reading, input, err, broken: &mut broken };
    let done = match task {
        Task::Decisions(policies) => decisions::write(policies, recording, &mut out),
        Task::Report(report) => report.write(recording, &mut out),
        Task::Suggest(suggest) => suggest.write(recording, &mut out),
        Task::Plot(plot) => plot.write(recording, &mut out),
    };
    let flushed = out.flush().map_err(ReplayError::Write);
    done.and(flushed)?;
    broken.map_or(Ok(()), Err)
}

/// Written at once.
const OUTPUT_BUFFER: usize = 64 * 1024;

/// Why a replay ended early.
#[derive(Debug)]
pub enum ReplayError {
    /// The input cannot be read on.
    Read {
        /// How many lines were read before.
        lines: u64,
        /// Why.
        source: io::Error,
    },
    /// The output cannot be written.
    Write(io::Error),
    /// A line is no request, and the reading is strict.
    Line {
        /// The number of the line, from 1.
        number: u64,
        /// What it says and what is accepted.
        problem: String,
    },
    /// There are lines, and none of them is a request.
    NoRequests {
        /// How many lines.
        skipped: u64,
    },
    /// More clients than there are numbers for.
    TooManyClients,
    /// The client that was asked for, or any at all, is not in the input.
    NoSuchClient {
        /// Its name, if one was asked for.
        name: Option<String>,
    },
}

impl ReplayError {
    /// Whether the reader of the output has gone, as `head` does when it has seen enough.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Write(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { lines: 0, source } => write!(f, "the input cannot be read: {source}"),
            Self::Read { lines, source } => write!(f, "the input cannot be read on after line {lines}: {source}"),
            Self::Write(error) => write!(f, "the output cannot be written: {error}"),
            Self::Line { number, problem } => write!(f, "line {number}: {problem}"),
            Self::NoRequests { skipped } => write!(
                f,
                "none of {skipped} lines is a request; accepted are time,client[,cost] and the common and combined log formats"
            ),
            Self::NoSuchClient { name: None } => f.write_str("there is no client to draw a picture of"),
            Self::NoSuchClient { name: Some(name) } => write!(f, "the input has no client '{}'", name.escape_debug()),
            Self::TooManyClients => write!(f, "the input has more than {} clients", u32::MAX),
        }
    }
}

impl std::error::Error for ReplayError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } | Self::Write(source) => Some(source),
            Self::Line { .. } | Self::NoRequests { .. } | Self::TooManyClients | Self::NoSuchClient { .. } => None,
        }
    }
}
