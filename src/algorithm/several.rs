//! Several policies at once, all or nothing: a request passes when each of them lets it in, and is spent in all or in none.
//!
//! Two steps over the states of one client, under whatever lock the store holds: ask all, then spend in all. A refusal
//! reports what is there without the request, also in the policies that would have let it in.

use smallvec::SmallVec;

use super::sliding_window_counter::Counter;
use super::{Algorithm, Limit, Loss, fixed_window, sliding_window_counter, sliding_window_log, token_bucket};
use crate::clock::Now;
use crate::decision::{Decision, Ruling, Verdict};
use crate::policy::{FixedWindow, Policy, Rule, SlidingWindowLog, TokenBucket};

/// The parts, in the order given. A part without a state is new to the client.
pub(crate) struct Several(Box<[Part]>);

enum Part {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingWindowLog(SlidingWindowLog),
    SlidingWindowCounter(Counter<u64>),
}

/// The state of one part, always of its part's kind.
pub(crate) enum State {
    TokenBucket(token_bucket::State),
    FixedWindow(fixed_window::State),
    SlidingWindowLog(sliding_window_log::State),
    SlidingWindowCounter(sliding_window_counter::State<u64>),
}

impl Several {
    pub(crate) fn new(policies: &[Policy]) -> Self {
        let part = |rule| match rule {
            Rule::TokenBucket(bucket) => Part::TokenBucket(bucket),
            Rule::FixedWindow(window) => Part::FixedWindow(window),
            Rule::SlidingWindowLog(log) => Part::SlidingWindowLog(log),
            Rule::SlidingWindowCounter(counter) => Part::SlidingWindowCounter(Counter::wide(counter)),
        };
        Self(policies.iter().map(|policy| part(policy.rule())).collect())
    }

    /// What each part says on its own.
    fn ask(&self, states: &[Option<State>], now: Now, cost: u64) -> SmallVec<[Verdict; 1]> {
        self.0.iter().zip(states).map(|(part, state)| part.decide(state.as_ref(), now, cost)).collect()
    }
}

impl Limit for Several {
    type State = Box<[Option<State>]>;

    fn fresh(&self, _now: Now) -> Self::State {
        self.0.iter().map(|_| None).collect()
    }

    fn decide(&self, states: &Self::State, now: Now, cost: u64) -> Decision {
        let mut verdicts = self.ask(states, now, cost);
        if verdicts.iter().any(|verdict| verdict.outcome != Ruling::Allowed) {
            for (verdict, look) in verdicts.iter_mut().zip(self.ask(states, now, 0)) {
                if verdict.outcome == Ruling::Allowed {
                    *verdict = look;
                }
            }
        }
        Decision::all(verdicts)
    }

    fn spend(&self, states: &mut Self::State, now: Now, cost: u64) {
        for (part, state) in self.0.iter().zip(states) {
            part.spend(state.get_or_insert_with(|| part.fresh(now)), now, cost);
        }
    }

    fn reset_after(&self, states: &Self::State, now: Now) -> u64 {
        self.ask(states, now, 0).iter().map(|look| look.reset_after).max().unwrap_or(0)
    }

    /// That of the part of which the largest share is spent, in millionths.
    fn loss(&self, states: &Self::State, now: Now) -> Loss {
        let share = |look: &Verdict| u128::from(look.limit - look.remaining) * 1_000_000 / u128::from(look.limit);
        let loss = |look: &Verdict| Loss {
            spent: u64::try_from(share(look)).expect("at most a million"),
            reset_after: look.reset_after,
        };
        let looks = self.ask(states, now, 0);
        looks.iter().map(loss).max().unwrap_or(Loss { spent: 0, reset_after: 0 })
    }

    /// Drops the parts that are ahead of the clock by a whole span. They let the request in as if they were new; kept, they
    /// would come back into force while the wait that another part told runs, and break its promise.
    fn refuse(&self, states: &mut Self::State, now: Now) {
        for (part, slot) in self.0.iter().zip(states) {
            if slot.as_ref().is_some_and(|state| part.is_ahead(state, now)) {
                *slot = None;
            }
        }
    }
}

impl Part {
    fn fresh(&self, now: Now) -> State {
        match self {
            Self::TokenBucket(bucket) => State::TokenBucket(bucket.fresh_at(now.monotonic)),
            Self::FixedWindow(window) => State::FixedWindow(window.fresh_at(now.wall)),
            Self::SlidingWindowLog(log) => State::SlidingWindowLog(log.fresh_at(now.monotonic)),
            Self::SlidingWindowCounter(counter) => State::SlidingWindowCounter(counter.fresh_at(now.wall)),
        }
    }

    fn is_ahead(&self, state: &State, now: Now) -> bool {
        match (self, state) {
            (Self::TokenBucket(bucket), State::TokenBucket(state)) => bucket.is_ahead(state, now.monotonic),
            (Self::FixedWindow(window), State::FixedWindow(state)) => window.is_ahead(state, now.wall),
            (Self::SlidingWindowLog(log), State::SlidingWindowLog(state)) => log.is_ahead(state, now.monotonic),
            (Self::SlidingWindowCounter(counter), State::SlidingWindowCounter(state)) => {
                counter.is_ahead(state, now.wall)
            }
            _ => unreachable!("a part only meets states that it made"),
        }
    }

    fn decide(&self, state: Option<&State>, now: Now, cost: u64) -> Verdict {
        let Some(state) = state else { return self.decide(Some(&self.fresh(now)), now, cost) };
        match (self, state) {
            (Self::TokenBucket(bucket), State::TokenBucket(state)) => bucket.decide_at(state, now.monotonic, cost),
            (Self::FixedWindow(window), State::FixedWindow(state)) => window.decide_at(state, now.wall, cost),
            (Self::SlidingWindowLog(log), State::SlidingWindowLog(state)) => log.decide_at(state, now.monotonic, cost),
            (Self::SlidingWindowCounter(counter), State::SlidingWindowCounter(state)) => {
                counter.decide_at(state, now.wall, cost)
            }
            _ => unreachable!("a part only meets states that it made"),
        }
    }

    fn spend(&self, state: &mut State, now: Now, cost: u64) {
        match (self, state) {
            (Self::TokenBucket(bucket), State::TokenBucket(state)) => bucket.spend_at(state, now.monotonic, cost),
            (Self::FixedWindow(window), State::FixedWindow(state)) => window.spend_at(state, now.wall, cost),
            (Self::SlidingWindowLog(log), State::SlidingWindowLog(state)) => log.spend_at(state, now.monotonic, cost),
            (Self::SlidingWindowCounter(counter), State::SlidingWindowCounter(state)) => {
                counter.spend_at(state, now.wall, cost);
            }
            _ => unreachable!("a part only meets states that it made"),
        }
    }
}
