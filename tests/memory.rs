//! What a million clients cost, and that they are gone when their quota is whole again: measured as the resident memory of
//! processes that do nothing else, one for each policy.

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
        let (policy, bytes) = &cases()[case];
        measure(policy, *bytes);
        return ExitCode::SUCCESS;
    }
    let itself = env::current_exe().expect("the path of this program");
    let run =
        |case: usize| Command::new(&itself).arg(format!("case={case}")).status().expect("it runs again").success();
    let failed = (0..cases().len()).filter(|&case| !run(case)).count();
    println!("{} passed, {failed} failed", cases().len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn measure(policy: &Policy, most: u64) {
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

/// Bytes of this process in memory.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells the memory of a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}
