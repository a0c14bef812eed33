//! The HTTP service.
//!
//! `routes` turns a plain request value into a plain response value; `headers` knows every field's name and form;
//! `identity` says who is counted, and `explain` how it came to that; `metrics` counts; `server` is the only room that knows
//! tiny_http.

pub mod explain;
pub mod headers;
pub mod identity;
pub mod metrics;
pub mod routes;
pub mod server;

use std::borrow::Cow;
use std::net::IpAddr;

/// What the routes need to know of a request. Bodies are never read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    /// The request target as it came: origin form, absolute form or `*`.
    pub(crate) target: &'a str,
    /// The other end of the connection; `None` on a Unix socket.
    pub(crate) peer: Option<IpAddr>,
    /// Name and value of each header line, in order. Either may hold any ASCII byte.
    pub(crate) headers: &'a [(&'a str, &'a str)],
}

/// What the server sends. `HEAD` gets the same without the body: leaving it out is the server's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, Cow<'static, str>)>,
    pub(crate) body: Cow<'static, str>,
}
