//! The four algorithms, one file each: what a request may spend, given what was spent before.
//!
//! Pure arithmetic over (settings, state, time, cost). No clock, no lock, no I/O, no logging, and no float: the same
//! integers decide here and in the scripts of the shared store.
//!
//! | file | state | clock |
//! |---|---|---|
//! | `token_bucket` | level, time of last update | monotonic |
//! | `fixed_window` | window, count | wall |
//! | `sliding_window_log` | time of every allowed request | monotonic |
//! | `sliding_window_counter` | window, count, previous count | wall |
//! | `several` | those of its parts | both |
//!
//! **Time that goes back.** Clocks step, and threads that read the clock before they get the lock arrive out of order.
//! While the time given is behind the state's own time by less than a span, the state is asked as of its own time and the
//! waits grow by the lag; from a whole span on, the client is new. A state never moves back. [`as_of`] is that rule.
//!
//! **Refusals and looks write nothing**, not even what has refilled meanwhile: the state's own time is the time of the last
//! spend, here and in the store, or the two would part when a clock goes back.

pub(crate) mod fixed_window;
pub(crate) mod several;
pub(crate) mod sliding_window_counter;
pub(crate) mod sliding_window_log;
pub(crate) mod token_bucket;

use crate::clock::{Now, Timestamp};
use crate::decision::{Decision, Verdict};

/// One way to count, with its settings.
///
/// `decide_at` and `spend_at` are inlined into the store: called, they hand the verdict over through memory in pieces that
/// the processor then waits for, at a fifth of a decision.
pub(crate) trait Algorithm {
    /// What is kept of a client.
    type State;

    /// Which of the two clocks it counts by.
    const CLOCK: ClockKind;

    /// The state that decides like none.
    fn fresh_at(&self, now: Timestamp) -> Self::State;

    /// What a request of this cost meets. When it is allowed, the verdict tells what is left after it.
    fn decide_at(&self, state: &Self::State, now: Timestamp, cost: u64) -> Verdict;

    /// Spends a cost above 0 that [`decide_at`](Self::decide_at) has just allowed for the same state and time.
    fn spend_at(&self, state: &mut Self::State, now: Timestamp, cost: u64);

    /// Whether the clock has gone back behind the state by a span or more, so that the client is new.
    fn is_ahead(&self, state: &Self::State, now: Timestamp) -> bool;
}

/// The clock that an algorithm counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockKind {
    Monotonic,
    Wall,
}

impl ClockKind {
    fn of(self, now: Now) -> Timestamp {
        match self {
            Self::Monotonic => now.monotonic,
            Self::Wall => now.wall,
        }
    }
}

/// What a store keeps one state of for each client: one algorithm, or [`several`] at once.
pub(crate) trait Limit: Send + Sync + 'static {
    type State: Send;

    fn fresh(&self, now: Now) -> Self::State;

    fn decide(&self, state: &Self::State, now: Now, cost: u64) -> Decision;

    fn spend(&self, state: &mut Self::State, now: Now, cost: u64);

    /// Microseconds until the state decides exactly like none. At 0 it may be dropped, and at no other time.
    fn reset_after(&self, state: &Self::State, now: Now) -> u64;

    /// What it would give away to forget the state now: how much of the quota is spent, and for how long.
    fn loss(&self, state: &Self::State, now: Now) -> Loss;

    /// Takes note of a refusal, whose wait must come true. One algorithm has nothing to note.
    fn refuse(&self, _state: &mut Self::State, _now: Now) {}
}

/// What it would give away to forget a client before its time. One is compared with another under the same limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Loss {
    spent: u64,
    /// Breaks ties: most clients of a flood have spent one request each.
    reset_after: u64,
}

impl<A: Algorithm<State: Send> + Send + Sync + 'static> Limit for A {
    type State = A::State;

    fn fresh(&self, now: Now) -> A::State {
        self.fresh_at(A::CLOCK.of(now))
    }

    #[inline(always)]
    fn decide(&self, state: &A::State, now: Now, cost: u64) -> Decision {
        Decision::one(self.decide_at(state, A::CLOCK.of(now), cost))
    }

    #[inline(always)]
    fn spend(&self, state: &mut A::State, now: Now, cost: u64) {
        self.spend_at(state, A::CLOCK.of(now), cost);
    }

    fn reset_after(&self, state: &A::State, now: Now) -> u64 {
        self.decide_at(state, A::CLOCK.of(now), 0).reset_after
    }

    fn loss(&self, state: &A::State, now: Now) -> Loss {
        let look = self.decide_at(state, A::CLOCK.of(now), 0);
        Loss { spent: look.limit - look.remaining, reset_after: look.reset_after }
    }
}

/// The time that a state is asked about.
enum AsOf {
    /// At or after the state's own time.
    Elapsed(u64),
    /// Before it, by less than a span: as of the state's own time, and all waits are longer by the lag.
    Lagging(u64),
    /// Before it by a span or more: there is no state.
    Afresh,
}

/// How `now` stands to a state's `own` time.
fn as_of(own: Timestamp, now: Timestamp, span: u64) -> AsOf {
    let (own, now) = (own.as_micros(), now.as_micros());
    if own <= now {
        AsOf::Elapsed(now - own)
    } else if own - now < span {
        AsOf::Lagging(own - now)
    } else {
        AsOf::Afresh
    }
}

/// The start of the window that holds an instant, in the windows that begin at the epoch.
fn window_start(now: Timestamp, window: u64) -> Timestamp {
    let now = now.as_micros();
    Timestamp::from_micros(now - now % window)
}
