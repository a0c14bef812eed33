//! `access-log`: the common and the combined log format, as nginx and Apache write them.
//!
//! ```text
//! 203.0.113.7 - ada [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 2326 "referer" "agent"
//! ```
//!
//! The client is the first field, the time is in whole seconds with its own offset from UTC. The request, the status and
//! the length are looked at only to know the line for whole; what follows them is not.

use std::borrow::Cow;

use jiff::civil::{Date, date};
use memchr::{memchr, memchr2};

use super::input::{Format, Problem, Request};
use crate::clock::Timestamp;

const EPOCH: Date = date(1970, 1, 1);

const DAY_S: i64 = 86_400;

const MONTHS: [&[u8]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// Reads lines, and remembers the date of the last one: there are many lines to a day.
pub(super) struct AccessLog {
    date: [u8; 11],
    midnight_s: i64,
}

impl Default for AccessLog {
    fn default() -> Self {
        Self { date: *b"01/Jan/1970", midnight_s: 0 }
    }
}

impl AccessLog {
    pub(super) fn read<'a>(&mut self, line: &'a [u8]) -> Result<Request<'a>, Problem<'a>> {
        let whole = |accepted| Problem { what: "line", given: line, accepted };
        let client = &line[..memchr(b' ', line).unwrap_or(0)];
        if client.is_empty() {
            return Err(whole("the common or combined log format, with the client first"));
        }
        // The name of the user, which stands before the time, may hold anything.
        let mut at = client.len();
        let (seconds, rest) = loop {
            let Some(offset) = memchr(b'[', &line[at..]) else {
                return Err(whole("the common or combined log format, with the time as [10/Oct/2000:13:55:36 -0700]"));
            };
            at += offset + 1;
            if let Some(found) = line[at..].split_at_checked(26).and_then(|(time, rest)| Some((self.time(time)?, rest)))
            {
                break found;
            }
        };
        let Some(()) = request_status_and_length(rest) else {
            return Err(whole("a time that a \"request\", a status and a length follow"));
        };
        let Ok(seconds) = u64::try_from(seconds) else {
            return Err(whole("a time from the year 1970 on"));
        };
        // A year has four digits, so this is far from the end of 64 bits.
        let time = Timestamp::from_micros(seconds * 1_000_000);
        Ok(Request { format: Format::AccessLog, time, client: Cow::Borrowed(client), cost: 1 })
    }

    /// Seconds since the epoch at `10/Oct/2000:13:55:36 -0700`.
    fn time(&mut self, text: &[u8]) -> Option<i64> {
        let &[ref date @ .., b':', h1, h2, b':', m1, m2, b':', s1, s2, b' ', sign, zh1, zh2, zm1, zm2] = text else {
            return None;
        };
        let date: &[u8; 11] = date.try_into().ok()?;
        if *date != self.date {
            let &[d1, d2, b'/', ref month @ .., b'/', y1, y2, y3, y4] = date else { return None };
            let month = (1..).zip(MONTHS).find_map(|(number, name)| (name == month).then_some(number))?;
            let year = 100 * i16::from(below(100, y1, y2)?) + i16::from(below(100, y3, y4)?);
            let days = (Date::new(year, month, below(32, d1, d2)?).ok()? - EPOCH).get_days();
            (self.date, self.midnight_s) = (*date, i64::from(days) * DAY_S);
        }
        let seconds = |h1, h2, m1, m2| Some(3_600 * i64::from(below(24, h1, h2)?) + 60 * i64::from(below(60, m1, m2)?));
        // A leap second counts as the first one of the next minute.
        let local_s = self.midnight_s + seconds(h1, h2, m1, m2)? + i64::from(below(61, s1, s2)?);
        let offset_s = seconds(zh1, zh2, zm1, zm2)?;
        match sign {
            b'+' => Some(local_s - offset_s),
            b'-' => Some(local_s + offset_s),
            _ => None,
        }
    }
}

/// Two digits below a bound.
fn below(bound: i8, tens: u8, ones: u8) -> Option<i8> {
    let digits = tens.is_ascii_digit() && ones.is_ascii_digit();
    let number = digits.then(|| i8::try_from((tens - b'0') * 10 + (ones - b'0')))?.ok()?;
    (number < bound).then_some(number)
}

/// Checks what follows the time: `] "request" 200 2326`, where a backslash in the request stands before what it escapes.
fn request_status_and_length(text: &[u8]) -> Option<()> {
    let mut rest = text.strip_prefix(b"] \"")?;
    loop {
        let at = memchr2(b'"', b'\\', rest)?;
        let escape = rest[at] == b'\\';
        rest = rest.get(at + 1 + usize::from(escape)..)?;
        if !escape {
            break;
        }
    }
    let &[b' ', ref status @ .., b' '] = rest.get(..5)? else { return None };
    let length = &rest[5..];
    let length = &length[..memchr(b' ', length).unwrap_or(length.len())];
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    (digits(status) && (digits(length) || length == b"-")).then_some(())
}
