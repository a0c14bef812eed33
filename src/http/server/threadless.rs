//! Connections that no thread of the crate serves: for how many a thread is to be freed, and which will never have one.
//!
//! - *Waiting*: bytes have come, and nobody reads them. The crate hands several connections that come at once to one idle
//!   thread, where all but one wait until it closes. A connection that finds no idle thread gets a new one, which then serves
//!   the one that has waited longest: a connection to ourselves, closed at once, frees a thread for one that waits.
//! - *Ended*: the client has reset it, or it was shut, and it holds its descriptors until a thread lets go of them.
//! - *Lost*: ended, and nothing that is done frees it. Its thread hangs in the crate for good.
//!
//! This file counts; the watch finds the connections and opens those to ourselves.

use std::time::{Duration, Instant};

/// Threads freed at a look for connections that wait.
const MAX_FREED_WAITING: usize = 256;
/// The same for those that have ended, of which none is in a hurry.
const MAX_FREED_ENDED: usize = 64;

/// Looks at which the number of those that ended does not fall before they are taken for lost.
const ENDED_LOOKS: u32 = 40;

/// Lost connections leave room for others up to this share of what can be held: half. Beyond it the server gives up, when that
/// has lasted for so long that no slow thread can be the reason.
const LOST_SHARE: usize = 2;
const LOST_FOR: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Threadless {
    /// At the last look: threads to be freed for those that wait, those that have ended, looks at which these were no fewer.
    pushed: usize,
    ended: usize,
    ended_looks: u32,
    lost: usize,
    /// Since when too many have been lost.
    crippled: Option<Instant>,
}

/// How many threads are wanted, and how many of them should be freed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) threads: usize,
    pub(super) now: usize,
}

impl Threadless {
    pub(super) fn lost(&self) -> usize {
        self.lost
    }

    /// Takes in what a look found: of so many connections, how many wait and how many have ended.
    pub(super) fn note(&mut self, connections: usize, waiting: usize, ended: usize) -> Wanted {
        // Silent ones may come before those that wait: twice as many each time, but no more than there are.
        self.pushed =
            if waiting == 0 { 0 } else { waiting.max(2 * self.pushed).min(connections).min(MAX_FREED_WAITING) };
        let ended = self.note_ended(ended);
        Wanted { threads: waiting + ended, now: self.pushed.max(ended.min(MAX_FREED_ENDED)) }
    }

    /// How many of those that have ended are not lost, as far as is known.
    fn note_ended(&mut self, ended: usize) -> usize {
        if ended < self.ended {
            self.ended_looks = 0;
        } else if ended > self.lost {
            self.ended_looks += 1;
        }
        if self.ended_looks > ENDED_LOOKS {
            self.ended_looks = 0;
            self.lost = ended;
        }
        self.ended = ended;
        self.lost = self.lost.min(ended);
        // At the first look their threads may just be about to notice.
        if self.ended_looks == 1 { 0 } else { ended - self.lost }
    }

    /// Whether so many are lost that a process which starts afresh serves better than this one, which goes deaf.
    pub(super) fn is_crippled(&mut self, now: Instant, max_connections: usize) -> bool {
        if self.lost < max_connections.div_ceil(LOST_SHARE) {
            self.crippled = None;
            return false;
        }
        now.duration_since(*self.crippled.get_or_insert(now)) > LOST_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_wait_get_twice_the_threads_each_time_up_to_one_for_each() {
        let mut threadless = Threadless::default();
        let freed: Vec<usize> = [3, 3, 3, 2, 0, 1].map(|waiting| threadless.note(20, waiting, 0).now).into();
        assert_eq!(freed, [3, 6, 12, 20, 0, 1]);
        assert_eq!(threadless.note(5_000, 4_000, 0), Wanted { threads: 4_000, now: MAX_FREED_WAITING });
    }

    #[test]
    fn connections_that_have_ended_get_threads_until_they_are_lost() {
        let mut threadless = Threadless::default();
        assert_eq!(threadless.note(100, 0, 90).now, 0, "their threads may be about to notice");
        for _ in 1..ENDED_LOOKS {
            assert_eq!(threadless.note(100, 0, 90), Wanted { threads: 90, now: MAX_FREED_ENDED });
        }
        assert_eq!(threadless.lost(), 0);
        assert_eq!(threadless.note(100, 0, 90), Wanted { threads: 0, now: 0 });
        assert_eq!(threadless.lost(), 90);
        assert_eq!(threadless.note(100, 0, 30).now, 0);
        assert_eq!(threadless.lost(), 30, "some have gone after all");
    }

    #[test]
    fn a_server_is_crippled_when_half_has_been_lost_for_five_seconds() {
        let (mut threadless, begun) = (Threadless { lost: 49, ..Threadless::default() }, Instant::now());
        let at = |threadless: &mut Threadless, lost, seconds| {
            threadless.lost = lost;
            threadless.is_crippled(begun + Duration::from_secs(seconds), 99)
        };
        assert!(!at(&mut threadless, 50, 0));
        assert!(!at(&mut threadless, 49, 4), "one came back");
        assert!(!at(&mut threadless, 50, 5));
        assert!(!at(&mut threadless, 50, 10));
        assert!(at(&mut threadless, 50, 11));
    }
}
