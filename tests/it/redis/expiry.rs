//! No key lives for ever: a client without an expiry would be blocked for good, and memory would only grow.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tollgate::{OnStoreError, Outcome, Policies, Policy, RateLimiter, StoreState};

use super::{YEAR, alone_and_together, build, settings};
use crate::support::redis::{Server, eventually};

fn limiters(server: &Server, sets: Vec<Policies>, prefix: &str) -> Vec<RateLimiter> {
    let redis = || settings(server).key_prefix(prefix).expect("a prefix").on_error(OnStoreError::Closed);
    sets.into_iter().map(|policies| build(RateLimiter::builder(policies), redis())).collect()
}

/// Milliseconds that a key has left. `None` when it is gone; one without an expiry fails the test.
fn left(server: &Server, key: &str) -> Option<u64> {
    match server.ask::<i64>(&format!("PTTL {key}")) {
        -2 => None,
        left => Some(u64::try_from(left).unwrap_or_else(|_| panic!("{key} lives for ever"))),
    }
}

#[test]
fn whatever_happened_every_key_has_an_expiry_and_goes_by_it_and_no_other_key_is_touched() {
    const QUOTA: u64 = 3;
    let span = Duration::from_secs(1);
    let server = Server::start();
    let others: [&str; 3] = ["SET tollgat 1", "SET tollgate 1", "RPUSH tollgate:list 1"];
    others.iter().for_each(|command| server.ask(command));
    for limiter in limiters(&server, alone_and_together(QUOTA, YEAR), "tollgate2") {
        assert!(limiter.check("c").is_allowed());
    }
    let foreign = server.keys();
    let look = |key: &String| -> (Vec<u8>, i64) {
        (server.ask(&format!("DUMP {key}")), server.ask(&format!("PEXPIRETIME {key}")))
    };
    let before: Vec<_> = foreign.iter().map(look).collect();
    assert_eq!(foreign.len(), 3 + 8);

    let limiters = limiters(&server, alone_and_together(QUOTA, span), "tollgate");
    let own = || server.keys().into_iter().filter(|key| !foreign.contains(key)).collect::<Vec<_>>();
    let mut seen = BTreeSet::new();
    let mut use_everything = || {
        for limiter in &limiters {
            limiter.peek("looks only");
            limiter.check_n("asks too much", QUOTA + 1);
            limiter.check("comes once");
            for cost in [2, 2, 1, 1] {
                limiter.check_n("is refused", cost);
            }
            limiter.check_n("is reset", QUOTA);
            limiter.reset("is reset");
            limiter.check("is reset");
            for key in own() {
                // The counter's quota is whole after two windows.
                let left = left(&server, &key);
                assert!(left.is_none_or(|left| left <= 2_000), "{key} has {left:?} ms left");
                seen.extend(key.rsplit(':').next().and_then(|settings| settings.get(..2)).map(str::to_owned));
            }
        }
    };
    use_everything();
    server.ask::<()>("CONFIG SET maxmemory 1");
    for limiter in &limiters {
        eventually("the store is full", || !limiter.check("c").is_allowed());
    }
    server.ask::<()>("CONFIG SET maxmemory 0");
    for limiter in &limiters {
        eventually("it has room", || limiter.store_state() == StoreState::Up);
    }
    use_everything();
    assert!(["tb", "fw", "sl", "sc"].iter().all(|code| seen.contains(*code)), "keys of {seen:?} alone were seen");

    eventually("every key is gone", || own().is_empty());
    assert_eq!(foreign.iter().map(look).collect::<Vec<_>>(), before);
}

#[test]
fn keys_that_lost_their_expiry_block_nobody_and_get_it_back() {
    let server = Server::start();
    for limiter in limiters(&server, alone_and_together(3, Duration::from_millis(300)), "tollgate") {
        let policies = limiter.policies();
        eventually("all keys are made persistent before their time is over", || {
            limiter.check_n("c", 3);
            let keys = server.keys();
            let persistent = |key: &String| server.ask::<bool>(&format!("PERSIST {key}"));
            let made = keys.iter().filter(|key| persistent(key)).count();
            made == policies.len() && keys.iter().all(|key| server.ask::<i64>(&format!("PTTL {key}")) == -1)
        });
        let mut promised = None;
        loop {
            let asked_at = Instant::now();
            let Outcome::Refused { retry_after } = limiter.check("c").outcome() else { break };
            assert!(promised.is_none_or(|end| asked_at < end), "{policies:?}: refused when the wait was over");
            promised = promised.or(Some(Instant::now() + retry_after));
        }
        assert_eq!(limiter.store_calls().failed, 0);
        for key in server.keys() {
            left(&server, &key);
        }
        server.ask::<()>("FLUSHALL");
    }
}

#[test]
fn a_client_that_hammers_through_short_windows_is_let_in_in_each_and_no_key_is_ever_without_an_expiry() {
    let server = Server::start();
    let policy = Policy::fixed_window(5, Duration::from_millis(50)).expect("within the bounds");
    let limiter = build(RateLimiter::builder(policy), settings(&server));
    let (begun, mut refused_since) = (Instant::now(), None);
    while begun.elapsed() < Duration::from_secs(1) {
        let asked_at = Instant::now();
        let decision = limiter.check("c");
        assert!(decision.verdicts()[0].remaining() <= 5);
        if decision.is_allowed() {
            refused_since = None;
        } else {
            let since = *refused_since.get_or_insert_with(Instant::now);
            assert!(asked_at < since + Duration::from_millis(100), "refused for two windows");
        }
        for key in server.keys() {
            left(&server, &key);
        }
    }
}
