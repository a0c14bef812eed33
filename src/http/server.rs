//! The only file that knows tiny_http: worker threads pull requests, ask the service, and answer.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::{fmt, io};

use super::routes::Service;
use super::{Request, Response};

/// Where and with how many threads to listen.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// IPv4 or IPv6.
    pub address: SocketAddr,
    /// Threads that answer requests.
    pub workers: usize,
}

/// A running server.
pub struct Server {
    http: Arc<tiny_http::Server>,
    address: SocketAddr,
    workers: Vec<JoinHandle<()>>,
}

/// Why a server cannot start.
#[derive(Debug)]
pub struct StartError {
    address: SocketAddr,
    source: io::Error,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}: {}", self.address, self.source)
    }
}

impl std::error::Error for StartError {}

impl Server {
    /// Listens, and answers from now on.
    ///
    /// # Errors
    /// When the address is taken or cannot be bound.
    pub fn start(listen: Listen, service: Arc<Service>) -> Result<Self, StartError> {
        let failed = |source| StartError { address: listen.address, source };
        let listener = TcpListener::bind(listen.address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let http = tiny_http::Server::from_listener(listener, None).map_err(|error| failed(io::Error::other(error)))?;
        let http = Arc::new(http);
        let work = |_| {
            let (http, service) = (Arc::clone(&http), Arc::clone(&service));
            thread::spawn(move || {
                while let Ok(request) = http.recv() {
                    answer(request, &service);
                }
            })
        };
        let workers = (0..listen.workers).map(work).collect();
        Ok(Self { http, address, workers })
    }

    /// Where it listens, with the real port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops.
    pub fn stop(self) {
        for _ in &self.workers {
            self.http.unblock();
        }
        for worker in self.workers {
            let _ = worker.join();
        }
    }
}

fn answer(request: tiny_http::Request, service: &Service) {
    let headers: Vec<(&str, &str)> =
        request.headers().iter().map(|header| (header.field.as_str().as_str(), header.value.as_str())).collect();
    let plain = Request {
        method: request.method().as_str(),
        target: request.url(),
        peer: request.remote_addr().map(|peer: &SocketAddr| -> IpAddr { peer.ip() }),
        headers: &headers,
    };
    let Response { status, headers, body } = service.answer(&plain);
    let headers = headers
        .iter()
        .map(|(name, value)| tiny_http::Header::from_bytes(*name, value.as_bytes()).expect("our fields are ASCII"))
        .collect();
    let length = body.len();
    let body = io::Cursor::new(body.into_owned());
    let _ = request.respond(tiny_http::Response::new(status.into(), headers, body, Some(length), None));
}
