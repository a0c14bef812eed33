//! The only room that knows tiny_http: worker threads pull requests from it, ask the handler, and answer.
//!
//! tiny_http trusts its clients: it bounds nothing, times nothing out, and closes no connection when asked. This room
//! puts the bounds around it, from outside.
//! - `listener`: the socket that listens.
//! - `framing`: whether a request's end can be told. `answer`: one request answered.
//! - `table`: one request of a connection at a time, the others wait there, bounded.
//! - `room`: what the threads share. `workers`: who pulls, who answers. `guard`: for somebody else's server, which pulls by itself.
//! - `sockets`: the connections' own descriptors, and how one is shut down.
//! - `watch`: the thread that looks after all of it: silent, slow, flooding and starved connections, workers that are stuck.
//!   `threadless`: connections that no thread serves, and those that none will ever serve.
//!   `acceptor`: whether anybody accepts.
//! - `clerk`: the thread for what would make those wait for a client.

mod acceptor;
mod answer;
mod clerk;
mod framing;
mod guard;
mod listener;
mod panics;
mod room;
mod sockets;
mod table;
#[cfg(test)]
mod tests;
mod threadless;
mod watch;
mod workers;

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::Receiver;
use socket2::SockRef;

use super::metrics::Counters;
use super::routes::Service;
use super::{Request, Response};
use room::Room;

pub use guard::Guard;
pub use listener::StartError;
pub use panics::quiet_panics;

/// What answers a plain request. It may panic: that costs the client its answer, and nobody else anything.
type Handler = Arc<dyn Fn(&Request<'_>) -> Response + Send + Sync>;

/// The log target of the HTTP crate. What it says at level error is an ordinary stop, or is said and counted here.
pub const CRATE_LOG: &str = "tiny_http";

/// Where and with how many threads to listen, and how patiently.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// IPv4 or IPv6.
    pub address: SocketAddr,
    /// Threads that answer requests, at least 1.
    pub workers: usize,
    /// A connection that sends no whole request for so long is closed.
    pub idle_timeout: Duration,
    /// A connection that does not take its answer for so long is closed.
    pub write_timeout: Duration,
}

/// A running server. Dropping it without `stop` leaves its threads running.
pub struct Server {
    room: Arc<Room>,
    listener: TcpListener,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens, and answers from now on.
    ///
    /// # Errors
    /// When the address is taken or cannot be bound.
    pub fn start(listen: Listen, service: Arc<Service>, counters: Arc<Counters>) -> Result<Self, StartError> {
        Self::serve(listen, Arc::new(move |request| service.answer(request)), counters)
    }

    pub(crate) fn serve(listen: Listen, handler: Handler, counters: Arc<Counters>) -> Result<Self, StartError> {
        let start = || -> io::Result<Self> {
            let listener = listener::listen(listen.address)?;
            let address = listener.local_addr()?;
            let http = accept(&listener)?;
            let room = Arc::new(Room::new(http, handler, counters, listen.workers));
            let mut threads = Vec::with_capacity(listen.workers + 3);
            for number in 0..listen.workers {
                let room = Arc::clone(&room);
                threads.push(thread::Builder::new().name(format!("worker-{number}")).spawn(move || room.work(number))?);
            }
            let (ahead, clerk, watched) = (Arc::clone(&room), Arc::clone(&room), Arc::clone(&room));
            threads.push(thread::Builder::new().name("ahead".into()).spawn(move || ahead.work_ahead())?);
            threads.push(thread::Builder::new().name("clerk".into()).spawn(move || clerk.clerk())?);
            let watch = watch::Watch::new(watched, listener.try_clone()?, listen)?;
            threads.push(thread::Builder::new().name("watch".into()).spawn(move || watch.run())?);
            Ok(Self { room, listener, address, threads })
        };
        start().map_err(|source| StartError::new(listen.address, source))
    }

    /// Where it listens, with the real port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says so when the server is of no more use: half of the connections that it can hold hang in the HTTP crate for good.
    #[must_use]
    pub fn exhausted(&self) -> &Receiver<()> {
        &self.room.exhausted.1
    }

    /// Stops in order: takes no new connection, answers the requests that were read, closes every connection, and ends
    /// its threads. Returns within `STOP_WITHIN` and a write to the log, whatever the clients do.
    pub fn stop(self) {
        self.room.stop();
        // This ends `accept` at once, on the crate's descriptor as on ours: it is one socket.
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Read);
        for thread in self.threads {
            if thread.join().is_err() {
                log::error!("a thread of the server panicked");
            }
        }
        self.room.join_waits();
        self.room.clear();
    }
}

/// Begins to accept connections on a socket that listens.
///
/// # Errors
/// When no thread or descriptor is to be had.
fn accept(listener: &TcpListener) -> io::Result<tiny_http::Server> {
    let listener = listener.try_clone()?;
    // The crate panics when it cannot start its thread.
    let started = std::panic::catch_unwind(|| tiny_http::Server::from_listener(listener, None));
    started.map_err(|_| io::Error::other("no thread to be had"))?.map_err(io::Error::other)
}
