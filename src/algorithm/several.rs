//! Several policies at once, all or nothing: a request passes when each of them lets it in, and is spent in all or in none.
//!
//! Two steps over the states of one client, under whatever lock the store holds: ask all, then spend in all. A refusal
//! reports what is there without the request, also in the policies that would have let it in.

use smallvec::SmallVec;

use super::sliding_window_counter::Counter;
use super::{Algorithm, Limit, fixed_window, sliding_window_counter, sliding_window_log, token_bucket};
use crate::clock::Now;
use crate::decision::{Decision, Ruling, Verdict};
use crate::policy::{FixedWindow, Policy, Rule, SlidingWindowLog, TokenBucket};

/// The parts, in the order given.
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
    fn ask(&self, states: &[State], now: Now, cost: u64) -> SmallVec<[Verdict; 1]> {
        self.0.iter().zip(states).map(|(part, state)| part.decide(state, now, cost)).collect()
    }
}

impl Limit for Several {
    type State = Box<[State]>;

    fn fresh(&self, now: Now) -> Box<[State]> {
        self.0.iter().map(|part| part.fresh(now)).collect()
    }

    fn decide(&self, states: &Box<[State]>, now: Now, cost: u64) -> Decision {
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

    fn spend(&self, states: &mut Box<[State]>, now: Now, cost: u64) {
        for (part, state) in self.0.iter().zip(states) {
            part.spend(state, now, cost);
        }
    }

    fn reset_after(&self, states: &Box<[State]>, now: Now) -> u64 {
        self.ask(states, now, 0).iter().map(|look| look.reset_after).max().unwrap_or(0)
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

    fn decide(&self, state: &State, now: Now, cost: u64) -> Verdict {
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
