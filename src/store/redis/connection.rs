//! One connection to one server. Everything that it does ends at a deadline: connecting, TLS, logging in, and a call however
//! slowly the reply trickles in.
//!
//! The crate supplies the protocol and not the connection: its timeouts hold for each read, not for a call, and it looks
//! names up while the caller waits. Here nothing is resent and no name is looked up. After any error a connection is dropped,
//! so that a late reply is never taken for the answer to another question.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
#[cfg(feature = "tls")]
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Parser, Value};
use socket2::{Domain, SockAddr, Socket, Type};

#[cfg(feature = "tls")]
use super::settings::Kind;
use super::settings::{Access, RedisError};

/// The most that a reply may take: the map of a cluster with all its slots apart. Anything longer is not from a Redis.
const MAX_REPLY: usize = 4 << 20;

/// A connection that has been idle for so long is looked at before it is used: servers and routers cut idle ones.
const TRUSTED_FOR: Duration = Duration::from_millis(100);

/// Why there is no answer. Shown in logs; holds no command and so no password.
#[derive(Debug)]
pub(super) enum Failure {
    /// Known to be down, not asked.
    Down,
    /// All connections were in use until the deadline.
    Busy,
    /// No address is known for its name.
    Unresolved,
    /// No node of the cluster is known for the client's slot.
    NoNode,
    /// Connecting, writing or reading failed or took too long.
    Io(io::Error),
    /// What came is not the protocol.
    Protocol(String),
    /// The protocol, but not the reply that was asked for.
    Reply,
    /// The server says no.
    Server { code: String, detail: String },
}

impl Failure {
    /// Whether the server said no with this code.
    pub(super) fn is(&self, expected: &str) -> bool {
        matches!(self, Self::Server { code, .. } if code == expected)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("known to be down"),
            Self::Busy => f.write_str("all connections were in use"),
            Self::Unresolved => f.write_str("no address is known for this name"),
            Self::NoNode => f.write_str("no node of the cluster is known for this client"),
            Self::Io(error) if error.kind() == ErrorKind::TimedOut => f.write_str("no answer in time"),
            Self::Io(error) => write!(f, "{error}"),
            Self::Protocol(reason) => write!(f, "what answers is no Redis: {reason}"),
            Self::Reply => f.write_str("a reply that makes no sense"),
            Self::Server { code, .. } if code == "MOVED" => f.write_str(
                "MOVED: it is a node of a cluster and does not keep this client; give the URLs of several nodes, with commas \
                 between them",
            ),
            // Of those who are not logged in, a server does not take the arguments of a call with several policies.
            Self::Server { code, detail } if code == "NOAUTH" || detail.contains("unauthenticated") => {
                f.write_str("NOAUTH: it asks for a password, and the URL has none")
            }
            Self::Server { code, detail } => write!(f, "{code} {detail}"),
        }
    }
}

/// A connection that is logged in.
pub(super) struct Connection {
    stream: Stream,
    parser: Parser,
    last_used: Instant,
}

enum Stream {
    Plain(Timed),
    #[cfg(feature = "tls")]
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, Timed>>),
}

/// A socket that gives up at the deadline.
struct Timed {
    socket: Socket,
    deadline: Instant,
    /// Bytes that the current reply may still take.
    allowance: usize,
}

/// How connections are made.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) access: Access,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Arc<rustls::ClientConfig>>,
}

impl Dialer {
    /// # Errors
    /// When TLS is asked for and this machine trusts no certificate.
    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unnecessary_wraps, reason = "with TLS it can fail")]
    pub(super) fn new(access: Access) -> Result<Self, RedisError> {
        Ok(Self { access })
    }

    /// # Errors
    /// When TLS is asked for and this machine trusts no certificate.
    #[cfg(feature = "tls")]
    pub(super) fn new(access: Access) -> Result<Self, RedisError> {
        let tls = access.tls.then(trusting).transpose()?;
        Ok(Self { access, tls })
    }

    /// Connects to the first of the addresses that answers and logs in, by the deadline. `host` is what a certificate has to
    /// name.
    pub(super) fn connect(&self, addresses: &[SockAddr], host: &str, deadline: Instant) -> Result<Connection, Failure> {
        let mut last = Failure::Unresolved;
        for (index, address) in addresses.iter().enumerate() {
            // Each gets its share of the time that is left, so that one that swallows packets does not use up all of it.
            let shares = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
            match dial(address, left(deadline).map_err(Failure::Io)? / shares) {
                Ok(socket) => return self.greet(socket, host, deadline),
                Err(error) => last = Failure::Io(error),
            }
        }
        Err(last)
    }

    fn greet(&self, socket: Socket, host: &str, deadline: Instant) -> Result<Connection, Failure> {
        let timed = Timed { socket, deadline, allowance: 0 };
        let stream = self.wrap(timed, host)?;
        let mut connection = Connection { stream, parser: Parser::new(), last_used: Instant::now() };
        for command in self.access.greeting() {
            connection.call(&command, deadline)?;
        }
        Ok(connection)
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "with TLS it can fail")]
    fn wrap(&self, timed: Timed, _host: &str) -> Result<Stream, Failure> {
        Ok(Stream::Plain(timed))
    }

    #[cfg(feature = "tls")]
    fn wrap(&self, timed: Timed, host: &str) -> Result<Stream, Failure> {
        let Some(config) = &self.tls else { return Ok(Stream::Plain(timed)) };
        let name = rustls::pki_types::ServerName::try_from(host.to_owned())
            .map_err(|_| Failure::Protocol(format!("{host} is no name that a certificate can have")))?;
        let session = rustls::ClientConnection::new(Arc::clone(config), name)
            .map_err(|error| Failure::Protocol(error.to_string()))?;
        // The handshake happens with the first command, by its deadline.
        Ok(Stream::Tls(Box::new(rustls::StreamOwned::new(session, timed))))
    }
}

/// TLS that believes whom this machine believes. Read once: the bundle is long.
#[cfg(feature = "tls")]
fn trusting() -> Result<Arc<rustls::ClientConfig>, RedisError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let reason = found.errors.first().map_or_else(|| "none found".into(), ToString::to_string);
        return Err(RedisError(Kind::NoCertificates(reason)));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the ciphers of both versions of TLS")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn dial(address: &SockAddr, within: Duration) -> io::Result<Socket> {
    let socket = Socket::new(address.domain(), Type::STREAM, None)?;
    if address.domain() != Domain::UNIX {
        socket.set_tcp_nodelay(true)?;
        // For the peer that vanishes while the connection is idle.
        socket.set_keepalive(true)?;
    }
    socket.connect_timeout(address, within)?;
    Ok(socket)
}

impl Connection {
    /// Sends one command and waits for its reply. After an error other than [`Failure::Server`] the connection is of no use.
    pub(super) fn call(&mut self, command: &[u8], deadline: Instant) -> Result<Value, Failure> {
        let timed = self.stream.timed();
        timed.deadline = deadline;
        timed.allowance = MAX_REPLY;
        self.stream.write_all(command).and_then(|()| self.stream.flush()).map_err(Failure::Io)?;
        let reply = self.parser.parse_value(&mut self.stream).map_err(|error| {
            // The crate keeps the kind of an error of the socket, not the error.
            if error.is_timeout() {
                Failure::Io(ErrorKind::TimedOut.into())
            } else if error.is_io_error() {
                Failure::Io(io::Error::other(error.to_string()))
            } else {
                Failure::Protocol(error.to_string())
            }
        })?;
        self.last_used = Instant::now();
        match reply {
            Value::ServerError(error) => Err(Failure::Server {
                code: error.code().to_owned(),
                detail: error.details().unwrap_or_default().to_owned(),
            }),
            reply => Ok(reply),
        }
    }

    /// Whether the other end has hung up, or said something unasked, since the last use.
    pub(super) fn is_stale(&mut self) -> bool {
        if self.last_used.elapsed() < TRUSTED_FOR {
            return false;
        }
        let socket = &self.stream.timed().socket;
        let peeked = socket.set_nonblocking(true).and_then(|()| socket.peek(&mut [MaybeUninit::uninit()]));
        let quiet = matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock);
        !quiet || socket.set_nonblocking(false).is_err()
    }
}

impl Stream {
    fn timed(&mut self) -> &mut Timed {
        match self {
            Self::Plain(timed) => timed,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => &mut stream.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(timed) => timed.read(buffer),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(timed) => timed.write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(timed) => timed.flush(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(left(self.deadline)?))?;
        let room = buffer.len().min(self.allowance);
        if room == 0 && !buffer.is_empty() {
            return Err(io::Error::other("the reply is too long"));
        }
        let read = timed_out(self.socket.read(&mut buffer[..room]))?;
        self.allowance -= read;
        Ok(read)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(left(self.deadline)?))?;
        timed_out(self.socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The time until the deadline, or an error when it has passed. Never 0, which sockets take for no timeout.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Sockets report a timeout as if they did not block.
fn timed_out<T>(result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error })
}
