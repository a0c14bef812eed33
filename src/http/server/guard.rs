//! A guard for a program that has a tiny_http server already.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use super::answer;
use crate::client::ClientKey;
use crate::decision::Outcome;
use crate::http::Response;
use crate::http::headers::{Families, RateLimitFields, refusal, unavailable};
use crate::limiter::RateLimiter;

/// Lets requests of a tiny_http server through, or refuses them with 429 and all the fields that tollgate sends.
///
/// Clients are told apart by the address of their connection; IPv6 clients of one /64 are one.
///
/// ```no_run
/// use std::time::Duration;
/// use tollgate::{Guard, Policy, RateLimiter};
///
/// let limiter = RateLimiter::new(Policy::token_bucket(10, 1, Duration::from_secs(1))?);
/// let guard = Guard::new(limiter);
/// let server = tiny_http::Server::http("127.0.0.1:8000").expect("a free port");
/// for request in server.incoming_requests() {
///     if let Some(request) = guard.admit(request)? {
///         request.respond(tiny_http::Response::from_string("hello"))?;
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Guard {
    limiter: RateLimiter,
    fields: RateLimitFields,
}

impl Guard {
    /// A guard that asks this limiter.
    #[must_use]
    pub fn new(limiter: RateLimiter) -> Self {
        let fields = RateLimitFields::new(limiter.policies(), Families { ietf: true, legacy: true });
        Self { limiter, fields }
    }

    /// Gives the request back if it may pass. If not, it has been answered.
    ///
    /// # Errors
    /// When the refusal cannot be written.
    pub fn admit(&self, request: tiny_http::Request) -> io::Result<Option<tiny_http::Request>> {
        /// One host owns a whole network of this size, or more.
        const IPV6_PREFIX: u8 = 64;
        let peer = request.remote_addr().map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |address| address.ip());
        let (decision, now) = self.limiter.check_timed(ClientKey::network(peer, IPV6_PREFIX));
        let mut response = match decision.outcome() {
            Outcome::Allowed => return Ok(Some(request)),
            Outcome::Refused { retry_after } => refusal(429, &decision, self.limiter.policies(), retry_after),
            Outcome::Unavailable { retry_after } => unavailable(retry_after),
            Outcome::Never => unreachable!("a request costs 1, and a quota is at least 1"),
        };
        self.fields.add_to(&mut response, &decision, now);
        let response: Response = response.with("Cache-Control", "no-store");
        request.respond(answer::response(response, None)).map(|()| None)
    }
}
