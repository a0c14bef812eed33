//! The totals of a replay against a naive count: every figure from the whole history, by the definition.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;
use tollgate::Policy;
use tollgate::replay::{self, Form, Reading, Report, Row, Suggest, Task};

const READING: Reading = Reading { format: None, strict: true, ipv6_prefix: 64, progress: false };

/// A request as (µs, client, cost).
type Request = (u64, u8, u64);

/// How the rows of these tests count. The bucket gains `limit` in each window.
#[derive(Clone, Copy)]
struct Settings {
    limit: u64,
    window: u64,
}

/// Whether a request passes after what was let in before, as (µs, cost) in the order of time.
type Rule = fn(Settings, &[(u64, u64)], u64, u64) -> bool;

fn bucket(Settings { limit, window }: Settings, before: &[(u64, u64)], now: u64, cost: u64) -> bool {
    // In units of a token that is one window of microseconds long: each microsecond brings `limit` of them.
    let full = limit * window;
    let (mut level, mut at) = (full, 0);
    for &(time, spent) in before {
        level = full.min(level + (time - at) * limit) - spent * window;
        at = time;
    }
    full.min(level + (now - at) * limit) >= cost * window
}

fn fixed(Settings { limit, window }: Settings, before: &[(u64, u64)], now: u64, cost: u64) -> bool {
    let here = before.iter().filter(|(time, _)| time / window == now / window).map(|(_, spent)| spent);
    here.sum::<u64>() + cost <= limit
}

fn log(Settings { limit, window }: Settings, before: &[(u64, u64)], now: u64, cost: u64) -> bool {
    let young = before.iter().filter(|(time, _)| now - time < window).map(|(_, spent)| spent);
    young.sum::<u64>() + cost <= limit
}

fn counter(Settings { limit, window }: Settings, before: &[(u64, u64)], now: u64, cost: u64) -> bool {
    let of =
        |number: u64| before.iter().filter(|(time, _)| time / window == number).map(|(_, spent)| spent).sum::<u64>();
    let number = now / window;
    let previous = if number == 0 { 0 } else { of(number - 1) };
    previous * (window - now % window) + (of(number) + cost) * window <= limit * window
}

const RULES: [Rule; 4] = [bucket, fixed, log, counter];

/// allowed, refused, clients refused, most in a window, wrongly let in, wrongly refused.
fn naive(rule: Rule, settings: Settings, requests: &[Request]) -> [u64; 6] {
    let decide = |rule: Rule| -> Vec<bool> {
        let mut passed: BTreeMap<u8, Vec<(u64, u64)>> = BTreeMap::new();
        let decide = |&(time, client, cost): &Request| {
            let before = passed.entry(client).or_default();
            let passes = rule(settings, before, time, cost);
            if passes {
                before.push((time, cost));
            }
            passes
        };
        requests.iter().map(decide).collect()
    };
    let (own, judge) = (decide(rule), decide(log));
    let count = |which: fn(bool, bool) -> bool| {
        own.iter().zip(&judge).filter(|&(&own, &judge)| which(own, judge)).count() as u64
    };
    let within = |end: usize| {
        let (last, client, _) = requests[end];
        let counts =
            |&(&(time, other, _), &own): &(&Request, &bool)| own && other == client && last - time < settings.window;
        requests[..=end].iter().zip(&own).filter(counts).map(|((_, _, cost), _)| cost).sum::<u64>()
    };
    let refused: std::collections::BTreeSet<u8> =
        requests.iter().zip(&own).filter(|&(_, own)| !own).map(|((_, client, _), _)| *client).collect();
    [
        count(|own, _| own),
        count(|own, _| !own),
        refused.len() as u64,
        (0..requests.len()).map(within).max().unwrap_or(0),
        count(|own, judge| own && !judge),
        count(|own, judge| !own && judge),
    ]
}

fn rows(Settings { limit, window }: Settings) -> Vec<Row> {
    let span = Duration::from_micros(window);
    let judge = Policy::sliding_window_log(limit, span).expect("a valid limit");
    [
        Policy::token_bucket(limit, limit, span),
        Policy::fixed_window(limit, span),
        Policy::sliding_window_log(limit, span),
        Policy::sliding_window_counter(limit, span),
    ]
    .into_iter()
    .map(|policy| Row::of("row", policy.expect("a valid limit"), Some(judge.clone())))
    .collect()
}

fn report(task: &Task, requests: &[Request]) -> Value {
    let text: String = requests.iter().map(|(time, client, cost)| format!("{time},c{client},{cost}\n")).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    replay::run(task, READING, text.as_bytes(), &mut out, &mut err).expect("a replay that ends well");
    serde_json::from_slice(&out).expect("JSON")
}

proptest! {
    #[test]
    fn every_total_is_what_counting_by_the_definition_gives(
        limit in 1..6u64,
        window in 1..40u64,
        steps in proptest::collection::vec((0..12u64, 0..3u8, prop_oneof![4 => Just(1u64), 1 => 0..8u64]), 1..120),
    ) {
        let settings = Settings { limit, window };
        let mut now = 1_000;
        let requests: Vec<Request> = steps.into_iter().map(|(step, client, cost)| {
            now += step;
            (now, client, cost)
        }).collect();
        let task = Task::Report(Report { rows: rows(settings), names_clients: true, form: Form::Json });
        let report = report(&task, &requests);
        for (rule, row) in RULES.into_iter().zip(report["rows"].as_array().expect("rows")) {
            let names = ["allowed", "refused", "clients_refused", "most_in_window", "wrongly_let_in", "wrongly_refused"];
            let got = names.map(|name| row[name].as_u64().expect("a number"));
            prop_assert_eq!(got, naive(rule, settings, &requests), "{:?}", row);
        }
        // Three clients at most, so all that were refused are named.
        let number = |value: &Value| value.as_u64().expect("a number");
        let refused: Vec<u64> = report["refused_most"].as_array().expect("clients").iter()
            .map(|client| client["refused"].as_array().expect("a number for each row").iter().map(number).sum()).collect();
        prop_assert!(refused.is_sorted_by(|a, b| a >= b));
        let all: u64 = report["rows"].as_array().expect("rows").iter().map(|row| number(&row["refused"])).sum();
        prop_assert_eq!(refused.iter().sum::<u64>(), all);
    }
}

/// The clients that a policy would ever have refused.
fn refused_clients(requests: &[Request], rule: Rule, settings: Settings) -> u64 {
    naive(rule, settings, requests)[2]
}

proptest! {
    #[test]
    fn the_suggested_limit_does_and_one_less_does_not(
        window in 1..40u64,
        percent in 1..=100u64,
        steps in proptest::collection::vec((0..6u64, 0..6u8, 1..4u64), 1..100),
    ) {
        let mut now = 1_000;
        let requests: Vec<Request> = steps.into_iter().map(|(step, client, cost)| {
            now += step;
            (now, client, cost)
        }).collect();
        let clients = requests.iter().map(|(_, client, _)| client).collect::<std::collections::BTreeSet<_>>().len() as u64;
        let span = Duration::from_micros(window);
        let share = percent.to_string().parse().expect("a share");
        // The bucket gains one token in each window, whatever its capacity is.
        let slow: Rule = |Settings { limit, window }, before, now, cost| {
            let (mut level, mut at) = (limit * window, 0);
            for &(time, spent) in before {
                level = (limit * window).min(level + (time - at)) - spent * window;
                at = time;
            }
            (limit * window).min(level + (now - at)) >= cost * window
        };
        let task = Task::Suggest(Suggest::new(share, (1, span), span, Form::Json).expect("a valid window"));
        let lines = report(&task, &requests);
        for (rule, line) in [slow, fixed, log, counter].into_iter().zip(lines.as_array().expect("rows")) {
            let limit = line["smallest"].as_u64().expect("a limit");
            let suits = |limit| {
                let refused = refused_clients(&requests, rule, Settings { limit, window });
                (clients - refused) * 100 >= percent * clients
            };
            prop_assert!(suits(limit), "{line} of {clients} clients");
            prop_assert!(limit == 1 || !suits(limit - 1), "{line} of {clients} clients");
        }
    }
}
