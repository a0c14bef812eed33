//! The way through the input: every line once, in order, and a word on standard error about those that are no requests.

use std::fmt;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use super::ReplayError;
use super::clients::Clients;
use super::input::{Format, Request, Requests};
use crate::clock::{ManualClock, Timestamp};
use crate::limiter::RateLimiter;
use crate::policy::Policies;

/// So many lines that are no requests are shown one by one; after that they are only counted.
const SHOWN: u64 = 5;

/// The progress is looked at once in so many lines, because asking the time costs as much as a line.
const PROGRESS_LINES: u64 = 1 << 16;

/// The pause between two words about the progress, and the time for which none is needed.
const PROGRESS_PAUSE: Duration = Duration::from_secs(1);

/// How the input is read.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The format; told by the content when not given.
    pub format: Option<Format>,
    /// Whether the first line that is no request ends it all.
    pub strict: bool,
    /// In access logs, IPv6 addresses that share so many leading bits are one client.
    pub ipv6_prefix: u8,
    /// Whether to tell the progress, when it takes long, on standard error.
    pub progress: bool,
}

/// An input, how it is read, and where is said what is to be said about it.
pub(super) struct Recording<'a, R> {
    pub(super) reading: Reading,
    pub(super) input: R,
    pub(super) err: &'a mut dyn Write,
    /// What ended the input before its end.
    pub(super) broken: &'a mut Option<ReplayError>,
}

impl<R: Read> Recording<'_, R> {
    /// Shows every request to `visit`, with the number of its client, and returns all clients.
    pub(super) fn each(
        self,
        visit: impl FnMut(u32, &Request<'_>) -> Result<(), ReplayError>,
    ) -> Result<Clients, ReplayError> {
        let Self { reading, input, err, broken } = self;
        let now = Instant::now();
        let mut progress = Progress { on: reading.progress, begun: now, told: now, shown: false };
        let passed = pass(reading, input, err, &mut progress, visit);
        // However it ended, what is said next has the line for itself.
        progress.clear(err);
        let passed = passed?;
        match (passed.newest, passed.skipped, passed.ended) {
            (None, _, Some(error)) => return Err(error),
            (None, 0, None) => say(err, format_args!("the input has no requests")),
            (None, skipped, None) => return Err(ReplayError::NoRequests { skipped }),
            (Some(_), skipped, ended) => {
                *broken = ended;
                tell_skipped(err, skipped);
                tell_back(err, &passed.back);
            }
        }
        Ok(passed.clients)
    }
}

fn tell_skipped(err: &mut dyn Write, lines: u64) {
    match lines {
        0 => {}
        1 => say(err, format_args!("1 line is no request and was skipped")),
        _ => say(err, format_args!("{lines} lines are no requests and were skipped")),
    }
}

fn tell_back(err: &mut dyn Write, back: &Back) {
    let most = Duration::from_micros(back.most);
    match back.requests {
        0 => {}
        1 => say(err, format_args!("1 request is {most:?} before one above it; lines were taken in their order")),
        requests => say(
            err,
            format_args!(
                "{requests} requests are before one above them, by {most:?} at most; lines were taken in their order"
            ),
        ),
    }
}

/// A limiter that goes by `clock` and forgets nobody.
pub(super) fn limiter(policies: impl Into<Policies>, clock: &ManualClock) -> RateLimiter {
    RateLimiter::builder(policies).clock(clock.clone()).keep_all().build()
}

/// What was in the lines.
struct Passed {
    clients: Clients,
    /// The latest time of a request, if there was any.
    newest: Option<Timestamp>,
    back: Back,
    skipped: u64,
    /// Why it was not the end of the input.
    ended: Option<ReplayError>,
}

/// Requests with a time before that of an earlier line.
#[derive(Default)]
struct Back {
    requests: u64,
    /// The longest way back, in microseconds.
    most: u64,
}

fn pass(
    reading: Reading,
    input: impl Read,
    err: &mut dyn Write,
    progress: &mut Progress,
    mut visit: impl FnMut(u32, &Request<'_>) -> Result<(), ReplayError>,
) -> Result<Passed, ReplayError> {
    let mut requests = Requests::new(input, reading.format);
    let clients = Clients::new(reading.ipv6_prefix);
    let mut passed = Passed { clients, newest: None, back: Back::default(), skipped: 0, ended: None };
    loop {
        let line = requests.number() + 1;
        match requests.advance() {
            Ok(true) => {}
            Ok(false) => return Ok(passed),
            Err(source) => {
                passed.ended = Some(ReplayError::Read { lines: line - 1, source });
                return Ok(passed);
            }
        }
        if line.is_multiple_of(PROGRESS_LINES) {
            progress.tell(line, err);
        }
        match requests.request() {
            None => {}
            Some(Ok(request)) => {
                let newest = passed.newest.map_or(request.time, |newest| newest.max(request.time));
                if request.time < newest {
                    passed.back.requests += 1;
                    passed.back.most = passed.back.most.max(newest.as_micros() - request.time.as_micros());
                }
                passed.newest = Some(newest);
                let client = match request.format {
                    Format::Trace => passed.clients.of(&request.client),
                    Format::AccessLog => passed.clients.of_address(&request.client),
                };
                visit(client.ok_or(ReplayError::TooManyClients)?, &request)?;
            }
            Some(Err(problem)) if reading.strict => {
                return Err(ReplayError::Line { number: line, problem: problem.to_string() });
            }
            Some(Err(problem)) => {
                passed.skipped += 1;
                if passed.skipped <= SHOWN {
                    progress.clear(err);
                    say(err, format_args!("line {line}: {problem}"));
                }
            }
        }
    }
}

/// A line on standard error. Nobody may be there to read it, which is no reason to stop.
fn say(err: &mut dyn Write, message: fmt::Arguments<'_>) {
    let _ = writeln!(err, "tollgate: {message}");
}

/// One line on a terminal, written over and over.
struct Progress {
    on: bool,
    begun: Instant,
    told: Instant,
    shown: bool,
}

impl Progress {
    fn tell(&mut self, lines: u64, err: &mut dyn Write) {
        if self.on && self.told.elapsed() >= PROGRESS_PAUSE {
            let seconds = self.begun.elapsed().as_secs_f64();
            let _ = write!(err, "\r{lines} lines in {seconds:.0} s");
            let _ = err.flush();
            (self.told, self.shown) = (Instant::now(), true);
        }
    }

    /// Makes the line empty again, for what comes next.
    fn clear(&mut self, err: &mut dyn Write) {
        if self.shown {
            let _ = write!(err, "\r\x1b[K");
            self.shown = false;
        }
    }
}
