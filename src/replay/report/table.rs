//! The totals as text: a table for people, JSON for programs.

use std::io::{self, Write};

use serde::Serialize;

use super::{Report, Row, Tally, Totals};
use crate::algorithm::{fixed_window, sliding_window_counter, token_bucket};
use crate::policy::Rule;
use crate::replay::clients::Clients;
use crate::replay::columns::{align, shown};

/// So many of the clients that were refused most are named.
const NAMED: usize = 10;

/// A row of the report, in the names of the JSON.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    settings: &'a str,
    requests: u64,
    allowed: u64,
    refused: u64,
    never: u64,
    clients: usize,
    clients_refused: usize,
    most_in_window: Option<u64>,
    wrongly_let_in: Option<u64>,
    wrongly_refused: Option<u64>,
    wrongly_let_in_share: Option<f64>,
    wrongly_refused_share: Option<f64>,
    state_bytes: Option<u64>,
}

/// A client that was refused often, with the refusals of each row.
#[derive(Serialize)]
struct Named {
    client: String,
    requests: u64,
    refused: Vec<u64>,
}

#[derive(Serialize)]
struct Json<'a> {
    requests: u64,
    clients: usize,
    rows: Vec<Line<'a>>,
    refused_most: Vec<Named>,
}

pub(super) fn write_json(report: &Report, totals: &Totals, clients: &Clients, out: &mut dyn Write) -> io::Result<()> {
    let json = Json {
        requests: totals.requests,
        clients: clients.len(),
        rows: lines(report, totals),
        refused_most: refused_most(report, totals, clients),
    };
    serde_json::to_writer_pretty(&mut *out, &json)?;
    writeln!(out)
}

pub(super) fn write(report: &Report, totals: &Totals, clients: &Clients, out: &mut dyn Write) -> io::Result<()> {
    let heading = [
        ["", "limit"],
        ["", "settings"],
        ["", "requests"],
        ["", "allowed"],
        ["", "refused"],
        ["", "clients"],
        ["clients", "refused"],
        ["most in", "a window"],
        ["wrongly", "let in"],
        ["wrongly", "refused"],
        ["bytes of", "state"],
    ];
    let mut rows: Vec<Vec<String>> = (0..2).map(|line| heading.map(|column| column[line].to_owned()).into()).collect();
    rows.extend(lines(report, totals).iter().map(|line| {
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let share = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |share| format!("{:.3}%", 100.0 * share));
        vec![
            line.name.to_owned(),
            line.settings.to_owned(),
            line.requests.to_string(),
            line.allowed.to_string(),
            line.refused.to_string(),
            line.clients.to_string(),
            line.clients_refused.to_string(),
            number(line.most_in_window),
            share(line.wrongly_let_in_share),
            share(line.wrongly_refused_share),
            number(line.state_bytes),
        ]
    }));
    align(&rows, 2, out)?;
    let named = refused_most(report, totals, clients);
    if named.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nrefused most")?;
    let mut rows = vec![vec!["client".to_owned(), "requests".to_owned()]];
    rows[0].extend(report.rows.iter().map(|row| row.name.clone()));
    rows.extend(named.into_iter().map(|Named { client, requests, refused }| {
        let mut row = vec![shown(&client), requests.to_string()];
        row.extend(refused.iter().map(u64::to_string));
        row
    }));
    align(&rows, 1, out)
}

fn lines<'a>(report: &'a Report, totals: &Totals) -> Vec<Line<'a>> {
    report.rows.iter().zip(&totals.tallies).map(|(row, tally)| line(row, tally, totals)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a share is read to a few digits")]
fn line<'a>(row: &'a Row, tally: &Tally, totals: &Totals) -> Line<'a> {
    let judged = |count: u64| row.judge.as_ref().map(|_| count);
    let share = |count: u64| judged(count).map(|count| count as f64 / totals.requests.max(1) as f64);
    Line {
        name: &row.name,
        settings: &row.settings,
        requests: totals.requests,
        allowed: tally.allowed,
        refused: tally.refused,
        never: tally.never,
        clients: totals.requests_of.len(),
        clients_refused: tally.refused_of().filter(|&refused| refused > 0).count(),
        most_in_window: tally.most_of().map(|mut most| most.next().map_or(0, |first| most.fold(first, u64::max))),
        wrongly_let_in: judged(tally.wrongly_let_in),
        wrongly_refused: judged(tally.wrongly_refused),
        wrongly_let_in_share: share(tally.wrongly_let_in),
        wrongly_refused_share: share(tally.wrongly_refused),
        state_bytes: state_bytes(row, tally),
    }
}

/// What the algorithm itself keeps of all these clients, each at its fullest and none dropped: the numbers of the state, for
/// the log eight bytes for each unit in the window. The map that holds it is not counted.
fn state_bytes(row: &Row, tally: &Tally) -> Option<u64> {
    let [policy] = &*row.policies else { return None };
    let most = tally.most_of()?;
    // A client of whom nothing was let in has no state.
    let each =
        |bytes: usize, most: &mut dyn Iterator<Item = u64>| bytes as u64 * most.filter(|&most| most > 0).count() as u64;
    let mut most = most;
    Some(match policy.rule() {
        Rule::TokenBucket(_) => each(size_of::<token_bucket::State>(), &mut most),
        Rule::FixedWindow(_) => each(size_of::<fixed_window::State>(), &mut most),
        Rule::SlidingWindowCounter(counter) if u32::try_from(counter.limit).is_ok() => {
            each(size_of::<sliding_window_counter::State<u32>>(), &mut most)
        }
        Rule::SlidingWindowCounter(_) => each(size_of::<sliding_window_counter::State<u64>>(), &mut most),
        Rule::SlidingWindowLog(_) => most.map(|most| 8 * most).sum(),
    })
}

/// The clients that were refused most, most first, and in the order of their first requests where that is equal.
fn refused_most(report: &Report, totals: &Totals, clients: &Clients) -> Vec<Named> {
    if !report.names_clients {
        return Vec::new();
    }
    let mut sums = vec![0; clients.len()];
    for tally in &totals.tallies {
        sums.iter_mut().zip(tally.refused_of()).for_each(|(sum, refused)| *sum += refused);
    }
    let mut refused: Vec<(u64, u32)> = sums.into_iter().zip(0..).filter(|&(refused, _)| refused > 0).collect();
    refused.sort_unstable_by_key(|&(refused, client)| (std::cmp::Reverse(refused), client));
    refused.truncate(NAMED);
    let named = |(_, client): (u64, u32)| {
        let index = client as usize;
        Named {
            client: clients.name(client),
            requests: totals.requests_of[index],
            refused: totals.tallies.iter().filter_map(|tally| tally.refused_of().nth(index)).collect(),
        }
    };
    refused.into_iter().map(named).collect()
}
