//! The keeper: the thread that does what no request should wait for. It looks names up, pings, probes servers that are down,
//! learns the map of a cluster, and sweeps the refusals.
//!
//! It decides nothing about a request. One thread is enough: a probe ends at the timeout of a decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use log::{info, warn};
use parking_lot::{Condvar, Mutex};

use super::connection::Failure;
use super::node::{FIRST_PAUSE, PING_EVERY};
use super::settings::Address;
use crate::store::OnStoreError;

/// The longest that the making of a limiter waits for names and for the map of a cluster, so that its first requests find
/// the store, and that its end waits for the keeper's.
const PATIENCE: Duration = Duration::from_secs(2);

/// What nodes and requests tell the keeper.
pub(super) struct Bell {
    on_error: OnStoreError,
    breaks: AtomicU64,
    state: Mutex<Rung>,
    rung: Condvar,
}

#[derive(Default)]
struct Rung {
    wake: bool,
    stop: bool,
    first_round_done: bool,
    ended: bool,
}

impl Bell {
    pub(super) fn new(on_error: OnStoreError) -> Self {
        Self { on_error, breaks: AtomicU64::new(0), state: Mutex::default(), rung: Condvar::new() }
    }

    /// A server has just stopped to answer.
    pub(super) fn outage(&self, address: &Address, failure: &Failure) {
        let meanwhile = match self.on_error {
            OnStoreError::Local => "this instance counts by itself",
            OnStoreError::Open => "everybody is let in",
            OnStoreError::Closed => "nobody is let in",
        };
        self.broken();
        warn!("the store at {address} is down, and until it is back {meanwhile}: {failure}");
        self.ring();
    }

    /// A server answers again.
    pub(super) fn recovery(&self, address: &Address, after: Duration) {
        info!("the store at {address} is back after {} ms", after.as_millis());
    }

    /// A connection was cut: the server may have been away and back, without what it knew.
    pub(super) fn broken(&self) {
        self.breaks.fetch_add(1, Ordering::Release);
    }

    /// How often connections broke. What was known of a store before may not hold after it.
    pub(super) fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Acquire)
    }

    /// Ends the keeper's pause.
    pub(super) fn ring(&self) {
        self.state.lock().wake = true;
        self.rung.notify_all();
    }
}

/// The thread. Dropping it stops it.
pub(super) struct Keeper {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Does `round` again and again, with pauses; it is true while something is wrong and the next should come soon. Returns
    /// when the first is done, or takes too long.
    ///
    /// # Panics
    /// When the system cannot start a thread.
    pub(super) fn start(bell: Arc<Bell>, mut round: impl FnMut() -> bool + Send + 'static) -> Self {
        let run = {
            let bell = Arc::clone(&bell);
            move || {
                loop {
                    let pause = if round() { FIRST_PAUSE } else { PING_EVERY };
                    let mut rung = bell.state.lock();
                    rung.first_round_done = true;
                    bell.rung.notify_all();
                    if !rung.wake && !rung.stop {
                        bell.rung.wait_for(&mut rung, pause);
                    }
                    rung.wake = false;
                    if rung.stop {
                        break;
                    }
                }
                // The round is dropped first, so that whoever waits finds everything closed.
                drop(round);
                bell.state.lock().ended = true;
                bell.rung.notify_all();
            }
        };
        let thread = thread::Builder::new().name("tollgate-store".into()).spawn(run);
        let keeper = Self { bell, thread: Some(thread.expect("the system starts a thread for the store")) };
        keeper.wait(|rung| rung.first_round_done);
        keeper
    }

    /// Waits until `done`, for a bounded time.
    fn wait(&self, done: impl Fn(&Rung) -> bool) -> bool {
        let mut rung = self.bell.state.lock();
        let patience = Instant::now() + PATIENCE;
        self.bell.rung.wait_while_until(&mut rung, |rung| !done(rung), patience);
        done(&rung)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.bell.state.lock().stop = true;
        self.bell.rung.notify_all();
        // A look-up of a name cannot be cut short. A thread that is caught in one is left to end by itself.
        if self.wait(|rung| rung.ended)
            && let Some(thread) = self.thread.take()
        {
            // One that panicked has told so already.
            let _ = thread.join();
        }
    }
}
