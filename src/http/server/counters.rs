//! What the server counts for `/metrics` and `/healthz`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One number that several threads write and any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// The number as it stands.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Everything counted since the start; `connections` alone goes down again.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections open at the last look.
    pub connections: Counter,
    /// Requests that were answered 500 because answering them panicked.
    pub handler_panics: Counter,
    /// Panics on threads of the HTTP crate: each cost one connection.
    pub crate_panics: Counter,
    /// Requests whose framing is unusable: answered 400, connection closed.
    pub bad_requests: Counter,
    /// Requests answered 503 because too many were waiting.
    pub shed: Counter,
    /// Connections closed because they were silent, or sent a head too slowly, for the idle timeout.
    pub idle_closed: Counter,
    /// Connections closed because they did not take their answers.
    pub unread_closed: Counter,
    /// Connections closed because they sent more than is read: endless heads, too many requests ahead.
    pub flood_closed: Counter,
    /// Connections closed because there were more than the server holds.
    pub surplus_closed: Counter,
    /// Connections that waited for a thread and were given one.
    pub starved: Counter,
    /// Times that accepting had ended and was begun anew.
    pub accept_restarts: Counter,
    /// Connections whose declared body cannot be dropped: each costs a thread and two descriptors for good.
    pub set_aside: Counter,
}

impl Counters {
    /// Each counter with its name and what it counts, for a text exposition.
    #[must_use]
    pub fn each(&self) -> [(&'static str, &'static str, &Counter); 12] {
        [
            ("connections", "Connections open at the last look", &self.connections),
            ("handler_panics", "Requests answered 500 after a panic", &self.handler_panics),
            ("crate_panics", "Panics on threads of the HTTP crate", &self.crate_panics),
            ("bad_requests", "Requests with unusable framing", &self.bad_requests),
            ("shed", "Requests answered 503 under load", &self.shed),
            ("idle_closed", "Connections closed for silence or a slow head", &self.idle_closed),
            ("unread_closed", "Connections closed for not taking answers", &self.unread_closed),
            ("flood_closed", "Connections closed for sending too much", &self.flood_closed),
            ("surplus_closed", "Connections closed as more than are held", &self.surplus_closed),
            ("starved", "Connections that waited for a thread", &self.starved),
            ("accept_restarts", "Times that accepting was begun anew", &self.accept_restarts),
            ("set_aside", "Connections that cost a thread for good", &self.set_aside),
        ]
    }
}
