//! `trace`: lines of `time,client[,cost]`, as CSV.
//!
//! A line of names `time,client,…` may stand above them and then says which further columns there are: `cost` is read when
//! it is the third, anything else is passed over, so that the output of one replay is the input of another.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

use super::input::{Format, Problem, Request};
use crate::clock::Timestamp;

/// Which columns the lines have.
pub(super) struct Trace {
    most: usize,
    has_cost: bool,
}

impl Default for Trace {
    fn default() -> Self {
        Self { most: 3, has_cost: true }
    }
}

impl Trace {
    /// Takes the names of the columns, if this line has them.
    pub(super) fn read_names(&mut self, line: &[u8]) -> bool {
        let mut names = line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        let is =
            |name: Option<&[u8]>, expected: &str| name.is_some_and(|n| n.eq_ignore_ascii_case(expected.as_bytes()));
        if !(is(names.next(), "time") && is(names.next(), "client")) {
            return false;
        }
        let third = names.next();
        *self = Self { most: 2 + usize::from(third.is_some()) + names.count(), has_cost: is(third, "cost") };
        true
    }

    pub(super) fn read<'a>(&self, line: &'a [u8]) -> Result<Request<'a>, Problem<'a>> {
        let (time, rest) = bare(line);
        let time = number(time).ok_or(Problem { what: "time", given: time, accepted: "whole microseconds" })?;
        let (client, rest) = match rest {
            None => return Err(Problem { what: "line", given: line, accepted: "time,client or time,client,cost" }),
            Some(rest) if rest.trim_ascii_start().starts_with(b"\"") => quoted(rest.trim_ascii_start())?,
            Some(rest) => {
                let (client, rest) = bare(rest);
                (Cow::Borrowed(client), rest)
            }
        };
        if client.is_empty() {
            return Err(Problem { what: "client", given: b"", accepted: "any name" });
        }
        let request = |cost| Request { format: Format::Trace, time: Timestamp::from_micros(time), client, cost };
        let Some(rest) = rest else { return Ok(request(1)) };
        let (third, mut rest) = bare(rest);
        let mut cost = 1;
        if self.has_cost {
            cost = number(third).ok_or(Problem { what: "cost", given: third, accepted: "a whole number from 0" })?;
        }
        let mut columns = 3;
        while let Some(more) = rest {
            columns += 1;
            if columns > self.most {
                let accepted = "time,client or time,client,cost, unless a first line names more columns";
                return Err(Problem { what: "line", given: line, accepted });
            }
            (_, rest) = bare(more);
        }
        if columns > self.most {
            return Err(Problem { what: "line", given: line, accepted: "the columns that the first line names" });
        }
        Ok(request(cost))
    }
}

/// The next field, without blanks around it, and what follows its comma. A `#` at the start or behind a blank begins a
/// comment.
fn bare(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut from = 0;
    while let Some(offset) = memchr2(b',', b'#', &text[from..]) {
        let at = from + offset;
        let field = &text[..at];
        match text[at] {
            b',' => return (field.trim_ascii(), Some(&text[at + 1..])),
            _ if field.last().is_none_or(u8::is_ascii_whitespace) => return (field.trim_ascii(), None),
            _ => from = at + 1,
        }
    }
    (text.trim_ascii(), None)
}

/// A name, and what follows its comma.
type Quoted<'a> = (Cow<'a, [u8]>, Option<&'a [u8]>);

/// A field in quotes, where two quotes stand for one, and what follows its comma.
fn quoted(text: &[u8]) -> Result<Quoted<'_>, Problem<'_>> {
    let problem = Problem { what: "client", given: text, accepted: "a name, or one in quotes with its quotes doubled" };
    let inside = &text[1..];
    let mut end = 0;
    let mut doubled = false;
    loop {
        end += memchr(b'"', &inside[end..]).ok_or(problem)?;
        if inside.get(end + 1) != Some(&b'"') {
            break;
        }
        doubled = true;
        end += 2;
    }
    let (nothing, rest) = bare(&inside[end + 1..]);
    if !nothing.is_empty() {
        return Err(problem);
    }
    let name = &inside[..end];
    if !doubled {
        return Ok((name.into(), rest));
    }
    let mut single = Vec::with_capacity(name.len());
    let mut bytes = name.iter();
    while let Some(&byte) = bytes.next() {
        single.push(byte);
        if byte == b'"' {
            bytes.next();
        }
    }
    Ok((single.into(), rest))
}

/// Plain digits that fit 64 bits.
fn number(text: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let (first, rest) = text.split_first()?;
    rest.iter().try_fold(digit(first)?, |number, byte| number.checked_mul(10)?.checked_add(digit(byte)?))
}
