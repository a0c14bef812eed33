//! Totals of several limits over the same requests, side by side.
//!
//! The judge of a limit is the exact log of the same limit and window over the same requests, on its own: what the limit
//! let in and the log did not is *wrongly let in*, the other way round is *wrongly refused*.

mod table;
mod tally;

use std::io::{Read, Write};
use std::time::Duration;

use super::ReplayError;
use super::clients::key;
use super::run::{Recording, limiter};
use crate::clock::ManualClock;
use crate::decision::Outcome;
use crate::limiter::RateLimiter;
use crate::policy::{Algorithm, Policies, Policy, Rule, TokenBucket};
pub(super) use tally::Tally;

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// The limits that are compared.
#[derive(Clone, Debug)]
pub struct Report {
    /// One row each.
    pub rows: Vec<Row>,
    /// Whether the clients that were refused most, by all rows taken together, are named.
    pub names_clients: bool,
    /// How it is written.
    pub form: Form,
}

/// One limit, or several that are enforced together.
#[derive(Clone, Debug)]
pub struct Row {
    /// What it is called.
    pub name: String,
    /// Its settings, for people.
    pub settings: String,
    /// What is enforced.
    pub policies: Policies,
    /// A sliding window log that says what would have been right, and in whose window the most of a client is counted. Limits
    /// that no single log stands for have none.
    pub judge: Option<Policy>,
}

impl Row {
    /// The row of one limit. Its settings are written as in `POLICIES`.
    #[must_use]
    pub fn of(name: &str, policy: Policy, judge: Option<Policy>) -> Self {
        let settings = match policy.rule() {
            Rule::TokenBucket(TokenBucket { capacity, tokens, period, .. }) => {
                format!("{capacity}:{tokens}/{:?}", Duration::from_micros(period))
            }
            Rule::FixedWindow(_) | Rule::SlidingWindowLog(_) | Rule::SlidingWindowCounter(_) => {
                format!("{}/{:?}", policy.limit(), policy.span())
            }
        };
        Self { name: name.to_owned(), settings, policies: policy.into(), judge }
    }

    /// The rows of several limits: each on its own, judged by its own log if it is a window, and all together.
    #[must_use]
    pub fn each_and_all(policies: &Policies) -> Vec<Self> {
        let judge = |policy: &Policy| match policy.algorithm() {
            Algorithm::TokenBucket => None,
            // None where the limit is longer than a log may be.
            _ => Policy::sliding_window_log(policy.limit(), policy.span()).ok(),
        };
        let mut rows: Vec<Self> =
            policies.iter().map(|policy| Self::of(policy.name(), policy.clone(), judge(policy))).collect();
        if rows.len() > 1 {
            let (name, settings) = ("all together".to_owned(), String::new());
            rows.push(Self { name, settings, policies: policies.clone(), judge: None });
        }
        rows
    }
}

/// What the rows decided about all requests.
struct Totals {
    requests: u64,
    /// For each client.
    requests_of: Vec<u64>,
    tallies: Vec<Tally>,
}

impl Report {
    pub(super) fn write(&self, recording: Recording<'_, impl Read>, out: &mut dyn Write) -> Result<(), ReplayError> {
        let clock = ManualClock::default();
        // A judge may be a row as well: each log is asked once.
        let mut asked: Vec<Policies> = Vec::new();
        let mut place = |policies: &Policies| {
            let same = |known: &Policies| known.iter().map(Policy::rule).eq(policies.iter().map(Policy::rule));
            asked.iter().position(same).unwrap_or_else(|| {
                asked.push(policies.clone());
                asked.len() - 1
            })
        };
        let places: Vec<(usize, Option<usize>)> = self
            .rows
            .iter()
            .map(|row| (place(&row.policies), row.judge.as_ref().map(|judge| place(&judge.clone().into()))))
            .collect();
        let limiters: Vec<RateLimiter> = asked.into_iter().map(|policies| limiter(policies, &clock)).collect();
        let mut outcomes = vec![Outcome::Never; limiters.len()];
        let mut totals = Totals {
            requests: 0,
            requests_of: Vec::new(),
            tallies: self.rows.iter().map(|row| Tally::new(row.judge.as_ref().map(Policy::span))).collect(),
        };
        let clients = recording.each(|client, request| {
            clock.set(request.time);
            for (outcome, limiter) in outcomes.iter_mut().zip(&limiters) {
                *outcome = limiter.check_n(key(client), request.cost).outcome();
            }
            let client = client as usize;
            if client == totals.requests_of.len() {
                totals.requests_of.push(0);
            }
            totals.requests_of[client] += 1;
            totals.requests += 1;
            for (tally, &(own, judge)) in totals.tallies.iter_mut().zip(&places) {
                tally.add(client, request.time, request.cost, outcomes[own], judge.map(|judge| outcomes[judge]));
            }
            Ok(())
        })?;
        match self.form {
            Form::Table => table::write(self, &totals, &clients, out),
            Form::Json => table::write_json(self, &totals, &clients, out),
        }
        .map_err(ReplayError::Write)
    }
}
