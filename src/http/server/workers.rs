//! Who pulls requests and who answers them.
//!
//! The workers take turns: one holds the turn and waits for a request, the others wait for the turn. So requests enter
//! the table in the order received, which their answers' order hangs on. A worker that got a request gives the turn away
//! and answers. While all workers are busy nobody has the turn; then the watch takes it for a moment, so that the crate's
//! unbounded queue is emptied into bounded ones: requests that cannot be answered soon are shed by the clerk.
//!
//! Requests that were sent ahead of an answer have one thread of their own, which makes way for all others: who waits for
//! each answer is served first, and who sends without reading fills his own bound.

use std::io;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use tiny_http::Request;

use super::answer::{self, Answer};
use super::clerk::Errand;
use super::framing::Framing;
use super::room::{Due, Ready, Room, Slot};
use super::sockets::peer;
use super::table::{Admission, Next};

/// Requests that may wait for a worker, each of another connection. More are answered 503.
const MAX_READY: usize = 1024;

/// How long a request may wait for a worker before it is answered 503: a client is better served by a quick refusal.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// A body up to this long is waited for on a thread of its own, so that the answer is an ordinary one. The crate
/// allocates and clears the whole rest again for each packet of a body that it drops: at this size that is nothing.
const WAITED_BODY: u64 = 64 * 1024;

/// Bodies waited for at a time.
const MAX_WAITS: usize = 64;

impl Room {
    /// A worker's life.
    pub(super) fn work(self: &Arc<Self>, number: usize) {
        let mut at_hand = None;
        while let Some((peer, request)) = at_hand.take().or_else(|| self.next()) {
            at_hand = match self.answer_guarded(peer, request, &self.slots.workers[number]) {
                Some(Next { request, ahead: false }) => self.put_back((peer, request)),
                Some(Next { request, ahead: true }) => {
                    self.send_ahead(Some((peer, request)));
                    None
                }
                None => None,
            };
        }
    }

    /// Lets those go first who have waited longer. Gives the request back while another worker is free to serve them.
    fn put_back(&self, due: Due) -> Option<Due> {
        let Some(mut ready) = self.free_turn() else { return Some(due) };
        self.take_in(&mut ready);
        ready.push_back((Instant::now(), due));
        None
    }

    /// The life of the thread for requests that were sent ahead.
    pub(super) fn work_ahead(self: &Arc<Self>) {
        while let Ok(Some((peer, request))) = self.ahead.1.recv() {
            // When the processors are busy, everybody else comes first.
            thread::yield_now();
            if let Some(next) = self.answer_guarded(peer, request, &self.slots.ahead) {
                self.send_ahead(Some((peer, next.request)));
            }
        }
    }

    /// Answers, and gives the next request of the connection. The crate may panic while it drops what it holds; that must
    /// not cost a thread.
    fn answer_guarded(self: &Arc<Self>, peer: SocketAddr, request: Request, slot: &Slot) -> Option<Next> {
        let answered = panic::catch_unwind(AssertUnwindSafe(|| self.answer(peer, request, slot)));
        let next = self.table.done(peer);
        if answered.is_ok() {
            return next;
        }
        self.table.cut(peer);
        self.wake();
        self.abandon(peer, next.map(|next| next.request));
        None
    }

    /// Lets go of a request and those of its connection that wait behind it, unanswered. In their order: the crate makes each
    /// wait for the one before.
    pub(super) fn abandon(&self, peer: SocketAddr, first: Option<Request>) {
        let mut next = first;
        while let Some(request) = next {
            self.discard(peer, request);
            next = self.table.done(peer).map(|next| next.request);
        }
    }

    /// Lets go of the requests that came too late, when no thread takes any more.
    pub(super) fn abandon_all(&self) {
        for (peer, request) in self.ahead.1.try_iter().flatten() {
            self.abandon(peer, Some(request));
        }
        let http = Arc::clone(&self.http.lock());
        while let Ok(Some(request)) = http.try_recv() {
            if let Some((peer, request)) = self.admit(request) {
                self.abandon(peer, Some(request));
            }
        }
    }

    /// Answers a request and those of its connection that wait behind it.
    pub(super) fn answer_all(self: &Arc<Self>, peer: SocketAddr, request: Request, slot: &Slot) {
        let mut next = Some(request);
        while let Some(request) = next {
            self.answer(peer, request, slot);
            next = self.table.done(peer).map(|next| next.request);
        }
    }

    /// Waits for a request whose turn it is. `None` when the server has stopped.
    fn next(&self) -> Option<Due> {
        let mut ready = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some((_, due)) = ready.pop_front() {
                return Some(due);
            }
            if self.stopped.load(Ordering::Acquire) {
                return None;
            }
            let http = Arc::clone(&self.http.lock());
            match http.recv() {
                Ok(request) => {
                    if let Some(found) = self.admit(request) {
                        return Some(found);
                    }
                }
                Err(error) => self.recv_failed(&http, &error),
            }
        }
    }

    /// `recv` fails when we woke it, and once when accepting has ended.
    fn recv_failed(&self, http: &Arc<tiny_http::Server>, error: &io::Error) {
        let woken = error.kind() == io::ErrorKind::Other;
        if !woken && !self.stopping() && Arc::ptr_eq(http, &self.http.lock()) {
            // The restarts that follow are counted.
            let level = if self.counters.accept_restarts.get() == 0 { log::Level::Warn } else { log::Level::Debug };
            log::log!(level, "accepting connections failed: {error}");
            self.deaf.store(true, Ordering::Release);
            self.wake();
        }
    }

    /// Gives the request back when it is to be answered now.
    fn admit(&self, request: Request) -> Option<Due> {
        let Some(peer) = request.remote_addr().copied().map(peer) else {
            unreachable!("a TCP connection has a peer, and the listener is TCP")
        };
        match self.table.admit(peer, request) {
            Admission::Answer(request) => return Some((peer, request)),
            Admission::Waits => {}
            Admission::Drop(request) => self.discard(peer, request),
            Admission::Overflow(request) => {
                self.counters.flood_closed.add(1);
                self.wake();
                self.discard(peer, request);
            }
        }
        None
    }

    /// Empties the crate's queue while no worker has the turn, and sheds what has waited too long.
    pub(super) fn drain(&self) {
        let mut late = Vec::new();
        {
            let Some(mut ready) = self.free_turn() else { return };
            self.take_in(&mut ready);
            let now = Instant::now();
            while ready.len() > MAX_READY {
                late.extend(ready.pop_back());
            }
            while ready.front().is_some_and(|(since, _)| now.duration_since(*since) > MAX_WAIT) {
                late.extend(ready.pop_front());
            }
        }
        for (_, (peer, request)) in late {
            self.send(Errand::Shed(peer, request));
        }
    }

    /// The turn, if nobody has it.
    fn free_turn(&self) -> Option<MutexGuard<'_, Ready>> {
        match self.turn.try_lock() {
            Ok(ready) => Some(ready),
            Err(TryLockError::Poisoned(ready)) => Some(ready.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes in all that is in the crate's queue.
    fn take_in(&self, ready: &mut Ready) {
        let http = Arc::clone(&self.http.lock());
        let now = Instant::now();
        loop {
            match http.try_recv() {
                Ok(Some(request)) => ready.extend(self.admit(request).map(|due| (now, due))),
                Ok(None) => return,
                Err(error) => self.recv_failed(&http, &error),
            }
        }
    }

    /// Takes in what came in on connections of a server that accepts no more.
    pub(super) fn drain_old(&self, http: &Arc<tiny_http::Server>) {
        while let Ok(Some(request)) = http.try_recv() {
            if let Some((peer, request)) = self.admit(request) {
                self.send(Errand::Answer(peer, request));
            }
        }
        // The worker with the turn may still wait there, and we may just have taken the word that was to wake it.
        if Arc::strong_count(http) > 1 {
            http.unblock();
        }
    }

    pub(super) fn discard(&self, peer: SocketAddr, request: Request) {
        if let Some(rest) = answer::discard(request) {
            self.keep(peer, rest);
        }
    }

    fn answer(self: &Arc<Self>, peer: SocketAddr, request: Request, slot: &Slot) {
        if !self.table.answering(peer) {
            return self.discard(peer, request);
        }
        let framing = Framing::of(request.headers());
        let answer = answer::decide(&request, framing, &self.handler);
        if answer.panicked {
            self.counters.handler_panics.add(1);
        }
        if let Some(reason) = answer.refused {
            self.counters.bad_requests.add(1);
            log::debug!("{peer}: bad request: {reason}");
        }
        self.write(peer, request, answer, slot);
    }

    pub(super) fn write(self: &Arc<Self>, peer: SocketAddr, request: Request, answer: Answer, slot: &Slot) {
        slot.begin(peer);
        if answer.last {
            self.write_last(peer, request, answer);
        } else {
            answer::write(request, answer);
        }
        slot.end();
    }

    fn write_last(self: &Arc<Self>, peer: SocketAddr, request: Request, answer: Answer) {
        // Before the answer is out: what the crate reads from here on is no request.
        self.table.close(peer);
        let body = answer::unread_body(&request);
        let (request, answer) = if body > 0 && body <= WAITED_BODY {
            match self.wait_for_body(peer, request, answer) {
                None => return,
                Some(back) => back,
            }
        } else {
            (request, answer)
        };
        let rest = answer::write_last(request, answer);
        self.table.closing(peer);
        self.keep(peer, rest);
        self.wake();
    }

    /// Answers on a thread of its own, which ends when the body has come or the socket is shut. Gives both back when
    /// there are too many such threads.
    fn wait_for_body(
        self: &Arc<Self>,
        peer: SocketAddr,
        request: Request,
        answer: Answer,
    ) -> Option<(Request, Answer)> {
        let mut waits = self.waits.lock();
        waits.retain(|wait| !wait.is_finished());
        if waits.len() >= MAX_WAITS {
            return Some((request, answer));
        }
        self.table.closing(peer);
        let wait = thread::Builder::new().name("body".into()).spawn(move || answer::write_and_wait(request, answer));
        match wait {
            Ok(wait) => waits.push(wait),
            // The request is gone with the thread that was not to be had: it was answered 500.
            Err(error) => log::warn!("no thread to wait for a body: {error}"),
        }
        drop(waits);
        self.wake();
        None
    }
}
