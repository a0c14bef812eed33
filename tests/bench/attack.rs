//! What attackers do to a service, each without an end until it is told to stop. All of it stays on the loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::Connection;

/// An attack with its name.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    run: fn(SocketAddr, &AtomicBool),
}

pub(crate) const ATTACKS: &[Attack] = &[
    Attack { name: "500 connections that say nothing", run: silent },
    Attack { name: "200 heads, a byte a second", run: dripping_heads },
    Attack { name: "200 bodies that never come", run: missing_bodies },
    Attack { name: "bodies of a gigabyte declared, over and over", run: huge_bodies },
    Attack { name: "heads without end", run: endless_heads },
    Attack { name: "2000 requests ahead, nobody reads", run: unread_floods },
    Attack { name: "64 connections that send and do not read", run: deaf_clients },
    Attack { name: "connections reset at once", run: resets },
    Attack { name: "requests that two readers read in two ways", run: smuggling },
    Attack { name: "one refused client that hammers", run: hammering },
    Attack { name: "a new address with each request", run: new_addresses },
];

impl Attack {
    /// Attacks on a thread of its own until `stop`, while `meanwhile` runs.
    pub(crate) fn during<T>(&self, address: SocketAddr, meanwhile: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| (self.run)(address, &stop));
            let _stop = StopAtEnd(&stop);
            meanwhile()
        })
    }
}

/// Ends an attack when it is dropped, also when what ran meanwhile has panicked.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const GET: &str = "GET /unlimited HTTP/1.1\r\nHost: a\r\n\r\n";

fn connect(address: SocketAddr) -> Option<Connection> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    Some(Connection::of(stream).patience(Duration::from_millis(100)))
}

/// Holds so many connections, on each of which `begin` was sent, and sends `more` on each once a second. Those that are
/// closed are replaced.
fn hold(address: SocketAddr, stop: &AtomicBool, count: usize, begin: &str, more: &str) {
    let mut held: Vec<Connection> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        while held.len() < count && !stop.load(Ordering::Relaxed) {
            let Some(mut connection) = connect(address) else { break };
            if connection.try_send(begin).is_ok() {
                held.push(connection);
            }
        }
        for _ in 0..10 {
            if !stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(100));
            }
        }
        held.retain_mut(|connection| connection.try_send(more).is_ok());
    }
}

/// One connection after the other: sends, and does what follows.
fn repeat(address: SocketAddr, stop: &AtomicBool, bytes: &str, then: impl Fn(Connection)) {
    while !stop.load(Ordering::Relaxed) {
        let Some(mut connection) = connect(address) else { continue };
        if connection.try_send(bytes).is_ok() {
            then(connection);
        }
    }
}

fn silent(address: SocketAddr, stop: &AtomicBool) {
    hold(address, stop, 500, "", "");
}

fn dripping_heads(address: SocketAddr, stop: &AtomicBool) {
    hold(address, stop, 200, "GET /unlimited HTTP/1.1\r\nX: ", "a");
}

fn missing_bodies(address: SocketAddr, stop: &AtomicBool) {
    hold(address, stop, 200, "POST /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\nabc", "a");
}

fn huge_bodies(address: SocketAddr, stop: &AtomicBool) {
    let request = "POST /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\nabc";
    repeat(address, stop, request, |mut connection| {
        let _ = connection.read("POST");
    });
}

fn endless_heads(address: SocketAddr, stop: &AtomicBool) {
    let block = "a".repeat(16 * 1024);
    repeat(address, stop, "GET /unlimited HTTP/1.1\r\nX: ", |mut connection| {
        while !stop.load(Ordering::Relaxed) && connection.try_send(&block).is_ok() {}
    });
}

fn unread_floods(address: SocketAddr, stop: &AtomicBool) {
    repeat(address, stop, &GET.repeat(2_000), |mut connection| {
        // Until the service closes.
        while !stop.load(Ordering::Relaxed) && connection.try_send("").is_ok() && !connection.is_closed() {}
    });
}

fn deaf_clients(address: SocketAddr, stop: &AtomicBool) {
    let requests = GET.repeat(20);
    while !stop.load(Ordering::Relaxed) {
        let mut connections: Vec<Connection> = (0..64).filter_map(|_| connect(address)).collect();
        while !connections.is_empty() && !stop.load(Ordering::Relaxed) {
            connections.retain_mut(|connection| connection.try_send(&requests).is_ok());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn resets(address: SocketAddr, stop: &AtomicBool) {
    repeat(address, stop, "", |connection| connection.reset(GET));
}

fn smuggling(address: SocketAddr, stop: &AtomicBool) {
    let request =
        "GET /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    repeat(address, stop, &format!("{request}{GET}"), |mut connection| {
        let _ = connection.read("GET");
    });
}

fn hammering(address: SocketAddr, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Some(mut connection) = connect(address) else { continue };
        let request = "GET /limited HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 198.51.100.1\r\n\r\n";
        while !stop.load(Ordering::Relaxed) && connection.try_send(request).is_ok() && connection.read("GET").is_ok() {}
    }
}

fn new_addresses(address: SocketAddr, stop: &AtomicBool) {
    let mut number = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        let Some(mut connection) = connect(address) else { continue };
        loop {
            number = number.wrapping_add(1);
            let client = Ipv4Addr::from_bits(number.wrapping_mul(2_654_435_761));
            let request = format!("GET /limited HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n\r\n");
            let asked = connection.try_send(request).is_ok() && connection.read("GET").is_ok();
            if !asked || stop.load(Ordering::Relaxed) {
                break;
            }
        }
    }
}
