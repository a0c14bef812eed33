//! The crate's acceptor, which ends on any error or panic of its own: whether it still accepts, and a new one when not.

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::room::Room;

/// A connection that waits for so long to be accepted, while none is, has nobody who accepts.
const DEAF_AFTER: Duration = Duration::from_millis(400);

/// The same while descriptors have been short lately: the next acceptor may have met the same end.
const DEAF_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// How long "lately" is.
const LATELY: Duration = Duration::from_secs(5);

/// Pause between two attempts to accept anew: while descriptors are short each attempt fails at once.
const REVIVE_PAUSE: Duration = Duration::from_millis(100);

/// The acceptor that should be at work, and what is left of those before it.
pub(super) struct Acceptor {
    listener: TcpListener,
    /// Since when connections have been waiting with no sign of life, and the signs at that time.
    pending: Option<(Instant, Signs)>,
    revived: Option<Instant>,
    old: Vec<Old>,
}

/// Signs of life: they change when connections are accepted.
#[derive(PartialEq, Eq)]
pub(super) struct Signs {
    /// When the youngest connection was first seen.
    pub(super) newest: Instant,
    /// How many descriptors are open.
    pub(super) descriptors: i64,
    /// Connections that were gone at once.
    pub(super) panics: u64,
}

/// A server of the crate that accepts no more, and whose connections live on.
struct Old {
    until: Instant,
    /// It said that it ended.
    ended: bool,
    http: Arc<tiny_http::Server>,
}

impl Acceptor {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, pending: None, revived: None, old: Vec::new() }
    }

    /// Whether connections have been waiting for a while: then a look must tell whether any was accepted meanwhile.
    pub(super) fn is_suspect(&mut self, now: Instant, signs: Signs) -> bool {
        let mut waiting = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        if !poll(&mut waiting, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
            self.pending = None;
            return false;
        }
        let Some((since, _)) = self.pending else {
            self.pending = Some((now, signs));
            return false;
        };
        let lately = self.revived.is_some_and(|at| now.duration_since(at) < LATELY);
        now.duration_since(since) >= if lately { DEAF_AGAIN_AFTER } else { DEAF_AFTER }
    }

    /// Whether a suspect has shown no sign of life: it ended without a word.
    pub(super) fn is_dead(&mut self, now: Instant, signs: Signs) -> bool {
        // Many may come at once, so that some wait whenever we ask.
        if self.pending.as_ref().is_none_or(|(_, before)| *before != signs) {
            self.pending = Some((now, signs));
            return false;
        }
        true
    }

    /// Starts to accept anew, but not too often.
    pub(super) fn revive(&mut self, now: Instant, room: &Room) {
        if self.revived.is_some_and(|at| now.duration_since(at) < REVIVE_PAUSE) {
            return;
        }
        let ended = room.deaf.load(Ordering::Acquire);
        self.revived = Some(now);
        self.pending = None;
        match super::accept(&self.listener) {
            Ok(http) => {
                let old = room.replace(http);
                self.old.push(Old { until: now, ended, http: old });
                if room.counters.accept_restarts.get() == 0 {
                    log::warn!(
                        "nobody accepted connections any more: accepting anew; further restarts are only counted"
                    );
                }
                room.counters.accept_restarts.add(1);
            }
            Err(error) => log::debug!("cannot accept anew: {error}"),
        }
    }

    /// Takes in what came in on connections of those that accept no more.
    pub(super) fn drain_old(&self, room: &Room) {
        for old in &self.old {
            room.drain_old(&old.http);
        }
    }

    /// Those that accept no more are let go when none of their connections can be left. `oldest` is when the oldest open one
    /// was first heard of.
    pub(super) fn forget_old(&mut self, oldest: impl FnOnce() -> Option<Instant>) {
        if self.old.is_empty() {
            return;
        }
        let oldest = oldest();
        // An acceptor that ended without a word may, against all appearances, have been slow: it is kept.
        self.old.retain(|old| !old.ended || oldest.is_some_and(|begun| begun < old.until));
    }
}
