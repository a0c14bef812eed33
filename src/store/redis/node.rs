//! One server: its connections, and whether it is asked at all.
//!
//! | state | meaning | leaves it |
//! |---|---|---|
//! | closed | requests ask the server | the first failure, of a request or of the keeper's ping: to open |
//! | open | no request asks or waits; all idle connections are dropped | the keeper, when the pause is over: to probing |
//! | probing | as open, while the keeper tries what a decision needs over a new connection | the probe: to closed, or back to open with a longer pause |
//!
//! Every opening ends an epoch. What a request of an earlier epoch brings back changes nothing: its failure is old news, its
//! connection is dropped. No lock is held while anything is sent or awaited.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::debug;
use parking_lot::{Condvar, Mutex};
use redis::{Value, cmd};
use socket2::SockAddr;

use super::connection::{Connection, Dialer, Failure};
use super::keeper::Bell;
use super::script::Script;
use super::settings::Address;

/// The most connections to one server. Each thread uses one at a time and a call takes a fraction of a millisecond, so a few
/// are enough for many threads; the others wait, by their deadline.
const MAX_CONNECTIONS: usize = 64;

/// Between two probes: at once after the first failure, then growing.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause, and so about the time in which a server that is back is noticed.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A server that fails again so soon after a probe found it well is given no probe at once: the log would fill with it.
const STEADY_AFTER: Duration = Duration::from_secs(10);

/// A connection that has not been used for so long is pinged, so that an outage is known before somebody waits for it.
pub(super) const PING_EVERY: Duration = Duration::from_secs(1);

/// Whom a probe asks for when no client met the failure.
const NOBODY: &str = "probe";

pub(super) struct Node {
    pub(super) address: Address,
    dialer: Dialer,
    bell: Arc<Bell>,
    state: Mutex<State>,
    /// A connection came back, or may be made anew.
    freed: Condvar,
}

struct State {
    addresses: Arc<[SockAddr]>,
    epoch: u64,
    /// The last used one is on top, so that those that are not needed grow idle.
    idle: Vec<Connection>,
    in_use: usize,
    down: Option<Outage>,
    /// The pause before the next probe, kept while the server is not steady.
    pause: Duration,
    up_since: Option<Instant>,
    pinged_at: Instant,
}

/// An open breaker.
struct Outage {
    since: Instant,
    probe_at: Instant,
    /// The client that met the failure: it may be that only clients of its slot do.
    tag: String,
}

/// A connection in use, and when it was taken.
struct Lease {
    connection: Connection,
    epoch: u64,
}

impl Node {
    pub(super) fn new(address: Address, dialer: Dialer, bell: Arc<Bell>) -> Self {
        let addresses = match &address {
            Address::Unix(path) => SockAddr::unix(path).into_iter().collect(),
            Address::Tcp { host, port } => {
                host.parse().map(|ip: IpAddr| SocketAddr::new(ip, *port).into()).into_iter().collect()
            }
        };
        let state = State {
            addresses,
            epoch: 0,
            idle: Vec::new(),
            in_use: 0,
            down: None,
            pause: Duration::ZERO,
            up_since: None,
            pinged_at: Instant::now(),
        };
        Self { address, dialer, bell, state: Mutex::new(state), freed: Condvar::new() }
    }

    /// Runs `talk` with a connection, by the deadline. Whatever fails opens the breaker, except what is a server's good
    /// right: see [`is_refusal`].
    pub(super) fn talk<T>(
        &self,
        tag: &str,
        deadline: Instant,
        clustered: bool,
        talk: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut lease = match self.lease(deadline) {
            Ok(lease) => lease,
            Err((failure, None)) => return Err(failure),
            Err((failure, Some(epoch))) => {
                self.fail(epoch, tag, &failure);
                return Err(failure);
            }
        };
        let result = talk(&mut lease.connection);
        match &result {
            Err(failure) if !is_refusal(failure, clustered) => {
                self.fail(lease.epoch, tag, failure);
            }
            _ => self.give_back(lease),
        }
        result
    }

    /// An idle connection, or a new one. The epoch comes with a failure that is news.
    fn lease(&self, deadline: Instant) -> Result<Lease, (Failure, Option<u64>)> {
        let (epoch, addresses) = loop {
            let mut state = self.state.lock();
            if state.down.is_some() {
                return Err((Failure::Down, None));
            }
            let epoch = state.epoch;
            if let Some(mut connection) = state.idle.pop() {
                state.in_use += 1;
                drop(state);
                if !connection.is_stale() {
                    return Ok(Lease { connection, epoch });
                }
                drop(connection);
                self.bell.broken();
                self.state.lock().in_use -= 1;
            } else if state.in_use < MAX_CONNECTIONS {
                state.in_use += 1;
                break (epoch, Arc::clone(&state.addresses));
            } else if self.freed.wait_until(&mut state, deadline).timed_out() {
                // Nobody's connection is at fault: those who have one find out whether the server is.
                return Err((Failure::Busy, None));
            }
        };
        match self.connect(&addresses, deadline) {
            Ok(connection) => Ok(Lease { connection, epoch }),
            Err(failure) => Err((failure, Some(epoch))),
        }
    }

    fn connect(&self, addresses: &[SockAddr], deadline: Instant) -> Result<Connection, Failure> {
        let host = match &self.address {
            Address::Tcp { host, .. } => host,
            Address::Unix(_) => "localhost",
        };
        self.dialer.connect(addresses, host, deadline)
    }

    fn give_back(&self, Lease { connection, epoch }: Lease) {
        let mut state = self.state.lock();
        state.in_use -= 1;
        let kept = if epoch == state.epoch {
            state.idle.push(connection);
            None
        } else {
            Some(connection)
        };
        drop(state);
        self.freed.notify_one();
        drop(kept);
    }

    /// Ends a lease that failed, and opens the breaker unless that is old news.
    fn fail(&self, epoch: u64, tag: &str, failure: &Failure) {
        let mut state = self.state.lock();
        state.in_use -= 1;
        let opened = (epoch == state.epoch && state.down.is_none()).then(|| state.open(tag));
        drop(state);
        self.freed.notify_all();
        if opened.is_some() {
            self.bell.outage(&self.address, failure);
        }
    }

    pub(super) fn is_down(&self) -> bool {
        self.state.lock().down.is_some()
    }

    /// Notices an outage before a request does. For the keeper.
    pub(super) fn ping_if_due(&self, timeout: Duration) {
        let now = Instant::now();
        {
            let mut state = self.state.lock();
            if state.down.is_some() || now < state.pinged_at + PING_EVERY {
                return;
            }
            state.pinged_at = now;
        }
        let ping = cmd("PING").get_packed_command();
        // A failure has opened the breaker and is in the log.
        let _ = self.talk(NOBODY, now + timeout, true, |connection| connection.call(&ping, now + timeout));
    }

    /// Tries a server that is down, when its pause is over. For the keeper.
    pub(super) fn probe_if_due(&self, script: &Script, timeout: Duration, clustered: bool) {
        let tag = match &self.state.lock().down {
            Some(outage) if outage.probe_at <= Instant::now() => outage.tag.clone(),
            _ => return,
        };
        self.resolve();
        let addresses = Arc::clone(&self.state.lock().addresses);
        let deadline = Instant::now() + timeout;
        let probed = self.connect(&addresses, deadline).and_then(|mut connection| {
            match connection.call(&script.probe(&tag), deadline) {
                // That the client has moved is an answer, and the map of the cluster tells where.
                Err(failure) if !is_refusal(&failure, clustered) => Err(failure),
                _ => Ok(connection),
            }
        });
        let mut state = self.state.lock();
        match probed {
            Ok(connection) => {
                let Some(outage) = state.down.take() else { return };
                state.idle.push(connection);
                state.up_since = Some(Instant::now());
                drop(state);
                self.bell.recovery(&self.address, outage.since.elapsed());
            }
            Err(failure) => {
                state.pause = (state.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                let probe_at = Instant::now() + state.pause;
                if let Some(outage) = &mut state.down {
                    outage.probe_at = probe_at;
                }
                drop(state);
                debug!("{}: still down: {failure}", self.address);
            }
        }
    }

    /// Asks for the address that goes with a name, which may take many seconds. For the keeper.
    pub(super) fn resolve(&self) {
        if let Address::Tcp { host, port } = &self.address
            && host.parse::<IpAddr>().is_err()
            && let Ok(found) = (host.as_str(), *port).to_socket_addrs()
        {
            self.state.lock().addresses = found.map(SockAddr::from).collect();
        }
    }

    /// A connection of its own, which counts for nothing. For the keeper.
    pub(super) fn ask(&self, command: &[u8], timeout: Duration) -> Result<Value, Failure> {
        let addresses = Arc::clone(&self.state.lock().addresses);
        let deadline = Instant::now() + timeout;
        self.connect(&addresses, deadline)?.call(command, deadline)
    }
}

impl State {
    /// The connections are the caller's to drop, without the lock.
    fn open(&mut self, tag: &str) -> Vec<Connection> {
        let now = Instant::now();
        self.pause = match self.up_since {
            Some(since) if now - since < STEADY_AFTER => self.pause.max(FIRST_PAUSE),
            _ => Duration::ZERO,
        };
        self.epoch += 1;
        self.down = Some(Outage { since: now, probe_at: now + self.pause, tag: tag.to_owned() });
        std::mem::take(&mut self.idle)
    }
}

/// Whether this is what a server in good health says: that a client is kept elsewhere, which only helps in a cluster, or is
/// just being moved.
fn is_refusal(failure: &Failure, clustered: bool) -> bool {
    failure.is("TRYAGAIN") || clustered && (failure.is("MOVED") || failure.is("ASK"))
}
