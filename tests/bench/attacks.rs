//! What is left of a good client's throughput while somebody attacks, beside what it has undisturbed, in one run. Attacker,
//! client and service share the machine: an attack that is nothing but many requests takes its fair part of the cores.

mod attack;
mod report;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, reason = "what the tests need is more than what a bench needs")]
mod support;

use std::env;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use attack::ATTACKS;
use report::{Report, median};
use support::{Connection, Service};

const SECONDS: f64 = 10.0;

/// Undisturbed runs are short, one before each attack: the machine's speed drifts.
const CALM_SECONDS: f64 = 4.0;

/// Connections of the good client.
const CONNECTIONS: usize = 4;

fn main() {
    let service = Service::start(&[
        ("TRUSTED_PROXIES", "127.0.0.1"),
        ("ALGORITHM", "token-bucket"),
        ("CAPACITY", "100"),
        ("REFILL_RATE", "1/1s"),
        ("MAX_CLIENTS", "100000"),
        ("RUST_LOG", "error"),
    ]);
    let columns = ["attack", "undisturbed", "attacked", "left", "longest wait"];
    let caption =
        format!("requests a second of a good client on {CONNECTIONS} connections, {SECONDS} s of each attack");
    let mut report = Report::begin("attacks", &caption, &columns);
    let mut left = Vec::new();
    // `cargo bench --bench attacks -- reset` runs those with this in their name.
    let wanted = env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    for attack in ATTACKS.iter().filter(|attack| attack.name.contains(&wanted)) {
        let (calm, _) = good_client(service.address(), CALM_SECONDS);
        let (attacked, longest) = attack.during(service.address(), || good_client(service.address(), SECONDS));
        let ratio = attacked / calm;
        report.row(&[
            attack.name.to_owned(),
            format!("{calm:.0}"),
            format!("{attacked:.0}"),
            format!("{ratio:.2}"),
            format!("{} ms", longest.as_millis()),
        ]);
        report.bar(attack.name, ratio);
        left.push(ratio);
    }
    println!("\nmedian {:.2}", median(left));
    report.end();
}

/// Requests a second that are answered, and the longest wait for an answer.
fn good_client(address: SocketAddr, seconds: f64) -> (f64, Duration) {
    let (answered, longest) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let mut connection = Connection::to(address);
                while begun.elapsed().as_secs_f64() < seconds {
                    let sent = Instant::now();
                    assert_eq!(connection.get("/unlimited").status, 200);
                    let waited = u64::try_from(sent.elapsed().as_micros()).expect("a short time");
                    answered.fetch_add(1, Ordering::Relaxed);
                    longest.fetch_max(waited, Ordering::Relaxed);
                }
            });
        }
    });
    let rate = answered.into_inner() as f64 / begun.elapsed().as_secs_f64();
    (rate, Duration::from_micros(longest.into_inner()))
}
