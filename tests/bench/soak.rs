//! An hour's worth of trouble in some minutes: good clients all the while, every attack in turn, and a store that is killed,
//! frozen, and started again. At the end memory, threads and descriptors must be where they began, save for connections
//! that are lost and counted as such.

mod attack;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, reason = "what the tests need is more than what a bench needs")]
mod support;

use std::fs;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use attack::ATTACKS;
use support::redis::Server;
use support::{Connection, Service};

/// How long each attack lasts, and how often all of them are gone through.
const EACH: Duration = Duration::from_secs(6);
const ROUNDS: usize = 3;

/// What may be left: an allocator keeps holes among what it was given. The first round makes them, and no later one may add
/// to them.
const HOLES_MEGABYTES: f64 = 48.0;
const GROWTH_MEGABYTES: f64 = 8.0;

/// Idle connections to the store, one for each worker, and as many idle threads of the HTTP crate may come and go.
const SPARE: usize = 4;

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    megabytes: f64,
    threads: usize,
    descriptors: usize,
}

fn main() -> ExitCode {
    let mut store = Server::start();
    let service = Service::start(&[
        ("REDIS_URL", store.url()),
        ("TRUSTED_PROXIES", "127.0.0.1"),
        ("ALGORITHM", "sliding-window-counter"),
        ("LIMIT", "50"),
        ("WINDOW", "2s"),
        ("MAX_CLIENTS", "100000"),
        ("IDLE_TIMEOUT", "3s"),
        // As README advises. Otherwise the allocator of glibc keeps what a flood has made it take.
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
    ]);
    // What is made at the first use belongs to the beginning.
    warm_up(&service);
    let before = settled(&service);
    println!("at the beginning: {before:?}");
    let mut first = before.megabytes;
    let (stop, answered, longest) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..2 {
            let (service, stop, answered, longest) = (&service, &stop, &answered, &longest);
            scope.spawn(move || good_client(service, number, stop, answered, longest));
        }
        for round in 0..ROUNDS {
            if round == 1 {
                first = held(&service).megabytes;
            }
            for (attack, trouble) in ATTACKS.iter().zip(TROUBLES.iter().cycle()) {
                attack.during(service.address(), || {
                    (trouble.begin)(&mut store);
                    thread::sleep(EACH / 2);
                    (trouble.end)(&mut store);
                    thread::sleep(EACH / 2);
                });
                println!("round {}: {}, and the store {}; {:?}", round + 1, attack.name, trouble.name, held(&service));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("good clients: {} answers, the longest after {} ms", answered.into_inner(), longest.into_inner());
    let after = settled(&service);
    let lost = metric(&service, "tollgate_connections_lost");
    println!("at the end: {after:?}, {lost} connections lost");
    let fits = after.megabytes < before.megabytes + HOLES_MEGABYTES
        && after.megabytes < first + GROWTH_MEGABYTES
        && after.threads <= before.threads + SPARE + lost
        && after.descriptors <= before.descriptors + SPARE + 2 * lost;
    println!(
        "{}",
        if fits {
            "threads and descriptors are where they began, memory no higher than after the first round"
        } else {
            "something was left behind"
        }
    );
    println!("{}", service.log());
    if fits { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Something that happens to the store, and its end.
struct Trouble {
    name: &'static str,
    begin: fn(&mut Server),
    end: fn(&mut Server),
}

const TROUBLES: [Trouble; 3] = [
    Trouble { name: "killed", begin: Server::kill, end: Server::restart },
    Trouble { name: "frozen", begin: |store| store.signal("STOP"), end: |store| store.signal("CONT") },
    Trouble { name: "well", begin: |_| {}, end: |_| {} },
];

fn warm_up(service: &Service) {
    let mut connections: Vec<Connection> = (0..50).map(|_| service.connect()).collect();
    for connection in &mut connections {
        connection.get("/limited");
    }
}

/// Asks for ever new clients, as a proxy does, and for the state of things now and then.
fn good_client(service: &Service, number: u32, stop: &AtomicBool, answered: &AtomicU64, longest: &AtomicU64) {
    let mut connection = service.connect();
    for request in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let client = Ipv4Addr::from_bits(0x0a00_0000 + number * 100_000 + request % 50_000).to_string();
        let begun = Instant::now();
        let reply = connection.request("GET", "/limited", &[("X-Forwarded-For", &client)]);
        assert!([200, 429].contains(&reply.status), "{reply:?}");
        if request % 1_000 == 0 {
            assert_eq!(connection.get("/healthz").status, 200);
        }
        answered.fetch_add(1, Ordering::Relaxed);
        longest.fetch_max(u64::try_from(begun.elapsed().as_millis()).expect("a short time"), Ordering::Relaxed);
    }
}

/// What the process holds once it holds no more clients and no more threads than it needs, or after half a minute.
fn settled(service: &Service) -> Held {
    let begun = Instant::now();
    let mut last = held(service);
    loop {
        // Idle threads of the HTTP crate end after five seconds, idle clients within some.
        thread::sleep(Duration::from_secs(7));
        let now = held(service);
        let still = (now.threads, now.descriptors) == (last.threads, last.descriptors);
        if still && metric(service, "tollgate_clients") == 0 || begun.elapsed() > Duration::from_secs(30) {
            return now;
        }
        last = now;
    }
}

fn held(service: &Service) -> Held {
    let status = fs::read_to_string(format!("/proc/{}/status", service.pid())).expect("the process lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    let count =
        |folder: &str| fs::read_dir(format!("/proc/{}/{folder}", service.pid())).expect("the process lives").count();
    Held { megabytes: kilobytes / 1024.0, threads: count("task"), descriptors: count("fd") }
}

/// The value of a metric without labels.
fn metric(service: &Service, name: &str) -> usize {
    let text = service.get("/metrics").body;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a whole number")
}
