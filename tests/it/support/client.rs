//! A raw HTTP/1.1 client. Duplicate fields, pipelining and half-open requests are part of the job, so nothing is tidied.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take before the test has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// One TCP connection and what was read of it beyond the last answer.
pub(crate) struct Connection {
    stream: TcpStream,
    rest: Vec<u8>,
}

/// An answer, as it came.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Connection {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).expect("the service accepts connections"))
    }

    /// A connection that was made with care, from an address of its own for one.
    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket option");
        stream.set_nodelay(true).expect("a socket option");
        Self { stream, rest: Vec::new() }
    }

    /// Reads and writes are given up after so long.
    pub(crate) fn patience(self, patience: Duration) -> Self {
        self.stream.set_read_timeout(Some(patience)).expect("a socket option");
        self.stream.set_write_timeout(Some(patience)).expect("a socket option");
        self
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the connection takes the bytes");
    }

    /// Sends bytes as they are; the other end may be gone.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Sends bytes and resets the connection at once.
    pub(crate) fn reset(mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.try_send(bytes);
        let linger = Some(Duration::ZERO);
        socket2::SockRef::from(&self.stream).set_linger(linger).expect("a socket option");
    }

    pub(crate) fn get(&mut self, path: &str) -> Reply {
        self.request("GET", path, &[])
    }

    pub(crate) fn request(&mut self, method: &str, target: &str, headers: &[(&str, &str)]) -> Reply {
        let fields: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        self.send(format!("{method} {target} HTTP/1.1\r\nHost: tollgate\r\n{fields}\r\n"));
        self.read(method).unwrap_or_else(|error| panic!("no answer to {method} {target} with {headers:?}: {error}"))
    }

    /// Reads one answer to a request of this method.
    pub(crate) fn read(&mut self, method: &str) -> io::Result<Reply> {
        let head = loop {
            if let Some(end) = self.rest.windows(4).position(|window| window == b"\r\n\r\n") {
                break self.rest.drain(..end + 4).collect::<Vec<u8>>();
            }
            self.fill()?;
        };
        let head = String::from_utf8(head).map_err(io::Error::other)?;
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status in {head:?}")))?;
        let headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(": ").unwrap_or((line, "")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let mut reply = Reply { status, headers, body: String::new() };
        if method != "HEAD" {
            let length = reply.header("Content-Length").map_or(0, |length| length.parse().expect("a length"));
            while self.rest.len() < length {
                self.fill()?;
            }
            reply.body = String::from_utf8(self.rest.drain(..length).collect()).map_err(io::Error::other)?;
        }
        Ok(reply)
    }

    /// Whether the other end has closed, or closes within the patience.
    pub(crate) fn is_closed(&mut self) -> bool {
        loop {
            match self.fill() {
                Ok(()) => {}
                Err(error) => return !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
            }
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut chunk = [0; 16 * 1024];
        match self.stream.read(&mut chunk)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            length => {
                self.rest.extend_from_slice(&chunk[..length]);
                Ok(())
            }
        }
    }
}

impl Reply {
    /// The value of a field; fails when it came more than once.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} came twice: {:?}", self.headers);
        value
    }

    /// The value of a field that must be there, as a number.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name} is {value:?}, not a number"))
    }

    /// A parameter of the first member of `RateLimit` or `RateLimit-Policy`, as a number.
    pub(crate) fn parameter(&self, name: &str, letter: &str) -> u64 {
        let field = self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        let mut parameters = field.split(',').next().unwrap_or("").split(';').skip(1);
        let value = parameters.find_map(|parameter| parameter.strip_prefix(letter)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {letter} in {field:?}")).parse().expect("a whole number")
    }
}
