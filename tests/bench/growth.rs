//! What a client costs: memory of a million, cost of a decision as they grow from a thousand to ten million, that of strangers
//! who meet a full map, and what a sweep does to those who ask meanwhile. Memory is the resident memory of processes that do nothing else, one for each case.

mod processor;
mod report;

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use governor::clock::MonotonicClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter as Governor};
use processor::stay_on;
use report::{Report, median};
use tollgate::{Policy, RateLimiter};

const MILLION: u32 = 1_000_000;
const HOUR: Duration = Duration::from_secs(3_600);

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let [_, case, contender, clients] = &arguments[..]
        && case == "case"
    {
        stay_on(0);
        let (bytes, nanos) = measure(contender, clients.parse().expect("a number"));
        println!("{bytes} {nanos}");
        return;
    }
    // `cargo bench --bench growth -- sweeps` measures nothing else.
    if !arguments.iter().any(|argument| argument == "sweeps") {
        memory();
        growth();
        strangers();
    }
    sweeps();
}

/// A limiter of one kind for so many clients, or as many as it keeps by default, and the way to ask it.
fn contender(name: &str, clients: u32) -> Box<dyn Fn(Ipv4Addr) -> bool + Sync> {
    if name == "governor" {
        let quota = Quota::with_period(HOUR).expect("not zero").allow_burst(10.try_into().expect("not zero"));
        let governor: Governor<_, _, _, NoOpMiddleware<_>> =
            Governor::new(quota, DefaultKeyedStateStore::<Ipv4Addr>::default(), MonotonicClock);
        return Box::new(move |client| governor.check_key(&client).is_ok());
    }
    let limiter = RateLimiter::builder(policy(name)).max_clients(clients.max(MILLION) as usize).build();
    Box::new(move |client| limiter.check(client).is_allowed())
}

fn policy(name: &str) -> Policy {
    let policy = match name {
        "token bucket" => Policy::token_bucket(10, 1, HOUR),
        "fixed window" => Policy::fixed_window(10, HOUR),
        "counter" => Policy::sliding_window_counter(10, HOUR),
        "log" => Policy::sliding_window_log(10, HOUR),
        other => panic!("no contender is named {other}"),
    };
    policy.expect("a valid policy")
}

/// Bytes a client, and nanoseconds of a decision about one of them.
fn measure(name: &str, clients: u32) -> (u64, u64) {
    const DECISIONS: u32 = 2_000_000;
    let before = resident();
    let ask = contender(name, clients);
    // An odd factor visits every address once, in an order that no table was built for.
    let address = |number: u32| Ipv4Addr::from_bits(number.wrapping_mul(2_654_435_761));
    for client in 0..clients {
        black_box(ask(address(client)));
    }
    let bytes = resident().saturating_sub(before) / u64::from(clients);
    let begun = Instant::now();
    for request in 0..DECISIONS {
        black_box(ask(address(request.wrapping_mul(40_503) % clients)));
    }
    (bytes, u64::try_from(begun.elapsed().as_nanos()).expect("a short time") / u64::from(DECISIONS))
}

/// The same in a process of its own, the median of three.
fn in_a_process(name: &str, clients: u32) -> (f64, f64) {
    let itself = env::current_exe().expect("the path of this program");
    let (mut bytes, mut nanos) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let output = Command::new(&itself).args(["case", name, &clients.to_string()]).output().expect("it runs again");
        let text = String::from_utf8(output.stdout).expect("text");
        let (first, second) = text.trim().split_once(' ').expect("two numbers");
        bytes.push(first.parse().expect("a number"));
        nanos.push(second.parse().expect("a number"));
    }
    (median(bytes), median(nanos))
}

fn memory() {
    let columns = ["contender", "bytes a client", "ratio to governor"];
    let mut report = Report::begin("memory", "bytes a client, all in, with a million clients on IPv4", &columns);
    let (governor, _) = in_a_process("governor", MILLION);
    for name in ["governor", "token bucket", "fixed window", "counter", "log"] {
        let (bytes, _) = in_a_process(name, MILLION);
        report.row(&[name.to_owned(), format!("{bytes:.0}"), format!("{:.2}", bytes / governor)]);
        report.bar(name, bytes / governor);
    }
    report.end();
}

fn growth() {
    let columns = ["clients", "governor", "token bucket", "ratio", "megabytes"];
    let mut report = Report::begin("growth", "nanoseconds a decision as clients grow, one thread", &columns);
    for clients in [1_000, 10_000, 100_000, MILLION, 10 * MILLION] {
        let (_, governor) = in_a_process("governor", clients);
        let (bytes, ours) = in_a_process("token bucket", clients);
        let ratio = ours / governor;
        report.row(&[
            clients.to_string(),
            format!("{governor:.0}"),
            format!("{ours:.0}"),
            format!("{ratio:.2}"),
            format!("{:.1}", bytes * f64::from(clients) / 1e6),
        ]);
        report.bar(format!("token bucket, {clients} clients"), ratio);
    }
    report.end();
}

/// What a request of somebody new costs while the map grows, and when it is full and each drives another out.
fn strangers() {
    const MOST: u32 = MILLION;
    let columns = ["new clients", "nanoseconds a decision", "ratio"];
    let caption = format!("clients that come once, of whom {MOST} are kept, one thread");
    let mut report = Report::begin("strangers", &caption, &columns);
    let limiter = RateLimiter::builder(policy("token bucket")).max_clients(MOST as usize).build();
    let mut first = None;
    for million in 0..10 {
        let begun = Instant::now();
        for client in million * MILLION..(million + 1) * MILLION {
            black_box(limiter.check(Ipv4Addr::from_bits(client.wrapping_mul(2_654_435_761))));
        }
        let nanos = begun.elapsed().as_secs_f64() * 1e9 / f64::from(MILLION);
        let ratio = nanos / *first.get_or_insert(nanos);
        let ordinal = if million == 0 { "the first million".to_owned() } else { format!("million {}", million + 1) };
        report.row(&[ordinal.clone(), format!("{nanos:.0}"), format!("{ratio:.2}")]);
        report.bar(ordinal, ratio);
    }
    report.end();
}

/// Latencies of decisions about a million clients: without sweeps, with sweeps at the pace of the reaper, which rests 19 times
/// as long as it works, and with one sweep after the other.
fn sweeps() {
    const ROUNDS: usize = 7;
    /// Of so many in ten thousand.
    const SHARES: [(&str, usize); 4] = [("p50", 5_000), ("p99", 9_900), ("p99.9", 9_990), ("max", 10_000)];
    const RESTS: [Option<u32>; 3] = [None, Some(19), Some(0)];
    let columns = ["latency", "no sweep", "the reaper's pace", "ratio", "without a pause", "ratio"];
    let caption = "nanoseconds of a decision about one of a million clients, with their clock";
    let mut report = Report::begin("sweeps", caption, &columns);
    let limiter = RateLimiter::new(policy("token bucket"));
    for client in 0..MILLION {
        limiter.check(Ipv4Addr::from_bits(client));
    }
    let mut runs: Vec<[Vec<f64>; 3]> = SHARES.iter().map(|_| Default::default()).collect();
    for _ in 0..ROUNDS {
        for (index, rest) in RESTS.into_iter().enumerate() {
            let latencies = latencies(&limiter, rest);
            for (run, (_, share)) in runs.iter_mut().zip(SHARES) {
                run[index].push(f64::from(latencies[(latencies.len() - 1) * share / 10_000]));
            }
        }
    }
    for (run, (name, _)) in runs.into_iter().zip(SHARES) {
        let [calm, paced, unpaced] = run.map(median);
        let mut cells = vec![name.to_owned(), format!("{calm:.0}")];
        for swept in [paced, unpaced] {
            cells.extend([format!("{swept:.0}"), format!("{:.2}", swept / calm)]);
        }
        report.row(&cells);
        report.bar(format!("{name}, the reaper's pace"), paced / calm);
        report.bar(format!("{name}, without a pause"), unpaced / calm);
    }
    report.end();
}

/// Sorted. `rest` is how many times as long as a sweep the pause after it is.
fn latencies(limiter: &RateLimiter, rest: Option<u32>) -> Vec<u32> {
    let stop = AtomicBool::new(false);
    let mut latencies = Vec::with_capacity(MILLION as usize);
    thread::scope(|scope| {
        if let Some(rest) = rest {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    limiter.sweep();
                    thread::sleep(begun.elapsed() * rest);
                }
            });
        }
        for request in 0..MILLION {
            let client = Ipv4Addr::from_bits(request.wrapping_mul(2_654_435_761) % MILLION);
            let begun = Instant::now();
            black_box(limiter.check(client));
            latencies.push(u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
        stop.store(true, Ordering::Relaxed);
    });
    latencies.sort_unstable();
    latencies
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells the memory of a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}
