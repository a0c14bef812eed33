//! What the service counts. Counting is an atomic addition, on no lock; `exposition` does the rest when somebody asks.

mod exposition;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub(super) use exposition::{CONTENT_TYPE, exposition};

use super::identity::Found;
use super::routes::Route;
use crate::decision::{Decision, Outcome};
use crate::policy::Policy;
use crate::store::latency::Latency;

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

/// What the server counts of its connections since the start; `connections` and `lost` alone go down again.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections open at the last look.
    pub connections: Counter,
    /// Connections that hang in the HTTP crate and hold a thread and two descriptors for good, at the last look.
    pub lost: Counter,
    /// Requests that were answered 500 because answering them panicked.
    pub handler_panics: Counter,
    /// Panics on threads of the HTTP crate: each cost one connection.
    pub crate_panics: Counter,
    /// Requests whose framing is unusable: answered 400, connection closed.
    pub bad_requests: Counter,
    /// Requests answered 503, or dropped, because too many were waiting.
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
    /// Connections whose declared body cannot be dropped: each is lost.
    pub set_aside: Counter,
}

/// The statuses of all answers.
const STATUSES: [u16; 8] = [200, 400, 403, 404, 405, 429, 500, 503];

/// What the routes count of the requests that they answer.
pub(super) struct Traffic {
    /// By route, the last row for requests that have none, and by status.
    requests: [[Counter; STATUSES.len()]; Route::ALL.len() + 1],
    /// In the order of the policies.
    decided: Vec<Decided>,
    /// Decided without knowing what the client has spent.
    unasked: Counter,
    unavailable: Counter,
    latency: Latency,
    found: [Counter; FOUND.len()],
}

/// How one policy decided.
#[derive(Default)]
struct Decided {
    allowed: Counter,
    refused: Counter,
}

/// How clients are found, as a label tells it.
const FOUND: [&str; 4] = ["api_key", "header", "peer", "fallback"];

impl Traffic {
    pub(super) fn new(policies: &[Policy]) -> Self {
        Self {
            requests: Default::default(),
            decided: policies.iter().map(|_| Decided::default()).collect(),
            unasked: Counter::default(),
            unavailable: Counter::default(),
            latency: Latency::default(),
            found: Default::default(),
        }
    }

    pub(super) fn answered(&self, route: Option<Route>, status: u16) {
        let row = &self.requests[route.map_or(Route::ALL.len(), |route| route as usize)];
        if let Some(column) = STATUSES.iter().position(|&known| known == status) {
            row[column].add(1);
        }
    }

    pub(super) fn decided(&self, decision: &Decision, took: Duration) {
        self.latency.count(took);
        if decision.verdicts().is_empty() {
            let counter = if decision.is_allowed() { &self.unasked } else { &self.unavailable };
            counter.add(1);
        }
        for (verdict, decided) in decision.verdicts().iter().zip(&self.decided) {
            let counter = if verdict.outcome() == Outcome::Allowed { &decided.allowed } else { &decided.refused };
            counter.add(1);
        }
    }

    pub(super) fn identified(&self, found: Found) {
        let index = match found {
            Found::ApiKey => 0,
            Found::Header => 1,
            Found::Peer { .. } => 2,
            Found::Fallback(_) => 3,
        };
        self.found[index].add(1);
    }
}
