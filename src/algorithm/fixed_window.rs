//! Fixed window: at most L in each window, and windows start at whole multiples of W since the Unix epoch.
//!
//! The cheapest to understand: a counter that starts anew at known times. UTC, never the local calendar, whose hours
//! repeat and vanish.
//!
//! *Guarantee*: at most L in each window. *Known error*: up to 2L round a border, in any stretch as long as a window.

use super::{Algorithm, AsOf, ClockKind, as_of, window_start};
use crate::clock::Timestamp;
use crate::decision::{Ruling, Verdict};
use crate::policy::FixedWindow;

/// Two numbers. Aligned to four bytes, so that an IPv4 address fits beside them without padding.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
pub(crate) struct State {
    start: Timestamp,
    count: u64,
}

impl FixedWindow {
    /// The window that counts at `now`, and the wait until it ends.
    fn current(&self, state: &State, now: Timestamp) -> (State, u64) {
        let State { start, count } = *state;
        let anew = || {
            let start = window_start(now, self.window);
            (State { start, count: 0 }, self.window - (now.as_micros() - start.as_micros()))
        };
        match as_of(start, now, self.window) {
            AsOf::Elapsed(elapsed) if elapsed < self.window => (State { start, count }, self.window - elapsed),
            AsOf::Lagging(lag) => (State { start, count }, self.window + lag),
            AsOf::Elapsed(_) | AsOf::Afresh => anew(),
        }
    }
}

impl Algorithm for FixedWindow {
    type State = State;

    const CLOCK: ClockKind = ClockKind::Wall;

    fn fresh_at(&self, now: Timestamp) -> State {
        State { start: window_start(now, self.window), count: 0 }
    }

    #[inline(always)]
    fn decide_at(&self, state: &State, now: Timestamp, cost: u64) -> Verdict {
        let (State { count, .. }, ends_in) = self.current(state, now);
        let verdict = |outcome, count: u64| {
            let after = if count == 0 { 0 } else { ends_in };
            Verdict { outcome, limit: self.limit, remaining: self.limit - count, more_after: after, reset_after: after }
        };
        if cost > self.limit {
            verdict(Ruling::Never, count)
        } else if cost <= self.limit - count {
            verdict(Ruling::Allowed, count + cost)
        } else {
            verdict(Ruling::Refused { retry_after: ends_in }, count)
        }
    }

    #[inline(always)]
    fn spend_at(&self, state: &mut State, now: Timestamp, cost: u64) {
        let (State { start, count }, _) = self.current(state, now);
        *state = State { start, count: count + cost };
    }

    fn is_ahead(&self, state: &State, now: Timestamp) -> bool {
        matches!(as_of(state.start, now, self.window), AsOf::Afresh)
    }
}
