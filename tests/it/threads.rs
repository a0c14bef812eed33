//! Many threads on one limiter: nothing is counted twice, lost, or let in beside the limit.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use tollgate::{ManualClock, Policies, Policy, RateLimiter, Timestamp};

const HOUR: Duration = Duration::from_secs(3_600);

/// Each algorithm with this quota for an hour, and all of them at once.
fn all(quota: u64) -> Vec<Policies> {
    let policies = || {
        [
            Policy::token_bucket(quota, 1, HOUR),
            Policy::fixed_window(quota, HOUR),
            Policy::sliding_window_log(quota, HOUR),
            Policy::sliding_window_counter(quota, HOUR),
        ]
        .map(|policy| policy.expect("a valid policy"))
    };
    let named =
        policies().into_iter().zip(["a", "b", "c", "d"]).map(|(policy, name)| policy.named(name).expect("a name"));
    let mut all: Vec<Policies> = policies().into_iter().map(Policies::from).collect();
    all.push(Policies::new(named.collect()).expect("names that differ"));
    all
}

/// How many requests are let in when `threads` make `each` of them at once.
fn let_in(limiter: &RateLimiter, client: &str, threads: usize, each: usize) -> usize {
    let (barrier, count) = (Barrier::new(threads), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                barrier.wait();
                let allowed = (0..each).filter(|_| limiter.check(client).is_allowed()).count();
                count.fetch_add(allowed, Ordering::Relaxed);
            });
        }
    });
    count.into_inner()
}

fn still(policies: Policies) -> RateLimiter {
    RateLimiter::builder(policies).clock(ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000))).build()
}

#[test]
fn eight_threads_on_one_client_let_in_exactly_the_limit() {
    for policies in all(1_000) {
        assert_eq!(let_in(&still(policies), "c", 8, 500), 1_000);
    }
}

#[test]
fn a_thousand_threads_at_once_let_in_exactly_four() {
    for policies in all(4) {
        assert_eq!(let_in(&still(policies), "c", 1_000, 1), 4);
    }
}

#[test]
fn a_fresh_client_that_many_threads_bring_at_once_is_one_client() {
    for policies in all(5) {
        let limiter = still(policies);
        for key in 0..50 {
            assert_eq!(let_in(&limiter, &format!("client {key}"), 64, 1), 5);
        }
        assert_eq!(limiter.clients().tracked, 50);
    }
}

#[test]
fn on_the_real_clock_threads_that_arrive_out_of_order_let_in_exactly_the_limit() {
    let limiter = RateLimiter::new(Policy::token_bucket(1_000, 1, HOUR).expect("a valid policy"));
    assert_eq!(let_in(&limiter, "c", 16, 6_250), 1_000);
    let limiter = RateLimiter::new(Policy::sliding_window_log(4, 24 * HOUR).expect("a valid policy"));
    assert_eq!(let_in(&limiter, "c", 1_000, 1), 4);
}

#[test]
fn sweeps_without_a_pause_take_nobody_away_who_is_being_counted() {
    let sweeping = |policy: Result<Policy, _>| {
        let limiter = Arc::new(RateLimiter::new(policy.expect("a valid policy")));
        let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
        let begun = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    limiter.sweep();
                }
            });
            let clients: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        while begun.elapsed() < Duration::from_millis(500) {
                            count.fetch_add(usize::from(limiter.check("c").is_allowed()), Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            for client in clients {
                client.join().expect("no panic");
            }
            stop.store(true, Ordering::Relaxed);
        });
        (count.into_inner(), begun.elapsed())
    };
    assert_eq!(sweeping(Policy::token_bucket(5, 1, HOUR)).0, 5);
    let (count, time) = sweeping(Policy::token_bucket(5, 1_000, Duration::from_secs(1)));
    assert!(count as f64 <= 5.0 + 1_000.0 * time.as_secs_f64(), "{count} in {time:?}");
}

#[test]
fn a_clock_that_panics_costs_one_request_and_poisons_nothing() {
    #[derive(Clone)]
    struct Fragile(Arc<AtomicBool>);
    impl tollgate::Clock for Fragile {
        fn monotonic(&self) -> Timestamp {
            assert!(!self.0.load(Ordering::Relaxed), "the clock broke");
            Timestamp::from_micros(1)
        }

        fn wall(&self) -> Timestamp {
            self.monotonic()
        }
    }
    let clock = Fragile(Arc::new(AtomicBool::new(false)));
    let policy = Policy::token_bucket(2, 1, HOUR).expect("a valid policy");
    let limiter = RateLimiter::builder(policy).clock(clock.clone()).build();
    assert!(limiter.check("c").is_allowed());
    clock.0.store(true, Ordering::Relaxed);
    let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| limiter.check("c")));
    assert!(broken.is_err());
    clock.0.store(false, Ordering::Relaxed);
    assert!(limiter.check("c").is_allowed());
    assert!(!limiter.check("c").is_allowed());
}
