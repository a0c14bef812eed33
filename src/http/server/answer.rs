//! One request answered: its framing judged, the handler asked, the answer written.

use std::borrow::Cow;
use std::io::{Cursor, Write};
use std::panic::{self, AssertUnwindSafe};

use tiny_http::{HTTPVersion, Header, Method, ReadWrite};

use super::framing::{Framing, READ_AHEAD};
use super::{Handler, Response};
use crate::http::Request;

/// The answer to a request, before it is written.
pub(super) struct Answer {
    response: Response,
    /// The connection is not listened to any more after this answer.
    pub(super) last: bool,
    /// The client must be told that the connection stays open.
    keep_alive: bool,
    /// The handler was asked and panicked.
    pub(super) panicked: bool,
    /// The request's framing was refused.
    pub(super) refused: Option<&'static str>,
}

/// What is kept of a request after its connection's last answer, until the socket is shut. Letting go of it earlier would
/// let the crate read on, and answer what it takes for the next request.
pub(super) enum Rest {
    /// The request's turn to write.
    Writer(Box<dyn Write + Send>),
    /// A stream with a body of so many bytes declared that nobody reads.
    Stream(Box<dyn ReadWrite + Send>, u64),
    /// A request that is not to be answered, with such a body.
    Request(tiny_http::Request),
}

/// Asks the handler, unless the framing forbids it.
pub(super) fn decide(request: &tiny_http::Request, framing: Framing, handler: &Handler) -> Answer {
    if let Framing::Unusable(reason) = framing {
        return Answer { refused: Some(reason), ..last(text(400, format!("bad request: {reason}\n").into())) };
    }
    let headers: Vec<(&str, &str)> =
        request.headers().iter().map(|header| (header.field.as_str().as_str(), header.value.as_str())).collect();
    let plain = Request {
        method: request.method().as_str(),
        target: request.url(),
        peer: request.remote_addr().map(std::net::SocketAddr::ip),
        headers: &headers,
    };
    let answered = panic::catch_unwind(AssertUnwindSafe(|| handler(&plain)));
    let panicked = answered.is_err();
    let response = answered.unwrap_or_else(|_| text(500, "internal error: the log of the service says more\n".into()));
    if framing != Framing::Clean {
        return Answer { panicked, ..last(response) };
    }
    // Such a client takes silence for a close, and the crate keeps the connection open without a word.
    let old = *request.http_version() < HTTPVersion(1, 1);
    let keep_alive = old && asks_to_keep(&headers);
    Answer { response, last: false, keep_alive, panicked, refused: None }
}

/// An answer after which the connection is closed.
pub(super) fn last(response: Response) -> Answer {
    Answer { response, last: true, keep_alive: false, panicked: false, refused: None }
}

fn asks_to_keep(headers: &[(&str, &str)]) -> bool {
    let field = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("Connection"));
    field.is_some_and(|(_, value)| value.to_ascii_lowercase().contains("keep-alive"))
}

pub(super) fn text(status: u16, body: Cow<'static, str>) -> Response {
    Response { status, headers: vec![("Content-Type", Cow::Borrowed("text/plain; charset=utf-8"))], body }
}

/// Writes an answer after which the connection lives on.
pub(super) fn write(request: tiny_http::Request, answer: Answer) {
    drop(print(request, answer.response, answer.keep_alive.then_some("keep-alive")));
}

/// Writes the last answer of a connection. Then waits until the body has come or the socket is shut, when there is one.
pub(super) fn write_and_wait(request: tiny_http::Request, answer: Answer) {
    let _ = request.respond(response(answer.response, Some("close")));
}

/// Writes the last answer of a connection, and waits for nothing but the client's taking it.
pub(super) fn write_last(request: tiny_http::Request, answer: Answer) -> Rest {
    let declared = unread_body(&request);
    if declared == 0 {
        return Rest::Writer(print(request, answer.response, Some("close")));
    }
    // Every other way drops the request, and that waits for the body, or allocates it whole. `upgrade` gives the stream
    // back instead. It adds `Connection: upgrade` and `Upgrade: HTTP/1.1`, which tell nothing new (RFC 9110, section
    // 7.8), and leaves out the body and its length.
    let head = *request.method() == Method::Head;
    let body = answer.response.body.clone();
    let connection = format!("close\r\nContent-Length: {}", body.len());
    let mut stream = request.upgrade("HTTP/1.1", response(answer.response, Some(&connection)));
    if !head {
        let _ = stream.write_all(body.as_bytes()).and_then(|()| stream.flush());
    }
    Rest::Stream(stream, declared)
}

/// Lets go of a request whose connection is not listened to any more, without an answer. What must wait for the socket
/// to be shut is given back.
pub(super) fn discard(request: tiny_http::Request) -> Option<Rest> {
    if unread_body(&request) > 0 {
        return Some(Rest::Request(request));
    }
    // Dropping the request itself would send a 500.
    drop(request.into_writer());
    None
}

/// How many bytes of body the crate would read, or allocate, when this request is dropped.
pub(super) fn unread_body(request: &tiny_http::Request) -> u64 {
    let expects = request.headers().iter().any(|header| header.field.equiv("Expect"));
    let length = request.body_length().map_or(0, |length| length as u64);
    if length > READ_AHEAD || expects { length } else { 0 }
}

/// Writes an answer and gives back the turn to write on the connection, which ends when it is dropped.
fn print(request: tiny_http::Request, plain: Response, connection: Option<&str>) -> Box<dyn Write + Send> {
    let version = request.http_version().clone();
    let head = *request.method() == Method::Head;
    let mut writer = request.into_writer();
    // The request's headers are left out: a `TE` among them would make the crate send chunks without a length.
    // An error is the client's: it has gone, or its connection was cut because it does not read.
    let _ = response(plain, connection).raw_print(&mut writer, version, &[], head, None).and_then(|()| writer.flush());
    writer
}

pub(super) fn response(plain: Response, connection: Option<&str>) -> tiny_http::Response<Cursor<Vec<u8>>> {
    let Response { status, headers, body } = plain;
    let mut fields: Vec<Header> = headers.iter().map(|(name, value)| header(name, value)).collect();
    // The crate drops a field named `Connection`, but passes line ends in a value.
    fields.push(match connection {
        Some(option) => header("Server", &format!("tollgate\r\nConnection: {option}")),
        None => header("Server", "tollgate"),
    });
    let length = body.len();
    let body = Cursor::new(body.into_owned().into_bytes());
    // A long body would be sent in chunks: those of ours are all at hand and have a length.
    tiny_http::Response::new(status.into(), fields, body, Some(length), None).with_chunked_threshold(usize::MAX)
}

fn header(name: &str, value: &str) -> Header {
    Header::from_bytes(name, value).expect("our fields are ASCII")
}
