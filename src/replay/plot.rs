//! One client's traffic under several limits, as a picture: what is drawn. How it is drawn is in `draw`.
//!
//! Clients do not share a limit, so the requests of one tell all about it. Which one is the busiest is known only at the end:
//! until then every request is kept, in 24 bytes.

mod draw;

use std::cmp::Reverse;
use std::io::{Read, Write};
use std::time::Duration;

use super::ReplayError;
use super::clients::key;
use super::report::{Row, Tally};
use super::run::{Recording, limiter};
use crate::clock::{ManualClock, Timestamp};

/// A picture of one client's traffic.
#[derive(Clone, Debug)]
pub struct Plot {
    /// A lane each.
    pub rows: Vec<Row>,
    /// The window whose borders are shown, and in which the most is counted.
    pub window: Duration,
    /// Whose traffic; the busiest client's when not given.
    pub client: Option<String>,
}

/// What is drawn.
struct Picture {
    client: String,
    window: u64,
    /// In the order of the input.
    times: Vec<u64>,
    lanes: Vec<Lane>,
}

/// What one limit did.
struct Lane {
    name: String,
    settings: String,
    /// For each time, whether the request was let in.
    allowed: Vec<bool>,
    most_in_window: u64,
}

impl Plot {
    pub(super) fn write(&self, recording: Recording<'_, impl Read>, out: &mut dyn Write) -> Result<(), ReplayError> {
        let mut requests: Vec<(Timestamp, u64, u32)> = Vec::new();
        let mut counts: Vec<u64> = Vec::new();
        let clients = recording.each(|client, request| {
            requests.push((request.time, request.cost, client));
            let index = client as usize;
            if index == counts.len() {
                counts.push(0);
            }
            counts[index] += 1;
            Ok(())
        })?;
        let chosen = match &self.client {
            // The first of the busiest.
            None => (0..).zip(&counts).min_by_key(|(_, count)| Reverse(**count)).map(|(number, _)| number),
            Some(name) => clients.find(name),
        };
        let Some(chosen) = chosen else {
            return Err(ReplayError::NoSuchClient { name: self.client.clone() });
        };
        requests.retain(|&(_, _, client)| client == chosen);
        let lane = |row: &Row| {
            let clock = ManualClock::default();
            let limiter = limiter(row.policies.clone(), &clock);
            let mut tally = Tally::new(Some(self.window));
            let allowed = requests.iter().map(|&(time, cost, _)| {
                clock.set(time);
                let outcome = limiter.check_n(key(chosen), cost).outcome();
                tally.add(0, time, cost, outcome, None);
                outcome == crate::decision::Outcome::Allowed
            });
            let allowed = allowed.collect();
            let most_in_window = tally.most_of().into_iter().flatten().max().unwrap_or(0);
            Lane { name: row.name.clone(), settings: row.settings.clone(), allowed, most_in_window }
        };
        let picture = Picture {
            client: clients.name(chosen),
            window: crate::clock::micros(self.window),
            lanes: self.rows.iter().map(lane).collect(),
            times: requests.iter().map(|(time, ..)| time.as_micros()).collect(),
        };
        writeln!(out, "{}", draw::svg(&picture)).map_err(ReplayError::Write)
    }
}
