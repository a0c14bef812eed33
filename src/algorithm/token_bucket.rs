//! Token bucket: a bucket holds at most C tokens, gains N per P evenly, and a request takes its cost or is refused.
//!
//! The level is kept in units of 1/P of a token, P in microseconds, so that every microsecond adds exactly N units and no
//! part of a token is ever rounded away. The idea is the policer of ATM and RFC 2697 without its queue.
//!
//! *Guarantee*: in any time T at most C + N·T/P. It is no ceiling per window: a full bucket and its refill come together.

use super::{Algorithm, AsOf, ClockKind, as_of};
use crate::clock::Timestamp;
use crate::decision::{Ruling, Verdict};
use crate::policy::TokenBucket;

/// Two numbers. Aligned to four bytes, so that an IPv4 address fits beside them without padding.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
pub(crate) struct State {
    level: u64,
    updated_at: Timestamp,
}

impl TokenBucket {
    /// The level at `now`, in units, the instant that it is the level of, and the lag of `now` behind that instant.
    fn level(&self, state: &State, now: Timestamp) -> (u64, Timestamp, u64) {
        let State { level, updated_at } = *state;
        match as_of(updated_at, now, self.fill_time) {
            // Past the time to fill, the product could overflow and the answer is known.
            AsOf::Elapsed(elapsed) if elapsed >= self.fill_time => (self.full, now, 0),
            AsOf::Elapsed(elapsed) => {
                let missing = self.full - level;
                (level + missing.min(elapsed * self.tokens), now, 0)
            }
            AsOf::Lagging(lag) => (level, updated_at, lag),
            AsOf::Afresh => (self.full, now, 0),
        }
    }
}

impl Algorithm for TokenBucket {
    type State = State;

    const CLOCK: ClockKind = ClockKind::Monotonic;

    fn fresh_at(&self, now: Timestamp) -> State {
        State { level: self.full, updated_at: now }
    }

    #[inline(always)]
    fn decide_at(&self, state: &State, now: Timestamp, cost: u64) -> Verdict {
        let (level, _, lag) = self.level(state, now);
        let wait = |units: u64| match units {
            0 => 0,
            // In lowest terms nearly every rate is one token in some microseconds; the divisions cost a sixth of a decision.
            units if self.tokens == 1 => units + lag,
            units => units.div_ceil(self.tokens) + lag,
        };
        let verdict = |outcome, level: u64| Verdict {
            outcome,
            limit: self.capacity,
            remaining: level / self.period,
            more_after: wait((self.full - level).min(self.period - level % self.period)),
            reset_after: wait(self.full - level),
        };
        if cost > self.capacity {
            return verdict(Ruling::Never, level);
        }
        let price = cost * self.period;
        match level.checked_sub(price) {
            Some(left) => verdict(Ruling::Allowed, left),
            None => verdict(Ruling::Refused { retry_after: wait(price - level) }, level),
        }
    }

    #[inline(always)]
    fn spend_at(&self, state: &mut State, now: Timestamp, cost: u64) {
        let (level, at, _) = self.level(state, now);
        *state = State { level: level - cost * self.period, updated_at: at };
    }

    fn is_ahead(&self, state: &State, now: Timestamp) -> bool {
        matches!(as_of(state.updated_at, now, self.fill_time), AsOf::Afresh)
    }
}
