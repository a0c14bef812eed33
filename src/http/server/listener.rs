//! The listening socket: its options, and errors that say what could not be bound.

use std::net::{SocketAddr, TcpListener};
use std::{fmt, io};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that the system holds until they are accepted. The system lowers it to its own bound (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// Bytes that the system takes in on a connection before anybody reads them; accepted sockets inherit it. Requests are a
/// few hundred bytes. The default grows to megabytes, all of which the crate would still parse after a connection is cut.
const RECEIVE_BUFFER: usize = 64 * 1024;

/// Bytes of answers that the system keeps for a client that does not read: a few hundred answers. The default grows to
/// megabytes, so that whoever sends and never reads would be served for a long time before it is found out.
const SEND_BUFFER: usize = 64 * 1024;

/// Why a server cannot start.
#[derive(Debug)]
pub struct StartError {
    address: SocketAddr,
    source: io::Error,
}

impl StartError {
    pub(super) fn new(address: SocketAddr, source: io::Error) -> Self {
        Self { address, source }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, source } = self;
        match source.kind() {
            io::ErrorKind::AddrInUse => {
                write!(
                    f,
                    "cannot listen on {address}: the port is taken; choose another with PORT, or 0 for a free one"
                )
            }
            io::ErrorKind::AddrNotAvailable => {
                write!(
                    f,
                    "cannot listen on {address}: no interface of this machine has this address; choose another with HOST"
                )
            }
            io::ErrorKind::PermissionDenied => {
                write!(f, "cannot listen on {address}: not permitted; ports below 1024 need a privilege")
            }
            _ => write!(f, "cannot listen on {address}: {source}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Binds and listens. `::` takes IPv4 as well, whatever the system's default is.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.ip().is_unspecified() && address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // A restart must not wait for connections of the last run to time out.
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit it. Head and body leave in two segments when they pass the crate's write buffer of
    // 1 KB, and without this the second waits 40 ms for the client's acknowledgement.
    socket.set_tcp_nodelay(true)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
