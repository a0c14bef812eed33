//! What a decision costs, beside governor's keyed limiter on the same keys, clock and share of refusals.
//!
//! All contenders take turns in one run, several rounds each, and the median counts: absolute times belong to the machine,
//! ratios hold.

mod processor;
mod report;

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::thread;
use std::time::{Duration, Instant};

use governor::clock::MonotonicClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter as Governor};
use processor::stay_on;
use report::{Report, median};
use tollgate::{Policy, RateLimiter};

const ROUNDS: usize = 7;
const DECISIONS: u32 = 1_000_000;

/// A contender: asks about one client, and says whether it was let in.
type Ask = Box<dyn Fn(Ipv4Addr) -> bool + Sync>;

fn main() {
    let caption = format!("nanoseconds a decision, medians of {ROUNDS} rounds; in brackets the ratio to governor");
    let columns = ["requests", "clients", "threads", "governor", "token bucket", "fixed window", "counter", "log"];
    let mut report = Report::begin("decisions", &caption, &columns);
    for allowed in [true, false] {
        for clients in [1, 1_000, 1_000_000] {
            let contenders = contenders(allowed);
            for threads in [1, 2] {
                let medians = compare(&contenders, clients.max(threads), threads);
                let requests = if allowed { "allowed" } else { "refused" };
                let mut cells = vec![requests.to_owned(), clients.to_string(), threads.to_string()];
                cells.extend(medians.iter().map(|nanos| format!("{nanos:.0} ({:.2})", nanos / medians[0])));
                report.row(&cells);
                for (nanos, name) in medians.iter().zip(&columns[3..]).skip(1) {
                    report.bar(format!("{name}, {requests}, {clients} clients, {threads} threads"), nanos / medians[0]);
                }
            }
        }
    }
    report.end();
}

/// Every contender with a quota that is never used up, or that the first request uses up.
fn contenders(allowed: bool) -> Vec<Ask> {
    let hour = Duration::from_secs(3_600);
    let quota = if allowed { 1_000_000_000 } else { 1 };
    // A log would keep every request of an hour: its window is short enough to let a steady few thousand in.
    let log = if allowed {
        Policy::sliding_window_log(10_000, Duration::from_micros(1))
    } else {
        Policy::sliding_window_log(1, hour)
    };
    let governor_quota = if allowed {
        Quota::per_second(NonZeroU32::new(1_000_000_000).expect("not zero"))
    } else {
        Quota::with_period(hour).expect("not zero")
    };
    let governor: Governor<_, _, _, NoOpMiddleware<_>> =
        Governor::new(governor_quota, DefaultKeyedStateStore::<Ipv4Addr>::default(), MonotonicClock);
    let mut contenders: Vec<Ask> = vec![Box::new(move |client| governor.check_key(&client).is_ok())];
    for policy in [
        Policy::token_bucket(quota, 1, if allowed { Duration::from_micros(1) } else { hour }),
        Policy::fixed_window(quota, hour),
        Policy::sliding_window_counter(quota, hour),
        log,
    ] {
        let limiter = RateLimiter::builder(policy.expect("a valid policy")).max_clients(2_000_000).build();
        contenders.push(Box::new(move |client| limiter.check(client).is_allowed()));
    }
    contenders
}

/// The median time of a decision of each contender, in nanoseconds.
fn compare(contenders: &[Ask], clients: u32, threads: u32) -> Vec<f64> {
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..=ROUNDS {
        for (ask, times) in contenders.iter().zip(&mut times) {
            let time = measure(ask, clients, threads);
            // The first round makes the clients.
            if round > 0 {
                times.push(time);
            }
        }
    }
    times.into_iter().map(median).collect()
}

/// Each thread asks about clients of its own, in an order that no cache foresees, and stays on a processor of its own: left to
/// the system, contenders that take turns may each have a processor, and one of those is always the slower.
fn measure(ask: &Ask, clients: u32, threads: u32) -> f64 {
    let each = clients / threads;
    let begun = Instant::now();
    thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                stay_on(thread);
                for request in 0..DECISIONS {
                    let client = thread * each + request.wrapping_mul(2_654_435_761) % each;
                    black_box(ask(Ipv4Addr::from_bits(client)));
                }
            });
        }
    });
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(DECISIONS)
}
