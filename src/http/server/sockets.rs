//! The connections' own sockets, found and closed from outside the HTTP crate.
//!
//! The crate owns each connection's socket, shows nobody its descriptor, and has no way to close one. The system does:
//! it lists this process's descriptors, tells the peer of each, and shuts a socket down by number. A connection that is
//! shut down ends every wait on it, in the crate's threads and in ours: reads see its end, writes fail.
//!
//! `pidfd_getfd` would give a duplicate to check and shut without a race, but container runtimes forbid it by default.
//! So a descriptor could be closed and given to another connection between the look at its peer and the shutdown, one
//! microsecond later: that connection would be cut. It could be no file: shutting one down does nothing.

use std::io;
use std::net::{Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::RawFd;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{self, MsgFlags, SockaddrStorage};
use nix::sys::stat::{Mode, fstat};

/// Where the system lists the descriptors of the process that asks: Linux and macOS have it.
const DESCRIPTORS: &str = "/dev/fd";

/// One descriptor of an open connection. The crate holds two for each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    number: RawFd,
    pub(super) peer: SocketAddr,
}

/// The list of this process's descriptors, kept open: when none is free, it is needed most.
pub(super) struct Descriptors {
    list: Dir,
    port: u16,
}

impl Descriptors {
    /// # Errors
    /// When the system does not list descriptors.
    pub(super) fn open(port: u16) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self { list: Dir::open(DESCRIPTORS, flags, Mode::empty())?, port })
    }

    /// How many descriptors the process has, or always 0 where that cannot be had cheaply (Linux before 6.2).
    pub(super) fn count(&self) -> i64 {
        fstat(&self.list).map_or(0, |list| list.st_size)
    }

    /// Every descriptor of a connection to this port of ours.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub(super) fn look(&mut self) -> io::Result<Found> {
        let port = self.port;
        let mut found = Found { open: Vec::new(), reset: 0 };
        for entry in self.list.iter() {
            let Some(number) = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok()) else { continue };
            match socket::getpeername(number) {
                // The peer alone does not tell: it may have the same port of its own for a connection of another server.
                Ok(peer) if is_at(number, port) => {
                    found.open.extend(address(peer).map(|peer| Descriptor { number, peer }));
                }
                // No peer any more; or no peer ever, and then it is the listener, which cannot be read from.
                Err(Errno::ENOTCONN) if is_at(number, port) => {
                    let read = socket::recv(number, &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT);
                    found.reset += usize::from(read != Err(Errno::ENOTCONN));
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Whether a descriptor is a socket at this port of ours.
fn is_at(number: RawFd, port: u16) -> bool {
    socket::getsockname(number).ok().and_then(address).is_some_and(|local| local.port() == port)
}

/// What a look at all descriptors found.
pub(super) struct Found {
    pub(super) open: Vec<Descriptor>,
    /// Descriptors of connections that the other end has reset, and that are held nevertheless.
    pub(super) reset: usize,
}

/// Raises the soft limit of open files to the hard one, and gives the limit that holds now.
pub(super) fn raise_limit() -> usize {
    let resource = Resource::RLIMIT_NOFILE;
    let limit = getrlimit(resource).map(|(soft, hard)| {
        if soft < hard && setrlimit(resource, hard, hard).is_ok() {
            log::info!("limit of open files raised from {soft} to {hard}");
            return hard;
        }
        soft
    });
    // POSIX promises 20; a system that does not tell has more.
    limit.map_or(256, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

impl Descriptor {
    /// Shuts the connection down, whoever holds it. Does nothing when it has closed meanwhile.
    pub(super) fn shut(self, how: Shutdown) {
        if socket::getpeername(self.number).ok().and_then(address) != Some(self.peer) {
            return;
        }
        let how = match how {
            Shutdown::Read => socket::Shutdown::Read,
            Shutdown::Write => socket::Shutdown::Write,
            Shutdown::Both => socket::Shutdown::Both,
        };
        // It fails when the other end has reset the connection: then there is nothing left to shut.
        let _ = socket::shutdown(self.number, how);
    }

    /// How many bytes have come that nobody has read, at most as many as `room` holds; 0 when it is the end that has come.
    /// `None` when there is nothing to read.
    pub(super) fn unread(self, room: &mut [u8]) -> Option<usize> {
        socket::recv(self.number, room, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT).ok()
    }
}

/// The one form of an address that is compared: an IPv6 flow label is no part of who the peer is.
pub(super) fn peer(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into(),
    }
}

fn address(found: SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = found.as_sockaddr_in() {
        return Some(SocketAddrV4::new(v4.ip(), v4.port()).into());
    }
    let v6 = found.as_sockaddr_in6()?;
    let ip: Ipv6Addr = v6.ip();
    Some(SocketAddrV6::new(ip, v6.port(), 0, v6.scope_id()).into())
}
