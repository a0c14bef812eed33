//! The limiter: what a program that embeds tollgate sees.
//!
//! It holds the policies, the store and the clock, and asks the store, which reads the clock once for each request. It
//! knows nothing of HTTP.

use std::sync::Arc;

use crate::algorithm::several::Several;
use crate::algorithm::sliding_window_counter::Counter;
use crate::client::ClientKey;
use crate::clock::{Clock, Now, SystemClock};
use crate::decision::Decision;
use crate::policy::{FixedWindow, Policies, Policy, Rule, SlidingWindowLog, TokenBucket};
#[cfg(feature = "redis")]
use crate::store::OnStoreError;
use crate::store::memory::MemoryStore;
use crate::store::reaper::Reaper;
#[cfg(feature = "redis")]
use crate::store::redis::{Prepared, Redis, RedisError, SharedStore};
use crate::store::{StoreCalls, StoreState};

/// The most clients whose state is kept, unless the builder is told otherwise.
const MAX_CLIENTS: usize = 1_000_000;

/// Limits how often each client may do a thing.
///
/// Any number of threads may share one, behind an `Arc` or in a `static`. Each has a reaper thread of its own, which drops
/// the state of idle clients and ends when the limiter is dropped.
///
/// ```
/// use std::net::IpAddr;
/// use std::time::Duration;
/// use tollgate::{Outcome, Policy, RateLimiter};
///
/// let limiter = RateLimiter::new(Policy::token_bucket(10, 1, Duration::from_secs(1))?);
/// let client: IpAddr = "203.0.113.7".parse()?;
///
/// match limiter.check(client).outcome() {
///     Outcome::Allowed => println!("come in"),
///     Outcome::Refused { retry_after } => println!("come back in {retry_after:?}"),
///     Outcome::Never => println!("that is more than the whole quota"),
///     Outcome::Unavailable { .. } => println!("a limiter in memory never says this"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimiter {
    policies: Policies,
    time: Time,
    memory: Memory,
    #[cfg(feature = "redis")]
    shared: Option<SharedStore>,
    /// Dropped with the limiter, which stops and joins its thread.
    _reaper: Option<Reaper>,
}

/// One store for each shape of state, so that a client costs the numbers of its algorithm and no more.
enum Memory {
    TokenBucket(Arc<MemoryStore<TokenBucket>>),
    FixedWindow(Arc<MemoryStore<FixedWindow>>),
    SlidingWindowLog(Arc<MemoryStore<SlidingWindowLog>>),
    NarrowCounter(Arc<MemoryStore<Counter<u32>>>),
    WideCounter(Arc<MemoryStore<Counter<u64>>>),
    Several(Arc<MemoryStore<Several>>),
}

/// Runs the same call on whichever store it is.
macro_rules! in_memory {
    ($memory:expr, $store:ident => $call:expr) => {
        match $memory {
            Memory::TokenBucket($store) => $call,
            Memory::FixedWindow($store) => $call,
            Memory::SlidingWindowLog($store) => $call,
            Memory::NarrowCounter($store) => $call,
            Memory::WideCounter($store) => $call,
            Memory::Several($store) => $call,
        }
    };
}

/// The clock, and which of its times the policies count by: a reading costs as much as the rest of a decision.
#[derive(Clone)]
struct Time {
    clock: Arc<dyn Clock>,
    monotonic: bool,
    wall: bool,
}

impl Time {
    fn now(&self) -> Now {
        Now { wall: if self.wall { self.clock.wall() } else { Default::default() }, ..self.monotonic() }
    }

    /// The wall clock is read as well, whatever the policies count by.
    #[cfg(feature = "server")]
    fn with_wall(&self) -> Now {
        Now { wall: self.clock.wall(), ..self.monotonic() }
    }

    fn monotonic(&self) -> Now {
        Now { monotonic: if self.monotonic { self.clock.monotonic() } else { Default::default() }, ..Now::default() }
    }
}

impl RateLimiter {
    /// A limiter in memory, on the clock of this machine, that keeps a million clients at most.
    ///
    /// Takes one [`Policy`], or several [`Policies`] that a request must pass all at once.
    ///
    /// # Panics
    /// When the system cannot start a thread for the reaper.
    #[must_use]
    pub fn new(policies: impl Into<Policies>) -> Self {
        Self::builder(policies).build()
    }

    /// A limiter with another clock or another bound on its memory.
    pub fn builder(policies: impl Into<Policies>) -> Builder {
        Builder {
            policies: policies.into(),
            clock: None,
            max_clients: MAX_CLIENTS,
            reaped: true,
            #[cfg(feature = "redis")]
            shared: None,
        }
    }

    /// Lets one request of this client in, or refuses it.
    pub fn check(&self, client: impl Into<ClientKey>) -> Decision {
        self.check_n(client, 1)
    }

    /// Lets in a request that costs `cost` units of the quota, or refuses it. A cost of 0 only looks.
    pub fn check_n(&self, client: impl Into<ClientKey>, cost: u64) -> Decision {
        self.decide(client.into(), cost, || self.time.now())
    }

    /// Asks the shared store, if there is one and it answers; else this memory, at the time that `now` tells.
    fn decide(&self, client: ClientKey, cost: u64, now: impl Fn() -> Now) -> Decision {
        #[cfg(feature = "redis")]
        if let Some(shared) = &self.shared
            && let Some(decision) = decide_shared(shared, client, cost)
        {
            return decision;
        }
        in_memory!(&self.memory, store => store.decide(client, now, cost))
    }

    /// What is left for this client. Spends nothing.
    pub fn peek(&self, client: impl Into<ClientKey>) -> Decision {
        self.check_n(client, 0)
    }

    /// Forgets this client: its next request meets the whole quota.
    ///
    /// With a shared store it is forgotten there and in this instance. Other instances that have just refused it do so until
    /// the wait that they told is over. A store that does not answer forgets nothing, which is logged.
    pub fn reset(&self, client: impl Into<ClientKey>) {
        let client = client.into();
        #[cfg(feature = "redis")]
        if let Some(shared) = &self.shared
            && !shared.reset(client)
        {
            log::warn!("a client was reset in this instance alone: the shared store does not answer");
        }
        in_memory!(&self.memory, store => store.reset(client));
    }

    /// Drops the state of every client whose whole quota is back, as the reaper does by itself about once a second.
    ///
    /// No decision changes by it. For programs that want their memory back now, and for tests with a clock set by hand.
    pub fn sweep(&self) {
        in_memory!(&self.memory, store => store.sweep(|| Some(self.time.now())));
    }

    /// The policies, in the order given.
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// Whether decisions come from the memory of this process or from a shared store, and whether that one answers.
    #[must_use]
    pub fn store_state(&self) -> StoreState {
        #[cfg(feature = "redis")]
        if let Some(shared) = &self.shared {
            return shared.state();
        }
        StoreState::Memory
    }

    /// What a shared store was asked.
    #[must_use]
    pub fn store_calls(&self) -> StoreCalls {
        #[cfg(feature = "redis")]
        if let Some(shared) = &self.shared {
            return shared.calls();
        }
        StoreCalls::default()
    }

    /// What the map of clients is doing.
    #[must_use]
    pub fn clients(&self) -> Clients {
        in_memory!(&self.memory, store => Clients {
            tracked: store.clients(),
            reaped: store.reaped(),
            evicted: store.evicted(),
        })
    }

    /// [`check`](Self::check), and the wall clock at the decision. Read any later, it would put the end of a window behind
    /// the full second on which it falls.
    #[cfg(feature = "server")]
    pub(crate) fn check_timed(&self, client: ClientKey) -> (Decision, crate::clock::Timestamp) {
        let told = std::cell::Cell::new(None);
        let decision = self.decide(client, 1, || {
            let now = self.time.with_wall();
            told.set(Some(now.wall));
            now
        });
        // A shared store tells its waits by its own clock; they count from when they came.
        (decision, told.into_inner().unwrap_or_else(|| self.time.clock.wall()))
    }
}

/// What the shared store says, or the settings while it does not answer; `None` when this memory is to be asked.
#[cfg(feature = "redis")]
fn decide_shared(shared: &SharedStore, client: ClientKey, cost: u64) -> Option<Decision> {
    shared.decide(client, cost).or_else(|| match shared.on_error() {
        OnStoreError::Local => None,
        OnStoreError::Open => Some(Decision::unasked()),
        OnStoreError::Closed => Some(Decision::unavailable()),
    })
}

/// How many clients a limiter keeps and has dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clients {
    /// Kept now. Never above the bound.
    pub tracked: usize,
    /// Dropped since the start because their whole quota was back.
    pub reaped: usize,
    /// Dropped since the start because the map was full: of a few sampled clients, the one that had spent least.
    pub evicted: usize,
}

/// Builds a [`RateLimiter`].
#[must_use]
pub struct Builder {
    policies: Policies,
    clock: Option<Arc<dyn Clock>>,
    max_clients: usize,
    reaped: bool,
    #[cfg(feature = "redis")]
    shared: Option<Prepared>,
}

impl Builder {
    /// Counts by this clock instead of the machine's. See [`ManualClock`](crate::ManualClock) for tests.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Keeps the state of at most so many clients; 0 counts as 1.
    ///
    /// When the map is full, a new client takes the place of the one that has spent least of its quota, of eight sampled ones;
    /// of those that have spent as much, the one whose whole quota is back first. That client starts afresh if it comes again.
    /// So a flood of clients that come once drives out its like, and nobody who has spent more.
    pub fn max_clients(mut self, max_clients: usize) -> Self {
        self.max_clients = max_clients;
        self
    }

    /// Keeps every client for good, without a bound and without a reaper.
    ///
    /// For recorded traffic: its time may go back, to where a state that was dropped would have counted.
    #[cfg(feature = "server")]
    pub(crate) fn keep_all(mut self) -> Self {
        (self.max_clients, self.reaped) = (usize::MAX, false);
        self
    }

    /// Shares one limit with every limiter that has the same store, key prefix and policies.
    ///
    /// The store's own clock counts then, for all algorithms. This clock and this memory serve while it does not answer, if
    /// the settings say so. Whether it answers now makes no difference here.
    ///
    /// # Errors
    /// When the store could not count a policy exactly, or TLS finds no certificate to trust.
    #[cfg(feature = "redis")]
    pub fn shared(mut self, redis: Redis) -> Result<Self, RedisError> {
        self.shared = Some(Prepared::new(redis, &self.policies)?);
        Ok(self)
    }

    /// The limiter. With a shared store this takes two seconds at most, spent on names and on the map of a cluster.
    ///
    /// # Panics
    /// When the system cannot start a thread for the reaper, or for the shared store.
    #[must_use]
    pub fn build(self) -> RateLimiter {
        let Self { policies, clock, max_clients, reaped, .. } = self;
        let wall = |policy: &Policy| matches!(policy.rule(), Rule::FixedWindow(_) | Rule::SlidingWindowCounter(_));
        let time = Time {
            clock: clock.unwrap_or_else(|| Arc::new(SystemClock::new())),
            monotonic: !policies.iter().all(wall),
            wall: policies.iter().any(wall),
        };
        let memory = match &*policies {
            [policy] => match policy.rule() {
                Rule::TokenBucket(bucket) => Memory::TokenBucket(Arc::new(MemoryStore::new(bucket, max_clients))),
                Rule::FixedWindow(window) => Memory::FixedWindow(Arc::new(MemoryStore::new(window, max_clients))),
                Rule::SlidingWindowLog(log) => Memory::SlidingWindowLog(Arc::new(MemoryStore::new(log, max_clients))),
                Rule::SlidingWindowCounter(counter) => match Counter::narrow(counter) {
                    Some(narrow) => Memory::NarrowCounter(Arc::new(MemoryStore::new(narrow, max_clients))),
                    None => Memory::WideCounter(Arc::new(MemoryStore::new(Counter::wide(counter), max_clients))),
                },
            },
            several => Memory::Several(Arc::new(MemoryStore::new(Several::new(several), max_clients))),
        };
        let reaper = reaped.then(|| {
            let time = time.clone();
            in_memory!(&memory, store => Reaper::start(Arc::clone(store), move || time.now()))
        });
        RateLimiter {
            policies,
            time,
            memory,
            #[cfg(feature = "redis")]
            shared: self.shared.map(SharedStore::start),
            _reaper: reaper,
        }
    }
}
