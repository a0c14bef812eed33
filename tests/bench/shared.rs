//! Shared mode beside redis-benchmark, which runs the same script with the same arguments on as many connections as there are
//! workers; and a flood of refused requests beside the same flood in memory. Redis, service and load share the machine.

mod report;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, reason = "what the tests need is more than what a bench needs")]
mod support;
mod wrk;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;

use report::{Report, median};
use support::Service;
use support::redis::Server;

const ROUNDS: usize = 5;
const WORKERS: &str = "4";
const CONNECTIONS: usize = 16;

fn main() {
    if !wrk::is_installed() {
        return;
    }
    if Command::new("redis-benchmark").arg("--version").output().is_err() {
        println!("skipped: redis-benchmark is not installed (apt-get install redis-tools)\n");
        return;
    }
    let caption = format!("requests a second, medians of {ROUNDS} alternating runs, {WORKERS} workers");
    let mut report = Report::begin("shared", &caption, &["what", "beside", "rate of that", "tollgate", "p99", "ratio"]);
    let store = Server::on_tcp(&[]);
    for (algorithm, limit) in
        [("token-bucket", "900000"), ("fixed-window", "900000"), ("sliding-window-counter", "900000")]
    {
        let service = shared(&store, algorithm, limit);
        let command = script_call(&store, &service);
        let beside = || redis_benchmark(&store, &command);
        compare(&mut report, algorithm, "redis-benchmark", beside, &service);
    }
    let refused = shared(&store, "sliding-window-log", "1");
    let in_memory =
        Service::start(&[("WORKERS", WORKERS), ("ALGORITHM", "sliding-window-log"), ("LIMIT", "1"), ("WINDOW", "1d")]);
    for service in [&refused, &in_memory] {
        service.get("/limited");
    }
    let beside = || load(&in_memory).requests_a_second;
    compare(&mut report, "a refused client", "the same in memory", beside, &refused);
    report.end();
}

fn shared(store: &Server, algorithm: &str, quota: &str) -> Service {
    Service::start(&[
        ("WORKERS", WORKERS),
        ("REDIS_URL", store.url()),
        ("ALGORITHM", algorithm),
        ("CAPACITY", quota),
        ("REFILL_RATE", "900000"),
        ("LIMIT", quota),
        ("WINDOW", "1d"),
    ])
}

fn load(service: &Service) -> wrk::Load {
    wrk::load(&format!("http://{}/limited", service.address()), CONNECTIONS)
}

fn compare(report: &mut Report, what: &str, name: &str, beside: impl Fn() -> f64, service: &Service) {
    let (mut others, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        others.push(beside());
        ours.push(load(service));
    }
    let p99 = median(ours.iter().map(|load| load.p99_micros).collect());
    let (other, ours) = (median(others), median(ours.iter().map(|load| load.requests_a_second).collect()));
    let ratio = ours / other;
    let [rate, our_rate] = [other, ours].map(|rate| format!("{rate:.0}"));
    report.row(&[what, name, &rate, &our_rate, &format!("{p99:.0} µs"), &format!("{ratio:.2}")]);
    report.bar(format!("{what}, beside {name}"), ratio);
}

/// The command that the service sends for a decision, as the server sees it.
fn script_call(store: &Server, service: &Service) -> Vec<String> {
    let address = store.url().strip_prefix("redis://").expect("a server on TCP");
    let mut monitor = TcpStream::connect(address).expect("the server listens");
    monitor.write_all(b"MONITOR\r\n").expect("the server listens");
    let mut lines = BufReader::new(monitor).lines().map(|line| line.expect("a line of the monitor"));
    assert_eq!(lines.next().as_deref(), Some("+OK"));
    assert_eq!(service.get("/limited").status, 200);
    let call = lines.find(|line| line.to_ascii_lowercase().contains("\"evalsha\"")).expect("a decision is seen");
    // Every argument is quoted, and none of ours holds a quote or a blank.
    call.split('"').skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

/// Calls a second.
fn redis_benchmark(store: &Server, command: &[String]) -> f64 {
    let port = store.url().rsplit(':').next().expect("a port");
    let output = Command::new("redis-benchmark")
        .args(["-p", port, "-c", WORKERS, "-n", "60000", "-q"])
        .args(command)
        .output()
        .expect("redis-benchmark runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rate = text.split(" requests per second").next().and_then(|text| text.rsplit(' ').next());
    rate.and_then(|rate| rate.parse().ok()).unwrap_or_else(|| panic!("no rate in {text}"))
}
