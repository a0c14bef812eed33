//! Who pulls requests and who answers them.
//!
//! The workers take turns: one holds the turn and waits for a request, the others wait for the turn. So requests enter
//! the table in the order received, which their answers' order hangs on. A worker that got a request gives the turn away
//! and answers. While all workers are busy nobody has the turn; then the watch takes it for a moment, so that the crate's
//! unbounded queue is emptied into bounded ones: requests that cannot be answered soon are shed by the clerk.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, mem};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use tiny_http::Request;

use super::Handler;
use super::answer::{self, Answer, Rest};
use super::clerk::{Errand, MAX_ERRANDS};
use super::framing::Framing;
use super::sockets::peer;
use super::table::{Admission, Table, Trust};
use crate::http::metrics::Counters;

/// Requests that may wait for a worker, each of another connection. More are answered 503.
const MAX_READY: usize = 1024;

/// How long a request may wait for a worker before it is answered 503: a client is better served by a quick refusal.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// A body up to this long is waited for on a thread of its own, so that the answer is an ordinary one. The crate
/// allocates and clears the whole rest again for each packet of a body that it drops: at this size that is nothing.
const WAITED_BODY: u64 = 64 * 1024;

/// Bodies waited for at a time.
const MAX_WAITS: usize = 64;

/// What a thread that answers is at, for the watch.
#[derive(Default)]
pub(super) struct Slot(Mutex<Option<(SocketAddr, Instant)>>);

impl Slot {
    /// Whom it has been writing to, and since when.
    pub(super) fn writing(&self) -> Option<(SocketAddr, Instant)> {
        *self.0.lock()
    }
}

#[derive(Default)]
struct Turn {
    /// Requests whose turn has come on their connection, for the next free worker.
    ready: VecDeque<(Instant, SocketAddr, Request)>,
    /// The same of connections that send ahead, one each. They come last: who waits for each answer is served first.
    ahead: VecDeque<(SocketAddr, Request)>,
}

/// What the threads of a server share.
pub(super) struct Room {
    pub(super) table: Table,
    pub(super) counters: Arc<Counters>,
    /// One a worker, and the clerk's last.
    pub(super) slots: Vec<Slot>,
    handler: Handler,
    turn: Mutex<Turn>,
    /// The crate's server that accepts now; it is replaced when its acceptor has died.
    http: Mutex<Arc<tiny_http::Server>>,
    /// Accepting has failed with an error.
    pub(super) deaf: AtomicBool,
    stopping: AtomicBool,
    stopped: AtomicBool,
    pub(super) errands: (Sender<Errand>, Receiver<Errand>),
    /// What is kept of connections until their sockets are shut: then the watch hands it to the clerk.
    pub(super) rests: Mutex<Vec<(SocketAddr, Instant, Rest)>>,
    /// Threads that wait for small bodies.
    waits: Mutex<Vec<JoinHandle<()>>>,
    /// A word to the owner that the server is of no more use.
    pub(super) exhausted: (Sender<()>, Receiver<()>),
    /// A word to the watch not to wait for its next look.
    pub(super) wake: (Sender<()>, Receiver<()>),
}

impl Room {
    pub(super) fn new(http: tiny_http::Server, handler: Handler, counters: Arc<Counters>, workers: usize) -> Self {
        Self {
            table: Table::default(),
            counters,
            slots: (0..=workers).map(|_| Slot::default()).collect(),
            handler,
            turn: Mutex::default(),
            http: Mutex::new(Arc::new(http)),
            deaf: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            errands: crossbeam_channel::bounded(MAX_ERRANDS),
            rests: Mutex::new(Vec::new()),
            waits: Mutex::new(Vec::new()),
            exhausted: crossbeam_channel::bounded(1),
            wake: crossbeam_channel::bounded(1),
        }
    }

    /// A worker's life.
    pub(super) fn work(self: &Arc<Self>, number: usize) {
        let mut at_hand = None;
        while let Some((peer, request)) = at_hand.take().or_else(|| self.next()) {
            // The crate may panic while it drops what it holds; that must not cost a worker.
            let answered = panic::catch_unwind(AssertUnwindSafe(|| self.answer(peer, request, &self.slots[number])));
            let next = self.table.done(peer);
            if answered.is_ok() {
                at_hand = next.and_then(|request| self.put_back(peer, request));
            } else {
                self.table.cut(peer);
                self.wake();
                self.abandon(peer, next);
            }
        }
    }

    /// Lets go of a request and those of its connection that wait behind it, unanswered. In their order: the crate makes each
    /// wait for the one before.
    pub(super) fn abandon(&self, peer: SocketAddr, first: Option<Request>) {
        let mut next = first;
        while let Some(request) = next {
            self.discard(peer, request);
            next = self.table.done(peer);
        }
    }

    /// Lets others go before a request that was sent ahead. Gives it back while a worker is free to serve them.
    fn put_back(&self, peer: SocketAddr, request: Request) -> Option<(SocketAddr, Request)> {
        let Some(mut turn) = self.turn.try_lock() else { return Some((peer, request)) };
        turn.ahead.push_back((peer, request));
        None
    }

    /// Answers a request and those of its connection that wait behind it.
    pub(super) fn answer_all(self: &Arc<Self>, peer: SocketAddr, request: Request, slot: &Slot) {
        let mut next = Some(request);
        while let Some(request) = next {
            self.answer(peer, request, slot);
            next = self.table.done(peer);
        }
    }

    /// Waits for a request whose turn it is. `None` when the server has stopped.
    fn next(&self) -> Option<(SocketAddr, Request)> {
        let mut turn = self.turn.lock();
        loop {
            if let Some((_, peer, request)) = turn.ready.pop_front() {
                return Some((peer, request));
            }
            if self.stopped.load(Ordering::Acquire) {
                for (peer, request) in mem::take(&mut turn.ahead) {
                    self.abandon(peer, Some(request));
                }
                return None;
            }
            let http = Arc::clone(&self.http.lock());
            // Nobody can put one back meanwhile: that takes the turn.
            let received = if turn.ahead.is_empty() { http.recv().map(Some) } else { http.try_recv() };
            match received {
                Ok(Some(request)) => {
                    if let Some(found) = self.admit(request) {
                        return Some(found);
                    }
                }
                Ok(None) => return turn.ahead.pop_front(),
                Err(error) => self.recv_failed(&http, &error),
            }
        }
    }

    /// `recv` fails when we woke it, and once when accepting has ended.
    fn recv_failed(&self, http: &Arc<tiny_http::Server>, error: &io::Error) {
        let woken = error.kind() == io::ErrorKind::Other;
        if !woken && !self.stopping() && Arc::ptr_eq(http, &self.http.lock()) {
            log::warn!("accepting connections failed: {error}");
            self.deaf.store(true, Ordering::Release);
            self.wake();
        }
    }

    /// Gives the request back when it is to be answered now.
    fn admit(&self, request: Request) -> Option<(SocketAddr, Request)> {
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
            let Some(mut turn) = self.turn.try_lock() else { return };
            let http = Arc::clone(&self.http.lock());
            let now = Instant::now();
            loop {
                match http.try_recv() {
                    Ok(Some(request)) => {
                        if let Some((peer, request)) = self.admit(request) {
                            turn.ready.push_back((now, peer, request));
                        }
                    }
                    Ok(None) => break,
                    Err(error) => self.recv_failed(&http, &error),
                }
            }
            while turn.ready.len() > MAX_READY {
                late.extend(turn.ready.pop_back());
            }
            while turn.ready.front().is_some_and(|(since, ..)| now.duration_since(*since) > MAX_WAIT) {
                late.extend(turn.ready.pop_front());
            }
        }
        for (_, peer, request) in late {
            self.send(Errand::Shed(peer, request));
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

    fn keep(&self, peer: SocketAddr, rest: Rest) {
        self.rests.lock().push((peer, Instant::now(), rest));
    }

    pub(super) fn discard(&self, peer: SocketAddr, request: Request) {
        if let Some(rest) = answer::discard(request) {
            self.keep(peer, rest);
        }
    }

    fn answer(self: &Arc<Self>, peer: SocketAddr, request: Request, slot: &Slot) {
        if self.table.trust(peer) != Trust::Open {
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
        *slot.0.lock() = Some((peer, Instant::now()));
        if answer.last {
            self.write_last(peer, request, answer);
        } else {
            answer::write(request, answer);
        }
        *slot.0.lock() = None;
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

    pub(super) fn wake(&self) {
        // A full channel has a word for the watch already.
        let _ = self.wake.0.try_send(());
    }

    pub(super) fn give_up(&self) {
        // A full channel has said so already.
        let _ = self.exhausted.0.try_send(());
    }

    pub(super) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Asks for an orderly end; the watch brings it about.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// Ends the workers and the clerk. Requests that are still in the crate's queue are not answered.
    pub(super) fn end(&self) {
        self.stopped.store(true, Ordering::Release);
        // One worker has the turn; the others see the flag when they get it.
        self.http.lock().unblock();
        let _ = self.errands.0.send(Errand::End);
    }

    pub(super) fn join_waits(&self) {
        for wait in mem::take(&mut *self.waits.lock()) {
            let _ = wait.join();
        }
    }

    /// From now on another server of the crate accepts. Gives the old one, for its live connections.
    pub(super) fn replace(&self, http: tiny_http::Server) -> Arc<tiny_http::Server> {
        let old = mem::replace(&mut *self.http.lock(), Arc::new(http));
        // The worker with the turn waits on the old one.
        old.unblock();
        self.deaf.store(false, Ordering::Release);
        old
    }
}
