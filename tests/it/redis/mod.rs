//! Shared mode, on real servers. A missing redis-server is a failure.

/// Three nodes on the loopback.
mod cluster;
/// What the scripts decide, field by field, and what they leave in the store.
mod decisions;
/// No key lives for ever.
mod expiry;
/// Every fault of a server in every mode.
mod faults;
/// Several instances, one limit.
mod instances;
/// Servers that die, freeze, refuse, or are none.
mod outages;
/// The program during outages: its log, its one worker, its threads and descriptors.
mod program;
/// Refusals that are repeated without asking the store.
mod refusals;
/// Two instances of the program on one store.
mod service;
/// `rediss://`, with certificates made for the test.
#[cfg(feature = "tls")]
mod tls;

use std::time::Duration;

use tollgate::{Builder, Policies, Policy, RateLimiter, Redis};

use crate::support::redis::Server;

/// One policy of each algorithm with this quota. With a year for a span, no window ends while a test runs.
fn each_algorithm(quota: u64, span: Duration) -> [Policy; 4] {
    [
        Policy::token_bucket(quota, quota, span),
        Policy::fixed_window(quota, span),
        Policy::sliding_window_log(quota, span),
        Policy::sliding_window_counter(quota, span),
    ]
    .map(|policy| policy.expect("within the bounds"))
}

/// Every policy of [`each_algorithm`] alone, and all of them at once.
fn alone_and_together(quota: u64, span: Duration) -> Vec<Policies> {
    let mut sets: Vec<Policies> = each_algorithm(quota, span).map(Policies::from).into();
    let named = each_algorithm(quota, span).into_iter().zip(["a", "b", "c", "d"]);
    let named = named.map(|(policy, name)| policy.named(name).expect("a name")).collect();
    sets.push(Policies::new(named).expect("names that differ"));
    sets
}

const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn sharing(server: &Server, policy: &Policy) -> RateLimiter {
    build(RateLimiter::builder(policy.clone()), settings(server))
}

/// With a timeout that a busy machine does not reach: those that are about it set their own.
fn settings(server: &Server) -> Redis {
    Redis::new(server.url()).and_then(|redis| redis.timeout(Duration::from_secs(5))).expect("a URL")
}

fn build(builder: Builder, redis: Redis) -> RateLimiter {
    builder.shared(redis).expect("policies that a script counts exactly").build()
}
