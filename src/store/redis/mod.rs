//! Shared mode: one limit for many instances, in Redis.
//!
//! A decision is one script call inside the server: ask all policies, then spend in all of them or in none. The server's
//! clock is the only one. A request waits for it by a deadline, and not at all while it is known to be down; what happens
//! then is the limiter's business.
//!
//! | file | job |
//! |---|---|
//! | `settings` | what the user says, checked |
//! | `script`, `lua/` | the question and the meaning of the reply |
//! | `connection` | one call, by a deadline |
//! | `node` | the connections to one server, and its breaker |
//! | `cluster` | which server to ask |
//! | `keeper` | the thread for what no request waits for |
//! | `refusals` | what need not be asked again |

mod cluster;
mod connection;
mod keeper;
mod node;
mod refusals;
mod script;
mod settings;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cluster::Servers;
use connection::{Dialer, Failure};
use keeper::{Bell, Keeper};
use refusals::Refusals;
use script::{Script, tag};
pub use settings::{Redis, RedisError};

use super::latency::Latency;
use super::{OnStoreError, StoreCalls, StoreState};
use crate::client::ClientKey;
use crate::clock::Clock;
use crate::decision::Decision;
use crate::policy::Policy;

/// The store that instances share.
pub(crate) struct SharedStore {
    inner: Arc<Inner>,
    on_error: OnStoreError,
    timeout: Duration,
    clock: Option<Arc<dyn Clock>>,
    answered: AtomicU64,
    failed: AtomicU64,
    repeated: AtomicU64,
    latency: Latency,
    /// Dropped with the store, which stops its thread.
    _keeper: Keeper,
}

/// What the keeper works on as well.
struct Inner {
    script: Script,
    servers: Servers,
    refusals: Refusals,
    bell: Arc<Bell>,
}

/// Settings that are known to suit the policies.
pub(crate) struct Prepared {
    settings: Redis,
    script: Script,
    dialer: Dialer,
}

impl Prepared {
    /// # Errors
    /// When a script could not count a policy exactly, or TLS has no certificates to trust.
    pub(crate) fn new(settings: Redis, policies: &[Policy]) -> Result<Self, RedisError> {
        let script = Script::new(policies, &settings.prefix)?;
        let dialer = Dialer::new(settings.access.clone())?;
        Ok(Self { settings, script, dialer })
    }
}

impl SharedStore {
    /// Starts to look after the store, which may be down. Waits a bounded time for names and the map of a cluster.
    ///
    /// # Panics
    /// When the system cannot start a thread.
    pub(crate) fn start(Prepared { settings, script, dialer }: Prepared) -> Self {
        let bell = Arc::new(Bell::new(settings.on_error));
        let servers = Servers::new(&settings, dialer, &bell);
        let inner = Arc::new(Inner { script, servers, refusals: Refusals::new(), bell: Arc::clone(&bell) });
        let keeper = {
            let (inner, timeout, mut first) = (Arc::clone(&inner), settings.timeout, true);
            Keeper::start(bell, move || {
                if std::mem::take(&mut first) {
                    inner.servers.resolve();
                }
                inner.round(timeout)
            })
        };
        Self {
            inner,
            on_error: settings.on_error,
            timeout: settings.timeout,
            clock: settings.clock,
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            latency: Latency::default(),
            _keeper: keeper,
        }
    }

    /// Asks, and spends if allowed, in one step; `None` when the store does not answer.
    pub(crate) fn decide(&self, client: ClientKey, cost: u64) -> Option<Decision> {
        let Inner { refusals, bell, .. } = &*self.inner;
        let sent = match refusals.repeat(client, cost, bell.breaks()) {
            Ok(refusal) => {
                self.repeated.fetch_add(1, Ordering::Relaxed);
                return Some(refusal);
            }
            Err(sent) => sent,
        };
        let begun = Instant::now();
        let asked = self.ask(client, cost, begun + self.timeout);
        self.latency.count(begun.elapsed());
        let counter = if asked.is_ok() { &self.answered } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        // Whatever the failure: the node's breaker and the log know of it.
        let decision = asked.ok()?;
        if self.clock.is_none() {
            refusals.keep(client, cost, &sent, bell.breaks(), &decision);
        }
        Some(decision)
    }

    fn ask(&self, client: ClientKey, cost: u64, deadline: Instant) -> Result<Decision, Failure> {
        let (tag, script) = (tag(client), &self.inner.script);
        let now = self.clock.as_ref().map(|clock| clock.wall());
        let short = script.call(&tag, now, cost);
        self.inner.servers.talk(&tag, deadline, |connection| {
            let reply = match connection.call(&short, deadline) {
                // Nothing was done: the one thing that may be sent again.
                Err(unknown) if unknown.is("NOSCRIPT") => {
                    connection.call(&script.call_in_full(&tag, now, cost), deadline)
                }
                other => other,
            }?;
            script.decision(&reply).ok_or(Failure::Reply)
        })
    }

    /// Forgets a client, here and in the store; false when the store does not answer.
    pub(crate) fn reset(&self, client: ClientKey) -> bool {
        let (tag, deadline) = (tag(client), Instant::now() + self.timeout);
        let command = self.inner.script.forget(&tag);
        let gone = self.inner.servers.talk(&tag, deadline, |connection| connection.call(&command, deadline));
        self.inner.refusals.forget(client);
        gone.is_ok()
    }

    /// What to do while the store does not answer.
    pub(crate) fn on_error(&self) -> OnStoreError {
        self.on_error
    }

    pub(crate) fn state(&self) -> StoreState {
        if self.inner.servers.all_up() { StoreState::Up } else { StoreState::Down(self.on_error) }
    }

    pub(crate) fn calls(&self) -> StoreCalls {
        StoreCalls {
            answered: self.answered.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            repeated: self.repeated.load(Ordering::Relaxed),
            latencies: self.latency.counted(),
        }
    }
}

impl Inner {
    /// What the keeper does each time. True while something is wrong.
    fn round(&self, timeout: Duration) -> bool {
        let mapped = self.servers.refresh_if_due(timeout);
        let clustered = self.servers.is_cluster();
        for node in self.servers.nodes() {
            node.ping_if_due(timeout);
            node.probe_if_due(&self.script, timeout, clustered);
        }
        self.refusals.sweep();
        !mapped || !self.servers.all_up()
    }
}
