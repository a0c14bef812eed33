//! Several instances, one limit: clocks that differ, instances that come and go, and an outage of them all.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tollgate::{ManualClock, Outcome, RateLimiter, Timestamp};

use super::{alone_and_together, build, each_algorithm, settings};
use crate::support::Service;
use crate::support::redis::{Server, eventually};

/// An instance whose own clock stands so far from the time, and does not even run.
fn by_the_clock(server: &Server, policies: impl Into<tollgate::Policies>, ahead: bool) -> RateLimiter {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let hour = Duration::from_secs(3_600);
    let now = if ahead { now + hour } else { now - hour };
    let clock =
        ManualClock::new(Timestamp::from_micros(u64::try_from(now.as_micros()).expect("before the year 500000")));
    build(RateLimiter::builder(policies).clock(clock), settings(server))
}

#[test]
fn instances_whose_clocks_are_two_hours_apart_tell_the_same_waits_by_the_clock_of_the_store() {
    const QUOTA: u64 = 4;
    let span = Duration::from_secs(60);
    let server = Server::start();
    for policies in alone_and_together(QUOTA, span) {
        let [ahead, behind] = [true, false].map(|ahead| by_the_clock(&server, policies.clone(), ahead));
        let begun = Instant::now();
        assert!(ahead.check_n("c", QUOTA).is_allowed());
        let waits = |limiter: &RateLimiter| {
            let decision = limiter.check_n("c", QUOTA);
            let wait = decision.retry_after().unwrap_or_else(|| panic!("{policies:?}: {decision:?}"));
            let resets = decision.verdicts().iter().map(tollgate::Verdict::reset_after);
            [vec![wait], resets.collect()].concat()
        };
        let (first, second) = (waits(&behind), waits(&ahead));
        let between = begun.elapsed();
        // The whole quota at once: the bucket and the log wait for a span, a window for its end, the counter for the next.
        for (told, later) in first.iter().zip(&second) {
            assert!(*told <= span * 2 && *told >= *later && *told - *later <= between, "{told:?}, then {later:?}");
        }
        if !policies.iter().any(|policy| policy.algorithm().name().contains("window")) {
            assert!(first[0] + between >= span, "{policies:?}: {first:?}");
        }
        for key in server.keys() {
            let left: u64 = server.ask(&format!("PTTL {key}"));
            assert!(left <= 120_000, "{key} has {left} ms left");
        }
        server.ask::<()>("FLUSHALL");
    }
}

#[test]
fn the_wait_that_one_instance_tells_is_kept_by_another_whose_clock_differs() {
    let server = Server::start();
    for policy in each_algorithm(2, Duration::from_millis(200)) {
        let [ahead, behind] = [true, false].map(|ahead| by_the_clock(&server, policy.clone(), ahead));
        let mut promised = None;
        eventually("the quota is used up", || {
            ahead.check("c");
            promised = ahead.check("c").retry_after().map(|wait| Instant::now() + wait);
            promised.is_some()
        });
        loop {
            let asked_at = Instant::now();
            match behind.check("c").outcome() {
                Outcome::Refused { .. } => {
                    assert!(promised.is_some_and(|end| asked_at < end), "{policy:?}: the wait was over");
                }
                outcome => {
                    assert_eq!(outcome, Outcome::Allowed, "{policy:?}");
                    break;
                }
            }
        }
        server.ask::<()>("FLUSHALL");
    }
}

#[test]
fn instances_that_are_killed_after_one_request_use_the_same_keys_and_leave_none_behind() {
    let server = Server::start();
    let mut names = BTreeSet::new();
    for _ in 0..50 {
        let service = Service::start(&[
            ("REDIS_URL", server.url()),
            ("REDIS_TIMEOUT", "5s"),
            ("ON_STORE_ERROR", "closed"),
            ("POLICIES", "log=sliding-window-log:1000/2s;bucket=token-bucket:1000:500/1s"),
        ]);
        assert_eq!(service.get("/limited").status, 200);
        names.extend(server.keys());
        // Killed, without time to clear up.
        drop(service);
    }
    let expected = ["tollgate:{127.0.0.1}:bucket:tb-1000-1-2000", "tollgate:{127.0.0.1}:log:sl-1000-2000000"];
    assert_eq!(names.iter().collect::<Vec<_>>(), expected);
    eventually("no key is left when the whole quota is back", || server.keys().is_empty());
}

/// Three instances of the program that count by themselves while the store is away.
#[test]
fn in_an_outage_each_of_three_instances_lets_its_own_quota_in_and_after_it_the_store_what_was_left() {
    let limited = |service: &Service| service.get("/limited").status == 200;
    let let_in = |service: &Service| (0..15).filter(|_| limited(service)).count();
    for (strike, lift) in [("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"), ("STOP", "CONT")] {
        let server = Server::start();
        let services = [(); 3].map(|()| {
            Service::start(&[
                ("REDIS_URL", server.url()),
                ("REDIS_TIMEOUT", "500ms"),
                ("ALGORITHM", "sliding-window-log"),
                ("LIMIT", "10"),
                ("WINDOW", "1h"),
            ])
        });
        let all_are = |state: &str| {
            services.iter().all(|service| {
                let health = service.get("/healthz");
                assert_eq!(health.status, 200);
                health.body.contains(&format!("\"store\":\"{state}\""))
            })
        };
        let freezes = strike == "STOP";
        let act = |action: &str| if freezes { server.signal(action) } else { server.ask(action) };

        for turn in 0..4 {
            assert!(limited(&services[turn % 3]));
        }
        act(strike);
        for service in &services {
            assert_eq!(let_in(service), 10, "{strike}");
        }
        assert!(all_are("down: local"), "{strike}");

        act(lift);
        eventually("the store is up", || all_are("up"));
        let after: usize = services.iter().map(let_in).sum();
        // A frozen server decides late what it was asked before, at most once for each instance.
        let least = if freezes { 3 } else { 6 };
        assert!((least..=6).contains(&after), "{strike}: {after} were let in after it");
    }
}
