//! How `/metrics` tells what was counted: the text exposition of Prometheus, written by its crate.
//!
//! What labels hold is chosen here or in the settings, and never by a client: no key, no address, no path.

use std::time::Duration;

use prometheus::proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{TEXT_FORMAT, TextEncoder};

use super::{Counter, Counters, FOUND, STATUSES, Traffic};
use crate::http::routes::Route;
use crate::limiter::RateLimiter;
use crate::store::{Latencies, OnStoreError, StoreState};

/// The `Content-Type` of it.
pub(in crate::http) const CONTENT_TYPE: &str = TEXT_FORMAT;

/// Everything that is counted, as text.
pub(in crate::http) fn exposition(counters: &Counters, traffic: &Traffic, limiter: &RateLimiter) -> String {
    let mut families = requests(counters, traffic);
    families.extend(decisions(traffic, limiter));
    families.extend(store(limiter));
    families.extend(connections(counters));
    // It writes to memory, and fails for families without a sample or a name.
    TextEncoder::new().encode_to_string(&families).expect("every family has a name and a sample")
}

fn requests(counters: &Counters, traffic: &Traffic) -> Vec<MetricFamily> {
    // What the server answers before the routes are asked, or in their stead.
    let by_server = |status| match status {
        400 => counters.bad_requests.get(),
        500 => counters.handler_panics.get(),
        503 => counters.shed.get(),
        _ => 0,
    };
    let mut samples = Vec::new();
    for (index, row) in traffic.requests.iter().enumerate() {
        let route = Route::ALL.get(index);
        for (status, counter) in STATUSES.into_iter().zip(row) {
            let count = counter.get() + if route.is_none() { by_server(status) } else { 0 };
            if count > 0 || route.is_some() && status == 200 {
                let route = route.map_or("none", |route| route.name());
                samples.push(count_of(&[("route", route), ("status", &status.to_string())], count));
            }
        }
    }
    let found = FOUND.iter().zip(&traffic.found).map(|(by, counter)| count_of(&[("by", by)], counter.get()));
    vec![
        gauge(
            "tollgate_build_info",
            "Always 1; the label tells the version.",
            vec![level_of(&[("version", env!("CARGO_PKG_VERSION"))], 1.0)],
        ),
        counter("tollgate_requests_total", "Requests answered, by route and status.", samples),
        counter("tollgate_identified_total", "Requests by what told their client.", found.collect()),
    ]
}

fn decisions(traffic: &Traffic, limiter: &RateLimiter) -> Vec<MetricFamily> {
    let mut samples = Vec::new();
    for (policy, decided) in limiter.policies().iter().zip(&traffic.decided) {
        let shared = limiter.store_state() != StoreState::Memory;
        for (outcome, count, only_shared) in [
            ("allowed", &decided.allowed, false),
            ("refused", &decided.refused, false),
            ("unasked", &traffic.unasked, true),
            ("unavailable", &traffic.unavailable, true),
        ] {
            if shared || !only_shared {
                samples.push(count_of(&[("policy", policy.name()), ("outcome", outcome)], count.get()));
            }
        }
    }
    let clients = limiter.clients();
    vec![
        counter("tollgate_decisions_total", "Decisions, by policy and what it said.", samples),
        histogram("tollgate_decision_seconds", "How long a decision took.", &traffic.latency.counted()),
        gauge("tollgate_clients", "Clients whose state is in memory.", vec![level_of(&[], clients.tracked as f64)]),
        counter(
            "tollgate_clients_reaped_total",
            "Clients dropped from memory because their whole quota was back.",
            vec![count_of(&[], clients.reaped as u64)],
        ),
        counter(
            "tollgate_clients_evicted_total",
            "Clients dropped from memory because it was full.",
            vec![count_of(&[], clients.evicted as u64)],
        ),
    ]
}

fn store(limiter: &RateLimiter) -> Vec<MetricFamily> {
    let state = limiter.store_state();
    let mode = match state {
        StoreState::Memory => "memory",
        StoreState::Up => "shared",
        StoreState::Down(mode) => mode.name(),
    };
    let modes = ["memory", "shared"].into_iter().chain(OnStoreError::ALL.map(OnStoreError::name));
    let modes = modes.map(|name| level_of(&[("mode", name)], f64::from(u8::from(name == mode))));
    let mut families = vec![gauge("tollgate_store_mode", "1 for who decides now.", modes.collect())];
    if state == StoreState::Memory {
        return families;
    }
    let calls = limiter.store_calls();
    families.extend([
        gauge(
            "tollgate_store_up",
            "Whether all of the shared store answers.",
            vec![level_of(&[], f64::from(u8::from(state == StoreState::Up)))],
        ),
        counter(
            "tollgate_store_calls_total",
            "Decisions that the shared store was to make, by whether it did.",
            vec![count_of(&[("result", "answered")], calls.answered), count_of(&[("result", "failed")], calls.failed)],
        ),
        counter(
            "tollgate_store_repeated_total",
            "Refusals that were known to hold and needed no call.",
            vec![count_of(&[], calls.repeated)],
        ),
        histogram("tollgate_store_seconds", "How long decisions waited for the shared store.", &calls.latencies),
    ]);
    families
}

fn connections(counters: &Counters) -> Vec<MetricFamily> {
    let closed = [
        ("idle", &counters.idle_closed),
        ("unread", &counters.unread_closed),
        ("flood", &counters.flood_closed),
        ("surplus", &counters.surplus_closed),
    ];
    let panics = [("handler", &counters.handler_panics), ("http_crate", &counters.crate_panics)];
    let one = |name, help, count: &Counter| counter(name, help, vec![count_of(&[], count.get())]);
    vec![
        gauge(
            "tollgate_connections",
            "Connections open at the last look.",
            vec![level_of(&[], counters.connections.get() as f64)],
        ),
        counter(
            "tollgate_connections_closed_total",
            "Connections closed for what they did: silence, answers not taken, a flood; or as more than are held.",
            closed.map(|(reason, counter)| count_of(&[("reason", reason)], counter.get())).into(),
        ),
        gauge(
            "tollgate_connections_lost",
            "Connections that hold a thread and two descriptors for good, at the last look.",
            vec![level_of(&[], counters.lost.get() as f64)],
        ),
        one(
            "tollgate_connections_set_aside_total",
            "Connections whose declared body can neither be read nor dropped: each is lost.",
            &counters.set_aside,
        ),
        one("tollgate_connections_starved_total", "Connections that waited for a thread.", &counters.starved),
        one("tollgate_accept_restarts_total", "Times that accepting was begun anew.", &counters.accept_restarts),
        one("tollgate_requests_bad_total", "Requests with unusable framing.", &counters.bad_requests),
        one("tollgate_requests_shed_total", "Requests turned away because too many were waiting.", &counters.shed),
        counter(
            "tollgate_panics_total",
            "Panics that were caught.",
            panics.map(|(place, counter)| count_of(&[("place", place)], counter.get())).into(),
        ),
    ]
}

fn family(kind: MetricType, name: &str, help: &str, samples: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.into());
    family.set_help(help.into());
    family.set_field_type(kind);
    family.set_metric(samples);
    family
}

fn counter(name: &str, help: &str, samples: Vec<Metric>) -> MetricFamily {
    family(MetricType::COUNTER, name, help, samples)
}

fn gauge(name: &str, help: &str, samples: Vec<Metric>) -> MetricFamily {
    family(MetricType::GAUGE, name, help, samples)
}

fn histogram(name: &str, help: &str, counted: &Latencies) -> MetricFamily {
    let bucket = |(bound, count): (Duration, u64)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound.as_secs_f64());
        bucket.set_cumulative_count(count);
        bucket
    };
    let mut histogram = Histogram::default();
    histogram.set_bucket(counted.up_to().map(bucket).collect());
    histogram.set_sample_count(counted.count());
    histogram.set_sample_sum(counted.total().as_secs_f64());
    let mut sample = Metric::default();
    sample.set_histogram(histogram);
    family(MetricType::HISTOGRAM, name, help, vec![sample])
}

/// One value of a counter. The format holds doubles: past 2^53 the last digit is lost.
fn count_of(labels: &[(&str, &str)], count: u64) -> Metric {
    let mut value = prometheus::proto::Counter::default();
    value.set_value(count as f64);
    let mut sample = with_labels(labels);
    sample.set_counter(value);
    sample
}

/// One value of a gauge.
fn level_of(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut gauge = prometheus::proto::Gauge::default();
    gauge.set_value(value);
    let mut sample = with_labels(labels);
    sample.set_gauge(gauge);
    sample
}

fn with_labels(labels: &[(&str, &str)]) -> Metric {
    let pair = |&(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.into());
        pair.set_value(value.into());
        pair
    };
    let mut sample = Metric::default();
    sample.set_label(labels.iter().map(pair).collect());
    sample
}
