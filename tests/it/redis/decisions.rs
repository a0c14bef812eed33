//! What the scripts decide, field by field, and what they leave in the store.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tollgate::{Decision, ManualClock, Outcome, Policies, Policy, RateLimiter, StoreState, Timestamp};

use super::{YEAR, build, each_algorithm, settings, sharing};
use crate::laws::{Subject, policies, steps};
use crate::support::redis::Server;
use crate::vectors;

#[test]
fn every_row_of_every_history_is_decided_by_the_scripts_as_the_model_did() {
    let server = Server::start();
    vectors::follow_all(|builder, clock| {
        server.ask::<()>("FLUSHALL");
        build(builder, settings(&server).clock(clock.clone()))
    });
    assert!(server.calls("evalsha") > 4_000, "the scripts were not asked");
}

#[test]
fn random_policies_and_histories_meet_the_same_decisions_in_the_store_as_in_memory() {
    let server = Server::start();
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() });
    let compared = runner.run(&(policies(), steps(true)), |(policies, steps)| {
        server.ask::<()>("FLUSHALL");
        let memory = Subject::new(policies.clone());
        let shared = build(RateLimiter::builder(policies), settings(&server).clock(memory.clock.clone()));
        for step in steps {
            let cost = memory.follow(step);
            prop_assert_eq!(shared.check_n("c", cost), memory.limiter.check_n("c", cost));
            for key in server.keys() {
                prop_assert!(server.ask::<i64>(&format!("PTTL {key}")) > 0, "{} lives for ever", key);
            }
        }
        prop_assert_eq!(shared.store_calls().failed, 0);
        Ok(())
    });
    compared.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn quotas_whose_products_pass_a_double_are_counted_exactly() {
    let server = Server::start();
    let day = Duration::from_secs(86_400);
    let large = [
        Policy::fixed_window(1 << 52, day),
        Policy::sliding_window_counter(1 << 52, day),
        Policy::sliding_window_counter(1_000_003, day),
        Policy::sliding_window_counter(999_999_999_989, tollgate::MAX_SPAN),
        Policy::token_bucket(1_000_000, 1_000_000, day),
        Policy::token_bucket(5_845, 6_007, tollgate::MAX_SPAN),
        Policy::token_bucket((1 << 52) - 1, (1 << 52) - 3, Duration::from_micros(4_001)),
    ];
    for policy in large.map(|policy| policy.expect("within the bounds")) {
        server.ask::<()>("FLUSHALL");
        let clock = ManualClock::new(Timestamp::from_micros(1_764_540_000_123_456));
        let memory = RateLimiter::builder(policy.clone()).clock(clock.clone()).build();
        let shared = build(RateLimiter::builder(policy.clone()), settings(&server).clock(clock.clone()));
        let span = policy.span();
        for step in 1..60_u32 {
            let cost = [1, policy.limit() / 3, policy.limit() / 7 + 1, policy.limit(), 0][step as usize % 5];
            assert_eq!(shared.check_n("c", cost), memory.check_n("c", cost), "{policy:?}, step {step}, cost {cost}");
            // Two spans in all: with the longest, the end of what is exact comes in sight, in 2055.
            clock.advance(span / 37 * (step % 3) + Duration::from_micros(1));
        }
        assert_eq!(shared.store_calls().failed, 0);
    }
}

#[test]
fn a_quota_that_a_script_cannot_count_exactly_is_refused_with_the_bound() {
    let server = Server::start();
    let policy = Policy::fixed_window((1 << 52) + 1, YEAR).and_then(|policy| policy.named("huge")).expect("in memory");
    let refused = RateLimiter::builder(policy).shared(settings(&server)).err().expect("refused").to_string();
    assert!(refused.contains("4503599627370496") && refused.contains("`huge`"), "{refused}");
}

#[test]
fn every_key_expires_when_its_whole_quota_is_back_rounded_up_to_a_millisecond() {
    let server = Server::start();
    for policy in [
        Policy::token_bucket(5, 3, Duration::from_secs(1)),
        Policy::token_bucket(7, 11, Duration::from_secs(1)),
        Policy::token_bucket(10, 1, Duration::from_secs(1)),
        Policy::fixed_window(7, Duration::from_secs(10)),
        Policy::sliding_window_log(7, Duration::from_millis(1_500)),
        Policy::sliding_window_counter(7, Duration::from_millis(333)),
    ]
    .map(|policy| policy.expect("within the bounds"))
    {
        server.ask::<()>("FLUSHALL");
        let limiter = sharing(&server, &policy);
        let millis = || {
            let (seconds, micros): (i64, i64) = server.ask("TIME");
            seconds * 1_000 + micros / 1_000
        };
        let mut told = 0;
        for _ in 0..policy.limit() {
            let before = millis();
            let decision = limiter.check("c");
            let after = millis();
            let exact = i64::try_from(decision.verdicts()[0].reset_after().as_micros().div_ceil(1_000)).expect("short");
            let expires: i64 = server.ask(&format!("PEXPIRETIME {}", key(&server)));
            // A server that is held up may have let the short ones expire already.
            if decision.is_allowed() && expires > 0 {
                assert!((before + exact..=after + exact).contains(&expires), "{policy:?}: {expires} is not {exact} on");
                told += 1;
            }
        }
        assert!(told > 0, "{policy:?}: every key had expired");
    }
}

fn key(server: &Server) -> String {
    server.keys().pop().unwrap_or_else(|| "none".into())
}

#[test]
fn two_limiters_and_eight_threads_let_exactly_the_quota_in() {
    let server = Server::start();
    let mut all: Vec<Policies> = each_algorithm(100, YEAR).map(Policies::from).into();
    // Of several the tightest counts: the others have room for more.
    let looser = each_algorithm(130, YEAR).into_iter().zip(["a", "b", "c", "d"]);
    let mut several: Vec<Policy> = looser.map(|(policy, name)| policy.named(name).expect("a name")).collect();
    several.extend(each_algorithm(100, YEAR).into_iter().take(1));
    all.push(Policies::new(several).expect("names that differ"));
    for (number, policies) in all.into_iter().enumerate() {
        let limiter = || build(RateLimiter::builder(policies.clone()), settings(&server));
        let limiters = [limiter(), limiter()];
        for round in 0..100 {
            let client = format!("{number}, round {round}");
            let together = Barrier::new(8);
            let let_in: usize = thread::scope(|scope| {
                let threads: Vec<_> = (0..8)
                    .map(|thread| {
                        let (limiter, client, together) = (&limiters[thread % 2], &*client, &together);
                        scope.spawn(move || {
                            together.wait();
                            (0..20).filter(|_| limiter.check(client).is_allowed()).count()
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
            });
            assert_eq!(let_in, 100, "{policies:?}");
        }
        for limiter in limiters {
            assert_eq!((limiter.store_state(), limiter.store_calls().failed), (StoreState::Up, 0));
        }
    }
}

#[test]
fn a_refusal_and_a_look_write_nothing() {
    let server = Server::start();
    let limits = each_algorithm(1, YEAR);
    let names = ["a", "b", "c", "d"];
    let named = limits.into_iter().zip(names).map(|(policy, name)| policy.named(name).expect("a name"));
    let limiter = build(RateLimiter::builder(Policies::new(named.collect()).expect("four")), settings(&server));
    let dump = || -> Vec<Vec<u8>> { server.keys().iter().map(|key| server.ask(&format!("DUMP {key}"))).collect() };
    assert!(limiter.peek("c").is_allowed());
    assert_eq!(server.keys(), Vec::<String>::new());
    assert!(limiter.check("c").is_allowed());
    let spent = dump();
    assert_eq!(spent.len(), 4);
    assert!(!limiter.check("c").is_allowed());
    assert!(limiter.check_n("c", 2).outcome() == Outcome::Never);
    limiter.peek("c");
    assert_eq!(dump(), spent);
}

/// What stands under our key may be anything: it is no state, and the next decision is exact.
#[test]
fn a_foreign_value_under_a_key_is_no_state_and_no_error() {
    let server = Server::start();
    for policy in each_algorithm(3, YEAR) {
        let limiter = sharing(&server, &policy);
        let client = "c";
        limiter.check(client);
        let key = server.keys().pop().expect("a key");
        for foreign in [
            format!("SET {key} text"),
            format!("SET {key} 1e300"),
            format!("SET {key} -1"),
            format!("SET {key} 99999999999999999999"),
            format!("RPUSH {key} text"),
            format!("RPUSH {key} 5 4 3 2 1 text 9007199254740993"),
            format!("HSET {key} field 1"),
            format!("ZADD {key} 1 member"),
        ] {
            server.ask::<()>(&format!("DEL {key}"));
            server.ask::<i64>(&format!("EXISTS {key}"));
            server.ask::<redis::Value>(&foreign);
            let remaining: Vec<_> = (0..4).map(|_| left(&limiter.check(client))).collect();
            assert_eq!(remaining, [Some(2), Some(1), Some(0), None], "{policy:?}: {foreign}");
            assert!(server.ask::<i64>(&format!("PTTL {key}")) > 0, "{foreign}");
            limiter.reset(client);
        }
        assert_eq!(limiter.store_calls().failed, 0);
        server.ask::<()>("FLUSHALL");
    }
}

fn left(decision: &Decision) -> Option<u64> {
    decision.is_allowed().then(|| decision.verdicts()[0].remaining())
}

#[test]
fn a_log_of_many_entries_in_one_microsecond_keeps_them_all() {
    let server = Server::start();
    let policy = Policy::sliding_window_log(5_000, Duration::from_secs(3_600)).expect("within the bounds");
    let limiter = sharing(&server, &policy);
    assert_eq!(left(&limiter.check_n("c", 2_500)), Some(2_500));
    for _ in 0..499 {
        limiter.check("c");
    }
    assert_eq!(left(&limiter.check("c")), Some(2_000));
    let entries: Vec<String> = server.ask(&format!("LRANGE {} 0 -1", server.keys()[0]));
    assert_eq!(entries.len(), 3_000);
    assert!(entries.iter().all(|entry| entry.len() == 16 && entry.bytes().all(|byte| byte.is_ascii_digit())));
}

#[test]
fn a_client_at_a_limit_of_a_hundred_thousand_holds_the_server_up_for_less_than_ten_milliseconds() {
    let server = Server::with(&["--slowlog-log-slower-than", "10000"]);
    let policy = Policy::sliding_window_log(100_000, Duration::from_secs(3_600)).expect("within the bounds");
    let clock = ManualClock::new(Timestamp::from_micros(1_764_540_000_000_000));
    let limiter = build(
        RateLimiter::builder(policy),
        settings(&server).clock(clock.clone()).timeout(Duration::from_secs(5)).expect("a timeout"),
    );
    for _ in 0..100 {
        clock.advance(Duration::from_millis(1));
        assert!(limiter.check_n("c", 1_000).is_allowed());
    }
    server.ask::<()>("SLOWLOG RESET");
    for _ in 0..200 {
        assert!(!limiter.check("c").is_allowed());
    }
    clock.advance(Duration::from_millis(3_600_000 - 50));
    for _ in 0..200 {
        assert!(limiter.check("c").is_allowed());
    }
    assert_eq!(server.ask::<u64>("SLOWLOG LEN"), 0);
}

#[test]
fn another_policy_under_the_same_name_and_prefix_starts_afresh_and_reads_nothing_of_the_old_one() {
    let server = Server::start();
    for old in each_algorithm(5, YEAR) {
        server.ask::<()>("FLUSHALL");
        assert!(sharing(&server, &old).check_n("c", 5).is_allowed());
        for new in each_algorithm(10, YEAR) {
            assert_eq!(left(&sharing(&server, &new).check("c")), Some(9), "{old:?}, then {new:?}");
            server.keys().iter().filter(|key| key.contains("10-")).for_each(|key| server.ask(&format!("DEL {key}")));
        }
    }
    let mine = |prefix| {
        let policy = Policy::fixed_window(5, YEAR).expect("within the bounds");
        build(RateLimiter::builder(policy), settings(&server).key_prefix(prefix).expect("a prefix"))
    };
    assert_eq!((left(&mine("a").check("c")), left(&mine("b").check("c"))), (Some(4), Some(4)));
}

#[test]
fn the_names_of_keys_are_the_same_in_every_instance_and_hold_the_client_alone_in_braces() {
    let server = Server::start();
    let policy = Policy::token_bucket(10, 1, Duration::from_secs(1)).expect("within the bounds");
    let address: std::net::IpAddr = "203.0.113.7".parse().expect("an address");
    let v6: std::net::IpAddr = "2001:db8::1".parse().expect("an address");
    for remaining in [9, 8] {
        let limiter = sharing(&server, &policy);
        assert_eq!(left(&limiter.check(address)), Some(remaining));
        limiter.check(v6);
        limiter.check("ada");
        limiter.check(tollgate::ClientKey::api_key(b"ada"));
    }
    let keys = server.keys();
    let digest = |key: &str, kind| {
        let digest = key.strip_prefix(kind).and_then(|rest| rest.strip_suffix("}:default:tb-10-1-1000000"));
        digest.is_some_and(|digest| digest.len() == 32 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    assert_eq!(keys.len(), 4, "{keys:?}");
    assert_eq!(keys[0], "tollgate:{2001:db8::1}:default:tb-10-1-1000000");
    assert_eq!(keys[1], "tollgate:{203.0.113.7}:default:tb-10-1-1000000");
    assert!(digest(&keys[2], "tollgate:{key-") && digest(&keys[3], "tollgate:{name-"), "{keys:?}");
}
