//! The reaper: a thread that drops the state of clients whose whole quota is back.
//!
//! It decides nothing about a request: a state goes when it decides exactly like no state, so nobody can see it go. Sweeps
//! in small steps won over a timer for each client, which costs memory where there should be little, and over sweeping
//! inside requests, which makes somebody wait and never ends when nobody comes.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::memory::MemoryStore;
use crate::algorithm::Limit;
use crate::clock::Now;

/// The shortest pause between two sweeps, and so about the longest that an idle client is kept.
const PAUSE: Duration = Duration::from_secs(1);

/// A sweep is followed by a pause so many times as long: the reaper takes at most a twentieth of a core.
const REST: u32 = 19;

/// The thread that sweeps one store. Dropping it stops the thread and waits for its end: one step of a sweep at most.
pub(crate) struct Reaper {
    /// Nothing is ever sent: the thread ends when this end of the channel is gone.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    /// Starts to sweep `store` at the times that `clock` tells.
    ///
    /// # Panics
    /// When the system cannot start a thread.
    pub(crate) fn start<L: Limit>(store: Arc<MemoryStore<L>>, clock: impl Fn() -> Now + Send + 'static) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let run = move || {
            let mut pause = PAUSE;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let begun = Instant::now();
                if store.clients() > 0 {
                    store.sweep(|| (stopped.try_recv() == Err(TryRecvError::Empty)).then(&clock));
                }
                pause = PAUSE.max(begun.elapsed() * REST);
            }
        };
        let thread = thread::Builder::new().name("tollgate-reaper".into()).spawn(run);
        Self { stop: Some(stop), thread: Some(thread.expect("the system starts a thread for the reaper")) }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A sweep that panicked has told so already; there is nothing left to stop.
            let _ = thread.join();
        }
    }
}
