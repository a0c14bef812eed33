//! A line of CSV for each request: what was decided, what is left, and how long until there is more.

use std::io::{Read, Write};

use super::ReplayError;
use super::clients::key;
use super::run::{Recording, limiter};
use crate::clock::ManualClock;
use crate::decision::{Decision, Outcome};
use crate::policy::Policies;

/// The names of the columns.
const NAMES: &[u8] = b"time,client,cost,outcome,remaining,retry_after_us,reset_after_us\n";

/// With several policies, what remains is the least of them, and the waits are the longest.
pub(super) fn write(
    policies: &Policies,
    recording: Recording<'_, impl Read>,
    out: &mut dyn Write,
) -> Result<(), ReplayError> {
    let clock = ManualClock::default();
    let limiter = limiter(policies.clone(), &clock);
    let mut line = Vec::new();
    out.write_all(NAMES).map_err(ReplayError::Write)?;
    recording.each(|client, request| {
        clock.set(request.time);
        let decision = limiter.check_n(key(client), request.cost);
        line.clear();
        number(&mut line, request.time.as_micros());
        line.push(b',');
        name(&mut line, &request.client);
        line.push(b',');
        number(&mut line, request.cost);
        verdict(&mut line, &decision);
        line.push(b'\n');
        out.write_all(&line).map_err(ReplayError::Write)
    })?;
    Ok(())
}

fn verdict(line: &mut Vec<u8>, decision: &Decision) {
    let (outcome, retry_after) = match decision.outcome() {
        Outcome::Allowed => ("allowed", None),
        Outcome::Refused { retry_after } => ("refused", Some(retry_after)),
        Outcome::Never => ("never", None),
        Outcome::Unavailable { .. } => unreachable!("recorded traffic is counted in memory"),
    };
    line.push(b',');
    line.extend_from_slice(outcome.as_bytes());
    line.push(b',');
    let verdicts = decision.verdicts();
    number(line, verdicts.iter().map(|verdict| verdict.remaining()).min().unwrap_or(0));
    line.push(b',');
    if let Some(wait) = retry_after {
        number(line, crate::clock::micros(wait));
    }
    line.push(b',');
    let reset_after = verdicts.iter().map(|verdict| verdict.reset_after).max();
    number(line, reset_after.unwrap_or(0));
}

fn number(line: &mut Vec<u8>, number: u64) {
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// A name as it can stand between commas, and be read again as the same name.
pub(super) fn name(line: &mut Vec<u8>, name: &[u8]) {
    let plain = memchr::memchr3(b',', b'"', b'#', name).is_none() && name.trim_ascii().len() == name.len();
    if plain {
        line.extend_from_slice(name);
        return;
    }
    line.push(b'"');
    for &byte in name {
        if byte == b'"' {
            line.push(b'"');
        }
        line.push(byte);
    }
    line.push(b'"');
}
