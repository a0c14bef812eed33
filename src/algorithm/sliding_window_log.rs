//! Sliding window log: the time of every request let in is kept, and those of the last W count.
//!
//! An entry exactly W old is out. The log is sorted by construction: a request that comes with an older time is entered at
//! the time of the youngest.
//!
//! *Guarantee*: at most L in any stretch as long as the window, exactly. *Price*: eight bytes for each of them.

use smallvec::SmallVec;

use super::{Algorithm, AsOf, ClockKind, as_of};
use crate::clock::Timestamp;
use crate::decision::{Ruling, Verdict};
use crate::policy::SlidingWindowLog;

/// The times of the requests let in, oldest first. The first two need no memory of their own, so that clients that come
/// once cost little.
///
/// Entries that no longer count may still be there: whenever the log is asked, they are older than the window, since it is
/// never asked about a time before its youngest entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct State(SmallVec<[Timestamp; 2]>);

/// Spare room for a quarter more entries: with an eighth of dead ones, less than half of what is kept is waste, where
/// doubling would waste as much as it keeps.
const SPARE: usize = 4;

/// Spare room for so many at least, so that a small log does not move at each request.
const MIN_SPARE: usize = 4;

/// Dead entries are dropped when they are an eighth of those that count: moving the rest is then eight moves a request.
const DEAD: usize = 8;

/// The log as of an instant.
struct View {
    at: Timestamp,
    lag: u64,
    /// How many entries, from the oldest, no longer count.
    expired: usize,
}

impl SlidingWindowLog {
    fn view(&self, State(log): &State, now: Timestamp) -> View {
        let Some(&youngest) = log.last() else { return View { at: now, lag: 0, expired: 0 } };
        let (at, lag) = match as_of(youngest, now, self.window) {
            AsOf::Elapsed(elapsed) if elapsed < self.window => (now, 0),
            AsOf::Lagging(lag) => (youngest, lag),
            AsOf::Elapsed(_) | AsOf::Afresh => return View { at: now, lag: 0, expired: log.len() },
        };
        View { at, lag, expired: self.expired(log, at) }
    }

    /// How many entries, from the oldest, are out. They are few as a rule: the search goes from the oldest on in doubling steps.
    fn expired(&self, log: &[Timestamp], at: Timestamp) -> usize {
        let is_out = |entry: &Timestamp| self.age(*entry, at) >= self.window;
        let mut end = 1;
        while log.get(end - 1).is_some_and(is_out) {
            end *= 2;
        }
        // The entry before the middle is out, that at the end, if there is one, is not.
        let known = end / 2;
        known + log[known..log.len().min(end)].partition_point(is_out)
    }

    fn age(&self, entry: Timestamp, at: Timestamp) -> u64 {
        at.as_micros() - entry.as_micros()
    }
}

impl Algorithm for SlidingWindowLog {
    type State = State;

    const CLOCK: ClockKind = ClockKind::Monotonic;

    fn fresh_at(&self, _now: Timestamp) -> State {
        State::default()
    }

    #[inline(always)]
    fn decide_at(&self, state: &State, now: Timestamp, cost: u64) -> Verdict {
        let View { at, lag, expired } = self.view(state, now);
        let log = &state.0;
        let counted = (log.len() - expired) as u64;
        // The wait until the `nth` of the entries that count is out.
        let out_in = |nth: u64| {
            let index = expired + usize::try_from(nth).expect("a log is shorter than memory");
            self.window - self.age(log[index], at) + lag
        };
        let verdict = |outcome, remaining| Verdict {
            outcome,
            limit: self.limit,
            remaining,
            more_after: if counted == 0 { 0 } else { out_in(0) },
            reset_after: if counted == 0 { 0 } else { out_in(counted - 1) },
        };
        let remaining = self.limit - counted;
        if cost > self.limit {
            verdict(Ruling::Never, remaining)
        } else if cost <= remaining {
            let mut verdict = verdict(Ruling::Allowed, remaining - cost);
            if cost > 0 {
                verdict.reset_after = self.window + lag;
                if counted == 0 {
                    verdict.more_after = verdict.reset_after;
                }
            }
            verdict
        } else {
            verdict(Ruling::Refused { retry_after: out_in(counted + cost - self.limit - 1) }, remaining)
        }
    }

    #[inline(always)]
    fn spend_at(&self, state: &mut State, now: Timestamp, cost: u64) {
        let View { at, expired, .. } = self.view(state, now);
        let log = &mut state.0;
        if expired > (log.len() - expired) / DEAD {
            log.drain(..expired);
        }
        let cost = usize::try_from(cost).expect("a cost within a log's limit is shorter than memory");
        let needed = log.len() + cost;
        // After a burst, most of the room is given back.
        if log.spilled() && log.capacity() / 4 > needed {
            log.shrink_to_fit();
        }
        if needed > log.capacity() {
            log.reserve_exact(cost.max(log.len() / SPARE).max(MIN_SPARE));
        }
        log.extend(std::iter::repeat_n(at, cost));
    }

    fn is_ahead(&self, State(log): &State, now: Timestamp) -> bool {
        log.last().is_some_and(|&youngest| matches!(as_of(youngest, now, self.window), AsOf::Afresh))
    }
}
