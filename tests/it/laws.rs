//! The two laws, and the bound of each algorithm, on random policies and histories.
//!
//! Everything is asked through the public face with a clock set by hand, so the store is part of what is tested. Histories
//! hold equal times, times that go back by less and by more than a span, and costs from 0 to above the quota.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Algorithm, Clock, ManualClock, Outcome, Policies, Policy, RateLimiter, Timestamp};

/// A step of a history: how far the clock moves, in 1/64 of the span, plus a few microseconds; and what is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    sixty_fourths: i64,
    micros: i64,
    cost_share: u64,
}

pub(crate) fn steps(back: bool) -> impl Strategy<Value = Vec<Step>> {
    let moves = if back {
        prop_oneof![6 => 0..20i64, 1 => Just(0i64), 1 => 60..200i64, 1 => -70..0i64, 1 => -200..-60i64].boxed()
    } else {
        prop_oneof![6 => 0..20i64, 2 => Just(0i64), 1 => 60..200i64].boxed()
    };
    let micros = if back { -2..3i64 } else { 0..3i64 };
    let step = (moves, micros, 0..9u64).prop_map(|(sixty_fourths, micros, cost_share)| Step {
        sixty_fourths,
        micros,
        cost_share,
    });
    prop::collection::vec(step, 1..60)
}

/// Small quotas and odd numbers, where rounding shows; some as large as they come.
fn policy() -> impl Strategy<Value = Policy> {
    let quota = prop_oneof![8 => 1..20u64, 2 => 20..100_000u64, 1 => 1_000_000..9_000_000u64];
    let span = prop_oneof![1..50u64, 1_000..100_000_000u64, Just(86_400_000_000u64), Just(2_592_000_000_000u64)];
    (0..4usize, quota, 1..20u64, span).prop_map(|(kind, quota, tokens, span)| {
        let window = Duration::from_micros(span);
        match kind {
            0 => Policy::token_bucket(quota, tokens, Duration::from_micros(span / quota + 1)),
            1 => Policy::fixed_window(quota, window),
            2 => Policy::sliding_window_log(quota.min(2_000), window),
            _ => Policy::sliding_window_counter(quota, window),
        }
        .expect("within the bounds")
    })
}

/// One policy mostly, up to four at once.
pub(crate) fn policies() -> impl Strategy<Value = Policies> {
    prop_oneof![3 => prop::collection::vec(policy(), 1), 2 => prop::collection::vec(policy(), 2..5)].prop_map(
        |policies| {
            let named =
                policies.into_iter().zip('a'..).map(|(policy, name)| policy.named(&name.to_string()).expect("a name"));
            Policies::new(named.collect()).expect("names that differ")
        },
    )
}

/// A limiter, its clock, and the policies' longest span and smallest quota.
pub(crate) struct Subject {
    pub(crate) limiter: RateLimiter,
    pub(crate) clock: ManualClock,
    span: u64,
    quota: u64,
}

/// Any start: on a border of a window and off it.
const START: u64 = 1_700_000_000_000_000;

impl Subject {
    pub(crate) fn new(policies: Policies) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(START));
        let span = policies.iter().map(|policy| micros(policy.span())).max().expect("a policy");
        let quota = policies.iter().map(Policy::limit).min().expect("a policy");
        Self { limiter: RateLimiter::builder(policies).clock(clock.clone()).build(), clock, span, quota }
    }

    fn now(&self) -> u64 {
        self.clock.monotonic().as_micros()
    }

    fn set(&self, micros: u64) {
        self.clock.set(Timestamp::from_micros(micros));
    }

    /// Moves the clock by a step and returns the cost that the step asks for, which may be above the quota.
    pub(crate) fn follow(&self, step: Step) -> u64 {
        let by = i128::from(self.span) * i128::from(step.sixty_fourths) / 64 + i128::from(step.micros);
        self.set(u64::try_from(i128::from(self.now()) + by).expect("a time after the epoch"));
        match step.cost_share {
            0 => 0,
            share @ 1..=4 => 1.max(self.quota * (share - 1) / 8),
            5 => self.quota,
            6 => self.quota + 1,
            _ => 1,
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("below 2^64")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    /// The first law.
    #[test]
    fn after_the_told_wait_the_request_is_let_in_and_a_microsecond_sooner_it_is_not(
        policies in policies(), steps in steps(true)
    ) {
        let subject = Subject::new(policies);
        for step in steps {
            let cost = subject.follow(step);
            let Outcome::Refused { retry_after } = subject.limiter.check_n("c", cost).outcome() else { continue };
            let told = subject.now() + micros(retry_after);
            prop_assert!(retry_after > Duration::ZERO);
            subject.set(told - 1);
            let sooner = subject.limiter.check_n("c", cost);
            prop_assert_eq!(sooner.outcome(), Outcome::Refused { retry_after: Duration::from_micros(1) });
            subject.set(told);
            prop_assert!(subject.limiter.check_n("c", cost).is_allowed());
        }
    }

    /// The second law: what is told as the time until the whole quota is back is exactly when a state decides like none.
    ///
    /// The history ends where the clock has been before: a clock that stands behind a state by a whole span meets a new
    /// client, and when it has caught up, the state again.
    #[test]
    fn once_the_whole_quota_is_back_a_client_is_as_good_as_new_and_a_microsecond_sooner_it_is_not(
        policies in policies(), before in steps(true), after in steps(false)
    ) {
        let subject = Subject::new(policies.clone());
        let mut latest = START;
        for step in before {
            let cost = subject.follow(step);
            latest = latest.max(subject.now());
            subject.limiter.check_n("c", cost);
        }
        subject.set(latest);
        let look = subject.limiter.peek("c");
        let reset_after = look.verdicts().iter().map(tollgate::Verdict::reset_after).max().expect("a verdict");
        let back = subject.now() + micros(reset_after);
        if reset_after > Duration::ZERO {
            subject.set(back - 1);
            let sooner = subject.limiter.peek("c");
            prop_assert!(sooner.verdicts().iter().any(|verdict| verdict.reset_after() == Duration::from_micros(1)));
            subject.limiter.sweep();
            prop_assert_eq!(subject.limiter.clients().tracked, 1, "swept too soon");
        }
        subject.set(back);
        let fresh = Subject::new(policies);
        fresh.set(back);
        for step in after {
            let (cost, _) = (subject.follow(step), fresh.follow(step));
            prop_assert_eq!(subject.limiter.check_n("c", cost), fresh.limiter.check_n("c", cost));
        }
    }

    /// Sweeps anywhere change nothing but memory, also while the clock goes back between them, as long as it does not go
    /// back past one.
    #[test]
    fn sweeps_anywhere_change_no_decision(
        policies in policies(), steps in steps(false), swept in prop::collection::vec(any::<bool>(), 60)
    ) {
        let (subject, swept_subject) = (Subject::new(policies.clone()), Subject::new(policies));
        for (step, sweep) in steps.into_iter().zip(swept) {
            let (cost, _) = (subject.follow(step), swept_subject.follow(step));
            if sweep {
                swept_subject.limiter.sweep();
            }
            prop_assert_eq!(subject.limiter.check_n("c", cost), swept_subject.limiter.check_n("c", cost));
        }
    }

    #[test]
    fn refusals_and_looks_spend_nothing_and_what_is_told_adds_up(policies in policies(), steps in steps(true)) {
        let subject = Subject::new(policies);
        for step in steps {
            let cost = subject.follow(step);
            let before = subject.limiter.peek("c");
            let decision = subject.limiter.check_n("c", cost);
            let after = subject.limiter.peek("c");
            if !decision.is_allowed() {
                prop_assert_eq!(&before, &after);
            }
            for ((told, before), after) in decision.verdicts().iter().zip(before.verdicts()).zip(after.verdicts()) {
                prop_assert!(told.remaining() <= told.limit());
                prop_assert!(told.more_after() <= told.reset_after());
                prop_assert_eq!(told.more_after().is_zero(), told.remaining() == told.limit());
                prop_assert_eq!(told.remaining(), after.remaining());
                if decision.is_allowed() {
                    prop_assert!(told.remaining() <= before.remaining());
                    prop_assert_eq!(told.remaining() + cost, before.remaining(), "a cost is spent once");
                }
            }
        }
    }

    #[test]
    fn what_is_told_to_remain_can_be_spent_and_no_more(policy in policy(), steps in steps(true)) {
        let subject = Subject::new(policy.into());
        for step in steps {
            let cost = subject.follow(step);
            subject.limiter.check_n("c", cost);
            let look = subject.limiter.peek("c");
            let remaining = look.verdicts()[0].remaining();
            prop_assert!(!subject.limiter.check_n("c", remaining + 1).is_allowed());
            // A look at a counter whose clock went back may itself be over the limit.
            prop_assert!(remaining == 0 || subject.limiter.check_n("c", remaining).is_allowed());
        }
    }

    #[test]
    fn more_is_there_exactly_when_it_is_told(policy in policy(), steps in steps(true)) {
        let subject = Subject::new(policy.into());
        for step in steps {
            let cost = subject.follow(step);
            let verdict = subject.limiter.check_n("c", cost).verdicts()[0];
            if verdict.remaining() < verdict.limit() {
                let more = subject.now() + micros(verdict.more_after());
                subject.set(more - 1);
                prop_assert!(subject.limiter.peek("c").verdicts()[0].remaining() <= verdict.remaining());
                subject.set(more);
                prop_assert!(subject.limiter.peek("c").verdicts()[0].remaining() > verdict.remaining());
            }
        }
    }

    /// All or nothing: several policies let in what each of them would, and refuse with the longest of their waits.
    #[test]
    fn several_policies_let_in_exactly_what_each_of_them_would(policies in policies(), steps in steps(false)) {
        let subject = Subject::new(policies.clone());
        let parts: Vec<RateLimiter> = policies
            .iter()
            .map(|policy| RateLimiter::builder(policy.clone()).clock(subject.clock.clone()).build())
            .collect();
        for step in steps {
            let cost = subject.follow(step);
            let decision = subject.limiter.check_n("c", cost);
            // Whether each part would, told without spending: a part that would pass is spent only when all would.
            let would: Vec<Outcome> = parts.iter().map(|part| would(part, cost)).collect();
            let expected = if would.contains(&Outcome::Never) {
                Outcome::Never
            } else {
                let waits = would.iter().filter_map(|outcome| match outcome {
                    Outcome::Refused { retry_after } => Some(*retry_after),
                    _ => None,
                });
                waits.max().map_or(Outcome::Allowed, |retry_after| Outcome::Refused { retry_after })
            };
            prop_assert_eq!(decision.outcome(), expected);
            for ((part, verdict), would) in parts.iter().zip(decision.verdicts()).zip(would) {
                let alone = if decision.is_allowed() { part.check_n("c", cost) } else { part.peek("c") };
                let alone = alone.verdicts()[0];
                let expected = if would == Outcome::Allowed { alone.outcome() } else { would };
                prop_assert_eq!(verdict.outcome(), expected);
                prop_assert_eq!(verdict.remaining(), alone.remaining());
                prop_assert_eq!(verdict.reset_after(), alone.reset_after());
                prop_assert_eq!(verdict.more_after(), alone.more_after());
            }
        }
    }

    /// The bound that each algorithm promises, for any traffic, checked over every pair of grants.
    #[test]
    fn no_traffic_gets_more_than_the_bound_of_its_algorithm(policy in policy(), steps in steps(false)) {
        let subject = Subject::new(policy.clone().into());
        let mut granted: Vec<(u64, u64)> = Vec::new();
        for step in steps {
            let cost = subject.follow(step);
            if subject.limiter.check_n("c", cost).is_allowed() {
                granted.push((subject.now(), cost));
            }
        }
        let (limit, span) = (u128::from(policy.limit()), u128::from(subject.span));
        for (first, &(start, _)) in granted.iter().enumerate() {
            let mut sum = 0u128;
            for &(time, cost) in &granted[first..] {
                sum += u128::from(cost);
                let elapsed = u128::from(time - start);
                match policy.algorithm() {
                    // Capacity plus refill; the span is rounded up, which gives at most one token more in a span.
                    Algorithm::TokenBucket => prop_assert!(sum <= limit + (limit * elapsed).div_ceil(span.max(2) - 1) + 1),
                    Algorithm::FixedWindow if u128::from(start) / span == u128::from(time) / span => prop_assert!(sum <= limit),
                    Algorithm::SlidingWindowLog if elapsed < span => prop_assert!(sum <= limit),
                    Algorithm::FixedWindow | Algorithm::SlidingWindowCounter if elapsed < span => {
                        prop_assert!(sum <= 2 * limit);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// What a limiter of one policy would answer, found on its reports alone, without spending.
fn would(part: &RateLimiter, cost: u64) -> Outcome {
    let look = part.peek("c").verdicts()[0];
    if cost > look.limit() || cost > look.remaining() || look.outcome() != Outcome::Allowed {
        // It refuses, so asking spends nothing.
        part.check_n("c", cost).outcome()
    } else {
        Outcome::Allowed
    }
}
