//! Refusals that are repeated without asking the store.

use std::time::{Duration, Instant};

use tollgate::{OnStoreError, Outcome, Policy, RateLimiter, StoreState};

use super::{build, settings, sharing};
use crate::support::redis::{Server, eventually};

fn bucket() -> Policy {
    Policy::token_bucket(2, 2, Duration::from_millis(500)).expect("within the bounds")
}

#[test]
fn a_client_that_hammers_costs_one_call_for_each_wait_and_is_let_in_as_soon_as_it_was_told() {
    let server = Server::start();
    let limiter = sharing(&server, &bucket());
    assert!(limiter.check_n("c", 2).is_allowed());
    let begun = Instant::now();
    let (mut asked, mut promised) = (0, None);
    loop {
        asked += 1;
        let (before, answered) = (Instant::now(), limiter.store_calls().answered);
        match limiter.check("c").outcome() {
            Outcome::Refused { retry_after } => {
                assert!(retry_after > Duration::ZERO);
                if limiter.store_calls().answered > answered {
                    promised = Some(Instant::now() + retry_after);
                }
                // However often it is repeated, the promise does not move.
                assert!(promised.is_some_and(|end| before + retry_after <= end));
            }
            outcome => {
                assert_eq!(outcome, Outcome::Allowed);
                break;
            }
        }
    }
    assert!(begun.elapsed() > Duration::from_millis(240), "a quarter of a second for a token: {:?}", begun.elapsed());
    // The spend, the refusal, the one let in; and between them those microseconds in which only the store can tell.
    assert!(asked > 100 && limiter.store_calls().answered < 10, "{asked} {:?}", limiter.store_calls());
    assert_eq!(server.calls("evalsha"), limiter.store_calls().answered);
}

#[test]
fn another_cost_and_another_client_are_asked_for() {
    let server = Server::start();
    let limiter = sharing(&server, &Policy::fixed_window(5, super::YEAR).expect("within the bounds"));
    assert!(limiter.check_n("c", 3).is_allowed());
    assert!(!limiter.check_n("c", 3).is_allowed());
    assert!(!limiter.check_n("c", 3).is_allowed());
    assert_eq!(limiter.store_calls().repeated, 1);
    assert!(limiter.check_n("c", 2).is_allowed());
    assert!(limiter.check_n("d", 3).is_allowed());
    assert_eq!(limiter.check_n("c", 6).outcome(), Outcome::Never);
}

#[test]
fn a_reset_is_seen_at_once_here_and_in_the_store() {
    let server = Server::start();
    let limiter = sharing(&server, &Policy::sliding_window_log(1, super::YEAR).expect("within the bounds"));
    for _ in 0..3 {
        assert!(limiter.check("c").is_allowed());
        assert!(!limiter.check("c").is_allowed());
        limiter.reset("c");
        assert!(server.keys().is_empty());
    }
}

#[test]
fn a_store_that_lost_everything_is_asked_again() {
    let mut server = Server::start();
    let policy = Policy::fixed_window(1, super::YEAR).expect("within the bounds");
    let limiter = build(RateLimiter::builder(policy), settings(&server).on_error(OnStoreError::Closed));
    assert!(limiter.check("c").is_allowed());
    assert!(!limiter.check("c").is_allowed());
    server.kill();
    server.restart();
    eventually("the restart is noticed", || limiter.check("c").is_allowed());
    assert_eq!(limiter.store_state(), StoreState::Up);
}
