//! Headers on random histories, read as a client reads them: by a parser of structured fields, and by their word.
//!
//! A field makes promises about later. Each is kept to by playing the same history again on a new limiter, up to the answer
//! that made the promise, then moving the clock and asking.

use std::net::Ipv4Addr;
use std::time::Duration;

use proptest::prelude::*;
use sfv::{List, ListEntry, Parser};

use crate::clock::{Clock, ManualClock, Timestamp};
use crate::decision::{Decision, Verdict};
use crate::http::headers::Families;
use crate::http::identity::{Proxies, Trust};
use crate::http::routes::{DenyStatus, Service, Settings};
use crate::http::{Request, Response};
use crate::limiter::RateLimiter;
use crate::policy::{Policies, Policy};

const START: Timestamp = Timestamp::from_micros(1_764_540_000_000_000);

/// How far the clock moves before each request, in microseconds. The last request is the one whose answer is judged.
type History = Vec<u64>;

fn policy() -> impl Strategy<Value = Policy> {
    let span = prop_oneof![1_000..900_000u64, 1_000_000..20_000_000u64, (1..90u64).prop_map(|s| s * 1_000_000)];
    (0..4usize, 1..7u64, 1..4u64, span).prop_map(|(algorithm, quota, tokens, span)| {
        let span = Duration::from_micros(span);
        match algorithm {
            0 => Policy::token_bucket(quota, tokens, span),
            1 => Policy::fixed_window(quota, span),
            2 => Policy::sliding_window_log(quota, span),
            _ => Policy::sliding_window_counter(quota, span),
        }
        .expect("small numbers")
    })
}

fn policies() -> impl Strategy<Value = Vec<Policy>> {
    let named = |policies: Vec<Policy>| {
        let names = ["burst", "per-minute", "a_1"];
        policies.into_iter().zip(names).map(|(policy, name)| policy.named(name).expect("a name")).collect()
    };
    prop_oneof![3 => prop::collection::vec(policy(), 1), 1 => prop::collection::vec(policy(), 2..=3)].prop_map(named)
}

fn history() -> impl Strategy<Value = History> {
    prop::collection::vec(
        prop_oneof![3 => Just(0), 2 => 0..500_000u64, 2 => 0..5_000_000u64, 1 => 0..60_000_000u64],
        1..16,
    )
}

/// The service after a history, and the answers of it.
struct Played {
    service: Service,
    /// Sees the same requests as the one in the service, and can be looked at.
    twin: RateLimiter,
    clock: ManualClock,
    answers: Vec<Response>,
}

fn play(policies: &[Policy], history: &[u64]) -> Played {
    let clock = ManualClock::new(START);
    let policies = Policies::new(policies.to_vec()).expect("names that differ");
    let limiter = || RateLimiter::builder(policies.clone()).clock(clock.clone()).build();
    let (limiter, twin) = (limiter(), limiter());
    let trust = Trust {
        proxies: Proxies::default(),
        header: "X-Forwarded-For".parse().expect("a name"),
        api_key_header: None,
        ipv6_prefix: "64".parse().expect("a prefix"),
    };
    let headers = Families { ietf: true, legacy: true };
    let service =
        Service::new(limiter, Settings { trust, headers, deny: DenyStatus::TooManyRequests }, Default::default());
    let mut played = Played { service, twin, clock, answers: Vec::new() };
    for advance in history {
        played.clock.advance(Duration::from_micros(*advance));
        let answer = played.ask();
        played.answers.push(answer);
    }
    played
}

impl Played {
    fn ask(&self) -> Response {
        let peer = Some(Ipv4Addr::LOCALHOST.into());
        self.twin.check(Ipv4Addr::LOCALHOST);
        self.service.answer(&Request { method: "GET", target: "/limited", peer, headers: &[] })
    }

    /// What is there, without spending.
    fn look(&self) -> Decision {
        self.twin.peek(Ipv4Addr::LOCALHOST)
    }
}

/// The limiter so long after the last answer of the same history.
fn later(policies: &[Policy], history: &[u64], wait: Duration) -> Played {
    let played = play(policies, history);
    played.clock.advance(wait);
    played
}

fn field<'a>(answer: &'a Response, name: &str) -> Option<&'a str> {
    let mut values = answer.headers.iter().filter(|(field, _)| *field == name).map(|(_, value)| &**value);
    let value = values.next();
    assert!(values.next().is_none(), "{name} came twice");
    value
}

fn number(answer: &Response, name: &str) -> u64 {
    let text = field(answer, name).unwrap_or_else(|| panic!("no {name}"));
    assert!(
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0')),
        "{name}: {text}"
    );
    text.parse().expect("digits")
}

/// Name and two numbers of each member of a field. Anything else in it is a failure.
fn members(answer: &Response, name: &str, keys: [&str; 2]) -> Vec<(String, [u64; 2])> {
    let text = field(answer, name).unwrap_or_else(|| panic!("no {name}"));
    let list: List = Parser::new(text).parse().unwrap_or_else(|error| panic!("{name}: {text}: {error}"));
    let member = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("{name}: {text}: an inner list") };
        let policy = item.bare_item.as_string().unwrap_or_else(|| panic!("{name}: {text}: no string"));
        assert!(item.params.keys().map(|key| key.as_str()).eq(keys), "{name}: {text}: other parameters");
        let mut numbers = item.params.values().map(|value| i64::from(value.as_integer().expect("a whole number")));
        let numbers = [(); 2].map(|()| u64::try_from(numbers.next().expect("two")).expect("not negative"));
        (policy.as_str().to_owned(), numbers)
    };
    list.iter().map(member).collect()
}

/// `RateLimit`: name, remaining, seconds until more.
fn state(answer: &Response) -> Vec<(String, [u64; 2])> {
    members(answer, "RateLimit", ["r", "t"])
}

#[test]
fn of_two_that_refuse_the_older_fields_tell_the_longer_wait() {
    let log =
        |seconds, name| Policy::sliding_window_log(1, Duration::from_secs(seconds)).and_then(|log| log.named(name));
    let both = [log(10, "short"), log(60, "long")].map(|policy| policy.expect("a policy"));
    let [short, long] = both.clone();
    for policies in [both, [long, short]] {
        let refusal = play(&policies, &[0, 4_000_000]).answers.pop().expect("an answer");
        assert_eq!(number(&refusal, "X-RateLimit-Reset"), START.as_micros() / 1_000_000 + 60);
        assert_eq!(number(&refusal, "Retry-After"), 56);
    }
}

proptest! {
    #[test]
    fn the_fields_parse_and_tell_every_policy_in_order(policies in policies(), history in history()) {
        for answer in &play(&policies, &history).answers {
            let told = members(answer, "RateLimit-Policy", ["q", "w"]);
            let expected: Vec<_> = policies
                .iter()
                .map(|policy| {
                    let window = policy.span().as_micros().div_ceil(1_000_000);
                    (policy.name().to_owned(), [policy.limit(), u64::try_from(window).unwrap()])
                })
                .collect();
            prop_assert_eq!(&told, &expected);
            prop_assert!(told.iter().all(|(_, [_, window])| *window >= 1));
            let state = state(answer);
            prop_assert!(state.iter().map(|(name, _)| name).eq(told.iter().map(|(name, _)| name)));
            for ((_, [remaining, wait]), policy) in state.iter().zip(&policies) {
                prop_assert!(*remaining <= policy.limit());
                prop_assert_eq!(*wait == 0, *remaining == policy.limit());
            }
            // The older fields tell one policy: one that refused, else the one with the smallest share left.
            let (limit, left) = (number(answer, "X-RateLimit-Limit"), number(answer, "X-RateLimit-Remaining"));
            let mut told = state.iter().zip(&policies);
            if answer.status == 429 {
                let one = |((name, [remaining, _]), policy): (&(String, [u64; 2]), &Policy)| {
                    answer.body.contains(&format!("\"{name}\"")) && (policy.limit(), *remaining) == (limit, left)
                };
                prop_assert!(told.any(one), "{:?}", answer);
            } else {
                prop_assert!(told.clone().any(|((_, [remaining, _]), policy)| (policy.limit(), *remaining) == (limit, left)));
                prop_assert!(told.all(|((_, [remaining, _]), policy)| left * policy.limit() <= remaining * limit));
            }
            prop_assert_eq!(field(answer, "Retry-After").is_some(), answer.status == 429);
            prop_assert!(answer.headers.iter().all(|(_, value)| !value.contains("-1")));
        }
    }

    #[test]
    fn at_one_instant_what_remains_counts_down_to_a_refusal(policy in policy(), history in history()) {
        let played = play(std::slice::from_ref(&policy), &history);
        let mut left = played.look().verdicts()[0].remaining();
        for _ in 0..=policy.limit() {
            let answer = played.ask();
            prop_assert_eq!(answer.status, if left > 0 { 200 } else { 429 });
            left = left.saturating_sub(1);
            prop_assert_eq!(state(&answer)[0].1[0], left);
            prop_assert_eq!(number(&answer, "X-RateLimit-Remaining"), left);
            prop_assert_eq!(number(&answer, "X-RateLimit-Limit"), policy.limit());
        }
    }

    #[test]
    fn whoever_waits_for_retry_after_is_let_in(policies in policies(), history in history(), rush in 0..8usize) {
        let mut history = history;
        history.extend(vec![0; rush]);
        let played = play(&policies, &history);
        let Some(answer) = played.answers.last().filter(|answer| answer.status == 429) else { return Ok(()) };
        let seconds = number(answer, "Retry-After");
        prop_assert!(seconds >= 1);
        prop_assert_eq!(later(&policies, &history, Duration::from_secs(seconds)).ask().status, 200);
        let body: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
        let millis = body["retry_after_ms"].as_u64().expect("a number");
        prop_assert_eq!(later(&policies, &history, Duration::from_millis(millis)).ask().status, 200);
        prop_assert_eq!(seconds, millis.div_ceil(1_000));
        // Not a unit later than it must be.
        if millis >= 1 {
            prop_assert_eq!(later(&policies, &history, Duration::from_millis(millis - 1)).ask().status, 429);
        }
        // Never sooner than the policies that refused expect more quota.
        let violated: Vec<&str> = body["violated-policies"].as_array().expect("names").iter().filter_map(|name| name.as_str()).collect();
        prop_assert!(!violated.is_empty());
        for (name, [_, wait]) in state(answer) {
            prop_assert!(!violated.contains(&&*name) || seconds >= wait, "{} {}", seconds, wait);
        }
    }

    #[test]
    fn after_t_seconds_there_is_more_and_a_second_sooner_there_is_not(policies in policies(), history in history()) {
        let answer = play(&policies, &history).answers.pop().expect("an answer");
        for (index, (name, [remaining, wait])) in state(&answer).into_iter().enumerate() {
            let after = |seconds| {
                let played = later(&policies, &history, Duration::from_secs(seconds));
                played.look().verdicts()[index].remaining()
            };
            if wait == 0 {
                prop_assert_eq!(remaining, policies[index].limit(), "{}", name);
            } else {
                prop_assert!(after(wait) > remaining, "{} {}", name, wait);
                prop_assert_eq!(after(wait - 1), remaining, "{} {}", name, wait);
            }
        }
    }

    #[test]
    fn at_x_ratelimit_reset_the_whole_quota_is_there(policies in policies(), history in history()) {
        let played = play(&policies, &history);
        let answer = played.answers.last().expect("an answer");
        let (limit, remaining) = (number(answer, "X-RateLimit-Limit"), number(answer, "X-RateLimit-Remaining"));
        let reset = number(answer, "X-RateLimit-Reset") * 1_000_000;
        let now = played.clock.wall().as_micros();
        prop_assert!(reset >= now);
        let at_reset = |sooner: u64| {
            later(&policies, &history, Duration::from_micros((reset - now).saturating_sub(sooner)))
        };
        // Which policy it tells is known by its numbers.
        let told = |verdict: &&Verdict| (verdict.limit(), verdict.remaining()) == (limit, remaining);
        let now_told: Vec<usize> = played.look().verdicts().iter().enumerate().filter(|(_, v)| told(v)).map(|(i, _)| i).collect();
        let whole = |played: &Played, index: usize| played.look().verdicts()[index].remaining() == limit;
        prop_assert!(now_told.iter().any(|index| whole(&at_reset(0), *index)), "never early");
        if reset - now >= 1_000_000 && policies.len() == 1 {
            // With a second less something is still spent, though it may be less than a whole unit.
            let sooner = at_reset(1_000_000);
            prop_assert!(sooner.look().verdicts()[0].reset_after() > Duration::ZERO);
        }
    }
}

#[test]
fn families_are_read_whatever_the_case() {
    let families = |ietf, legacy| Ok(Families { ietf, legacy });
    assert_eq!("ietf".parse(), families(true, false));
    assert_eq!("IETF, Legacy".parse(), families(true, true));
    assert_eq!("None".parse(), families(false, false));
    for wrong in ["", "none,ietf", "ietf,", "x"] {
        assert!(wrong.parse::<Families>().is_err(), "{wrong:?}");
    }
}
