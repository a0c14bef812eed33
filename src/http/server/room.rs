//! What the threads of a server share, and the words they give each other.

use std::collections::VecDeque;
use std::mem;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{self, Arc};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use tiny_http::Request;

use super::Handler;
use super::answer::Rest;
use super::clerk::{Errand, MAX_ERRANDS};
use super::table::Table;
use crate::http::metrics::Counters;

/// Connections that are left to their clients after their last answer, at a time; each has a thread of the crate.
pub(super) const MAX_LINGERING: usize = 256;

/// What a thread that answers is at, for the watch.
#[derive(Default)]
pub(super) struct Slot(Mutex<Option<(SocketAddr, Instant)>>);

impl Slot {
    /// Whom it has been writing to, and since when.
    pub(super) fn writing(&self) -> Option<(SocketAddr, Instant)> {
        *self.0.lock()
    }

    pub(super) fn begin(&self, peer: SocketAddr) {
        *self.0.lock() = Some((peer, Instant::now()));
    }

    pub(super) fn end(&self) {
        *self.0.lock() = None;
    }
}

/// One for each thread that answers.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) workers: Box<[Slot]>,
    pub(super) ahead: Slot,
    pub(super) clerk: Slot,
}

/// A request whose turn has come on its connection.
pub(super) type Due = (SocketAddr, Request);

/// Those that found no worker, with the time since when.
pub(super) type Ready = VecDeque<(Instant, Due)>;

/// What the threads of a server share.
pub(super) struct Room {
    pub(super) table: Table,
    pub(super) counters: Arc<Counters>,
    pub(super) slots: Slots,
    pub(super) handler: Handler,
    /// Of the standard library, whose waiters sleep at once. Those of parking_lot yield the processor a few times before, and
    /// the kernel serves a thread that yields last: the slowest percent of answers took half as long again.
    pub(super) turn: sync::Mutex<Ready>,
    /// Requests sent ahead, one a connection; `None` is the last.
    pub(super) ahead: (Sender<Option<Due>>, Receiver<Option<Due>>),
    /// The crate's server that accepts now; it is replaced when its acceptor has died.
    pub(super) http: Mutex<Arc<tiny_http::Server>>,
    /// Accepting has failed with an error.
    pub(super) deaf: AtomicBool,
    stopping: AtomicBool,
    /// The workers are to end.
    pub(super) stopped: AtomicBool,
    pub(super) errands: (Sender<Errand>, Receiver<Errand>),
    /// What is kept of connections until their sockets are shut: then the watch hands it to the clerk.
    pub(super) rests: Mutex<Vec<(SocketAddr, Instant, Rest)>>,
    /// Threads that wait for small bodies.
    pub(super) waits: Mutex<Vec<JoinHandle<()>>>,
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
            slots: Slots { workers: (0..workers).map(|_| Slot::default()).collect(), ..Slots::default() },
            handler,
            turn: sync::Mutex::default(),
            ahead: crossbeam_channel::unbounded(),
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

    pub(super) fn keep(&self, peer: SocketAddr, rest: Rest) {
        let mut rests = self.rests.lock();
        // Past the bound the crate may read on, and ends as soon as the client closes. Requests that it finds are dropped.
        if rests.len() < MAX_LINGERING || !matches!(rest, Rest::Writer(_)) {
            rests.push((peer, Instant::now(), rest));
        }
    }

    pub(super) fn send_ahead(&self, word: Option<Due>) {
        // The room has both ends of the channel.
        let _ = self.ahead.0.send(word);
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
        self.send_ahead(None);
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
