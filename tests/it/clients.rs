//! Who is kept: names of any kind, a bound that holds, state that goes when its quota is whole.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tollgate::{ClientKey, Clients, ManualClock, Policies, Policy, RateLimiter, Timestamp};

const SECOND: Duration = Duration::from_secs(1);

fn policies() -> [Policy; 4] {
    [
        Policy::token_bucket(2, 1, SECOND),
        Policy::fixed_window(2, SECOND),
        Policy::sliding_window_log(2, SECOND),
        Policy::sliding_window_counter(2, SECOND),
    ]
    .map(|policy| policy.expect("a valid policy"))
}

fn with_clock(policies: impl Into<Policies>, max_clients: usize) -> (RateLimiter, ManualClock) {
    let clock = ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000));
    (RateLimiter::builder(policies).clock(clock.clone()).max_clients(max_clients).build(), clock)
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(number)
}

#[test]
fn names_of_any_bytes_are_clients_of_their_own_and_no_name_is_an_address() {
    let long = "ü".repeat(127) + "a";
    let longer = "ü".repeat(127) + "b";
    let keys: Vec<ClientKey> = vec![
        "".into(),
        "\0".into(),
        "a\nb".into(),
        "{a}".into(),
        "a:b".into(),
        long.as_str().into(),
        longer.as_str().into(),
        "203.0.113.7".into(),
        Ipv4Addr::new(203, 0, 113, 7).into(),
        ClientKey::api_key(b"203.0.113.7"),
        b"\xff\xfe".as_slice().into(),
    ];
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    for policy in policies() {
        let (limiter, _) = with_clock(policy, 1_000);
        for _ in 0..2 {
            assert!(keys.iter().all(|key| limiter.check(*key).is_allowed()));
        }
        assert!(!keys.iter().any(|key| limiter.check(*key).is_allowed()));
        assert_eq!(limiter.clients().tracked, keys.len());
    }
}

#[test]
fn an_ipv4_address_in_ipv6_clothing_is_that_ipv4_address() {
    let v4: IpAddr = "1.2.3.4".parse().expect("an address");
    for text in ["::ffff:1.2.3.4", "::FFFF:102:304"] {
        assert_eq!(ClientKey::from(text.parse::<IpAddr>().expect("an address")), ClientKey::from(v4));
    }
    for text in ["2001:db8::1.2.3.4", "64:ff9b::1.2.3.4", "::1.2.3.4"] {
        assert_ne!(ClientKey::from(text.parse::<IpAddr>().expect("an address")), ClientKey::from(v4));
    }
}

#[test]
fn a_network_prefix_groups_ipv6_by_bits_and_never_ipv4() {
    let key = |text: &str, prefix| ClientKey::network(text.parse().expect("an address"), prefix);
    assert_eq!(key("2001:db8:0:1::ff", 64), key("2001:db8:0:1::1:0", 64));
    assert_ne!(key("2001:db8:0:1::ff", 64), key("2001:db8:0:2::1", 64));
    assert_ne!(key("2001:db8:0:1::ff", 128), key("2001:db8:0:1::1:0", 128));
    assert_eq!(key("2001:db8:0:1::ff", 60), key("2001:db8:0:f::1", 60));
    assert_ne!(key("203.0.113.7", 1), key("203.0.113.8", 1));
}

#[test]
fn a_client_is_gone_when_its_quota_is_whole_and_not_before() {
    for policy in policies() {
        let (limiter, clock) = with_clock(policy, 10_000);
        for client in 0..1_000 {
            limiter.check(address(client));
        }
        let back = limiter.peek(address(7)).verdicts()[0].reset_after();
        clock.advance(back - Duration::from_micros(1));
        limiter.sweep();
        assert_eq!(limiter.clients().tracked, 1_000);
        clock.advance(Duration::from_micros(1));
        limiter.sweep();
        assert_eq!(limiter.clients(), Clients { tracked: 0, reaped: 1_000, evicted: 0 });
    }
}

#[test]
fn a_wall_clock_set_back_by_a_day_does_not_keep_old_state() {
    for policy in policies() {
        let (limiter, clock) = with_clock(policy, 10_000);
        limiter.check("c");
        clock.set(Timestamp::from_micros(1_800_000_000_000_000 - 86_400_000_000));
        limiter.sweep();
        assert_eq!(limiter.clients().tracked, 0);
    }
}

#[test]
fn looks_and_refusals_of_strangers_keep_nobody() {
    for policy in policies() {
        let (limiter, _) = with_clock(policy, 10);
        limiter.peek("a");
        limiter.check_n("b", 3);
        assert_eq!(limiter.clients().tracked, 0);
    }
}

#[test]
fn a_reset_client_is_new() {
    for policy in policies() {
        let (limiter, _) = with_clock(policy, 10);
        while limiter.check("c").is_allowed() {}
        limiter.reset("stranger");
        limiter.reset("c");
        assert_eq!(limiter.clients().tracked, 0);
        assert_eq!(limiter.check("c").verdicts()[0].remaining(), 1);
    }
}

#[test]
fn never_more_clients_than_the_bound_are_kept() {
    for policy in policies() {
        for max_clients in [1, 2, 100, 3_000] {
            let (limiter, _) = with_clock(policy.clone(), max_clients);
            for client in 0..10_000 {
                assert!(limiter.check(address(client)).is_allowed());
                assert!(limiter.clients().tracked <= max_clients);
            }
            let expected = Clients { tracked: max_clients, reaped: 0, evicted: 10_000 - max_clients };
            assert_eq!(limiter.clients(), expected);
        }
    }
}

#[test]
fn the_bound_holds_while_threads_race_for_the_last_place() {
    let (limiter, _) = with_clock(policies()[0].clone(), 100);
    thread::scope(|scope| {
        for thread in 0..8 {
            let limiter = &limiter;
            scope.spawn(move || {
                for client in 0..5_000 {
                    limiter.check(address(thread * 5_000 + client));
                    assert!(limiter.clients().tracked <= 100);
                }
            });
        }
    });
    assert_eq!(limiter.clients(), Clients { tracked: 100, reaped: 0, evicted: 39_900 });
}

#[test]
fn a_flood_of_strangers_frees_nobody_who_has_spent_more_than_they() {
    let long = SECOND * 600;
    let named = |policy: Result<Policy, _>, name| policy.and_then(|policy: Policy| policy.named(name)).expect("valid");
    let both =
        vec![named(Policy::fixed_window(3, long), "burst"), named(Policy::token_bucket(1_000, 1, SECOND), "daily")];
    let mut limits: Vec<Policies> = [
        Policy::token_bucket(3, 1, SECOND * 60),
        Policy::fixed_window(3, long),
        Policy::sliding_window_log(3, long),
        Policy::sliding_window_counter(3, long),
    ]
    .map(|policy| policy.expect("a valid policy").into())
    .into();
    limits.push(Policies::new(both).expect("two policies"));
    for policies in limits {
        // Small maps have few clients to choose from.
        for (max_clients, kind) in [(1_000, "names"), (1_000, "addresses"), (100, "addresses"), (20, "addresses")] {
            let case = format!("{max_clients} {kind} under {policies:?}");
            let (limiter, clock) = with_clock(policies.clone(), max_clients);
            let [refused, steady]: [ClientKey; 2] = match kind {
                "names" => ["refused", "steady"].map(ClientKey::from),
                _ => [1_000_000, 1_000_001].map(|number| address(number).into()),
            };
            while limiter.check(refused).is_allowed() {}
            limiter.check(steady);
            limiter.check(steady);
            let told = limiter.check(refused).retry_after().expect("a wait");
            for stranger in 0..50_000 {
                clock.advance(Duration::from_micros(10));
                assert!(limiter.check(address(stranger)).is_allowed(), "{case}");
            }
            assert_eq!(limiter.clients().evicted, 50_002 - max_clients, "{case}");
            assert!(limiter.check(steady).is_allowed() && !limiter.check(steady).is_allowed(), "{case}");
            let wait = limiter.check(refused).retry_after().expect("it is still refused");
            assert_eq!(wait, told - Duration::from_micros(500_000), "{case}");
        }
    }
}

#[test]
fn the_reaper_gives_memory_back_by_itself_and_stops_at_once() {
    let limiter = RateLimiter::new(Policy::token_bucket(1, 100, SECOND).expect("a valid policy"));
    limiter.check("c");
    let begun = Instant::now();
    while limiter.clients().tracked > 0 {
        assert!(begun.elapsed() < SECOND * 10, "the reaper has not come");
        thread::sleep(Duration::from_millis(5));
    }
    let begun = Instant::now();
    drop(limiter);
    assert!(begun.elapsed() < SECOND, "it took {:?} to stop", begun.elapsed());
}

#[test]
fn limiters_that_come_and_go_leave_no_thread_behind() {
    let threads = || std::fs::read_dir("/proc/self/task").map(Iterator::count);
    for _ in 0..1_000 {
        let limiter = RateLimiter::new(policies()[0].clone());
        assert!(limiter.check("c").is_allowed());
    }
    let limiter = Arc::new(RateLimiter::new(policies()[0].clone()));
    let held = Arc::clone(&limiter);
    drop(limiter);
    thread::spawn(move || drop(held)).join().expect("dropped in another thread");
    let panicked = thread::spawn(|| {
        let _limiter = RateLimiter::new(policies()[0].clone());
        panic!("on purpose, with a limiter alive");
    });
    assert!(panicked.join().is_err());
    // Other tests run beside this one, so only a leak of about all of them shows.
    if let Ok(threads) = threads() {
        assert!(threads < 500, "{threads} threads are left");
    }
}
