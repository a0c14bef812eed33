//! What a million clients cost, and that they are gone when their quota is whole again; what a logged request costs; and that
//! ten million addresses that come once fill no more than the bound: measured as the resident memory of processes that do nothing else, one for each case.

use std::net::Ipv4Addr;
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, fs};

use tollgate::{ManualClock, Policy, RateLimiter, Timestamp};

const MILLION: u32 = 1_000_000;

/// A policy, and the most bytes that a client may cost all in.
fn cases() -> [(Policy, u64); 4] {
    let minute = Duration::from_secs(60);
    let valid = |policy: Result<Policy, _>| policy.expect("a valid policy");
    [
        (valid(Policy::token_bucket(10, 1, minute)), 48),
        (valid(Policy::fixed_window(10, minute)), 48),
        (valid(Policy::sliding_window_counter(10, minute)), 48),
        // The first two requests of a log are kept in its entry.
        (valid(Policy::sliding_window_log(10, minute)), 76),
    ]
}

/// Runs itself once for each case, so that no case finds memory that another one left.
fn main() -> ExitCode {
    if let Some(case) = env::args().nth(1).and_then(|argument| argument.strip_prefix("case=")?.parse::<usize>().ok()) {
        match cases().get(case) {
            Some((policy, bytes)) => measure_clients(policy, *bytes),
            None if case == cases().len() => measure_requests(),
            None => measure_flood(),
        }
        return ExitCode::SUCCESS;
    }
    let itself = env::current_exe().expect("the path of this program");
    let run =
        |case: usize| Command::new(&itself).arg(format!("case={case}")).status().expect("it runs again").success();
    // The last two are the log of a single client, and a flood.
    let all = cases().len() + 2;
    let failed = (0..all).filter(|&case| !run(case)).count();
    println!("{} passed, {failed} failed", all - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn measure_clients(policy: &Policy, most: u64) {
    let clock = ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000));
    let before = resident();
    let limiter = RateLimiter::builder(policy.clone()).clock(clock.clone()).build();
    for client in 0..MILLION {
        // An odd factor visits every address once, in an order that no table was built for.
        let client = Ipv4Addr::from_bits(client.wrapping_mul(2_654_435_761));
        assert!(limiter.check(client).is_allowed());
    }
    assert_eq!(limiter.clients().tracked, MILLION as usize);
    let bytes = (resident() - before) / u64::from(MILLION);
    assert!(bytes <= most, "{bytes} bytes a client, {most} at most");

    clock.advance(Duration::from_secs(3_600));
    limiter.sweep();
    assert_eq!(limiter.clients().tracked, 0);
    let left = resident().saturating_sub(before);
    println!("{}: {bytes} bytes a client, {} kB left after the sweep", policy.algorithm(), left / 1024);
    assert!(left <= u64::from(MILLION) * bytes / 4, "{left} bytes were not given back");
}

/// A client at its limit of a million in a window that has moved on twice; and many clients under that limit, of whom none
/// may be given the room for all of it.
fn measure_requests() {
    let clock = ManualClock::default();
    let policy = Policy::sliding_window_log(u64::from(MILLION), Duration::from_secs(1)).expect("a valid policy");
    let limiter = RateLimiter::builder(policy).clock(clock.clone()).build();
    let before = resident();
    for _ in 0..3 * MILLION {
        clock.advance(Duration::from_micros(1));
        assert!(limiter.check("steady").is_allowed());
    }
    assert_eq!(limiter.peek("steady").verdicts()[0].remaining(), 0);
    let bytes = (resident() - before) as f64 / f64::from(MILLION);
    println!("sliding-window-log: {bytes:.1} bytes a logged request");
    assert!(bytes <= 12.0, "{bytes} bytes a logged request, 12 at most");

    let before = resident();
    for client in 0..10_000 {
        assert!(limiter.check(Ipv4Addr::from_bits(client)).is_allowed());
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes for a request each of 10,000 clients");
}

/// Ten million addresses, a request each, where a hundred thousand are kept at most, and a client that was refused before.
fn measure_flood() {
    const MOST: u32 = 100_000;
    let clock = ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000));
    let policy = Policy::sliding_window_counter(10, Duration::from_secs(3_600)).expect("a valid policy");
    let before = resident();
    let limiter = RateLimiter::builder(policy).clock(clock.clone()).max_clients(MOST as usize).build();
    while limiter.check("refused").is_allowed() {}
    for client in 0..10 * MILLION {
        clock.advance(Duration::from_micros(1));
        assert!(limiter.check(Ipv4Addr::from_bits(client.wrapping_mul(2_654_435_761))).is_allowed());
    }
    let bytes = resident() - before;
    println!("ten million addresses: {} kB for the {MOST} that are kept", bytes / 1024);
    assert_eq!(limiter.clients().tracked, MOST as usize);
    // Twice what a client costs: the places of those that were driven out wear a table, and it doubles once.
    assert!(bytes <= u64::from(MOST) * 96, "{bytes} bytes for {MOST} clients");
    assert!(!limiter.check("refused").is_allowed(), "the flood has freed a client");
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells the memory of a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}
