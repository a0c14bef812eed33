//! What is answered on which path: a plain request in, a plain response out. No socket, no thread.
//!
//! A path is matched as it is spelt: `/limited/` and `/%6cimited` are not found, so that no spelling slips past the limit.
//! Only `/check` has paths below it, for proxies that put the path they ask about behind it, and takes any method, for
//! those that keep the method.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::headers::{Families, RateLimitFields, refusal, unavailable};
use super::identity::{Client, Found, Trust, identify};
use super::{Request, Response};
use crate::decision::Outcome;
use crate::limiter::RateLimiter;
use crate::store::StoreState;

/// How the service tells clients apart, and what it tells them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whom to believe about who the client is.
    pub trust: Trust,
    /// Which families of headers are sent.
    pub headers: Families,
    /// How a refusal is told to a proxy.
    pub deny: DenyStatus,
}

/// The status of a refusal on `/check`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DenyStatus {
    /// 429, which every other path has.
    #[default]
    TooManyRequests,
    /// 403, for proxies to which any other status is an error of this service.
    Forbidden,
}

/// What [`DenyStatus`] is read from.
pub(crate) const DENY_STATUS_ACCEPTED: &str = "429 or 403";

impl FromStr for DenyStatus {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "429" => Ok(Self::TooManyRequests),
            "403" => Ok(Self::Forbidden),
            _ => Err(DENY_STATUS_ACCEPTED),
        }
    }
}

impl DenyStatus {
    fn code(self) -> u16 {
        match self {
            Self::TooManyRequests => TOO_MANY_REQUESTS,
            Self::Forbidden => 403,
        }
    }
}

const TOO_MANY_REQUESTS: u16 = 429;

/// The service behind the socket.
pub struct Service {
    limiter: RateLimiter,
    settings: Settings,
    fields: RateLimitFields,
    /// Whether it was said that a peer sends a forwarding header and is not trusted.
    told_of_untrusted: AtomicBool,
}

/// The paths that are known.
enum Route {
    Limited,
    Check,
    Unlimited,
    Healthz,
}

/// Why a request has no route.
enum NoRoute {
    NotFound,
    /// The path is known, the method is not.
    Method,
    /// No path at all.
    Target,
}

impl Service {
    /// A service that limits by `limiter`.
    #[must_use]
    pub fn new(limiter: RateLimiter, settings: Settings) -> Self {
        let fields = RateLimitFields::new(limiter.policies(), settings.headers);
        Self { limiter, settings, fields, told_of_untrusted: AtomicBool::new(false) }
    }

    pub(crate) fn answer(&self, request: &Request<'_>) -> Response {
        match route(request.method, request.target) {
            Ok(Route::Limited) => self.decide(request, Response::text(200, "let in\n"), TOO_MANY_REQUESTS),
            Ok(Route::Check) => self.decide(request, Response::empty(200), self.settings.deny.code()),
            Ok(Route::Unlimited) => Response::text(200, "unlimited\n"),
            Ok(Route::Healthz) => {
                Response::new(200, "application/json", self.health()).with("Cache-Control", "no-store")
            }
            Err(NoRoute::NotFound) => {
                Response::text(404, "not found: there are /limited, /unlimited, /check and /healthz\n")
            }
            Err(NoRoute::Method) => {
                Response::text(405, "method not allowed: GET and HEAD are\n").with("Allow", "GET, HEAD")
            }
            Err(NoRoute::Target) => Response::text(400, "bad request: the target is no path\n"),
        }
    }

    /// Counts the request: `allowed`, or a refusal of this status.
    fn decide(&self, request: &Request<'_>, allowed: Response, denied: u16) -> Response {
        let (decision, now) = self.limiter.check_timed(self.client(request).key);
        let mut response = match decision.outcome() {
            Outcome::Allowed => allowed,
            Outcome::Refused { retry_after } => refusal(denied, &decision, self.limiter.policies(), retry_after),
            Outcome::Never => unreachable!("a request costs 1, and a quota is at least 1"),
            Outcome::Unavailable { retry_after } => unavailable(retry_after),
        };
        self.fields.add_to(&mut response, &decision, now);
        response.with("Cache-Control", "no-store")
    }

    fn client(&self, request: &Request<'_>) -> Client {
        let client = identify(&self.settings.trust, request.peer, request.headers);
        let told = &self.told_of_untrusted;
        let untrusted = client.found == Found::Peer { sent_header: true };
        if untrusted && !told.load(Ordering::Relaxed) && !told.swap(true, Ordering::Relaxed) {
            let header = self.settings.trust.header.name();
            let (peer, setting) = match request.peer.map(|peer| peer.to_canonical()) {
                Some(peer) => (format!("peer {peer}"), peer.to_string()),
                None => ("a peer without an address".to_owned(), "unix".to_owned()),
            };
            log::warn!(
                "{peer} sent {header}, which is ignored: it is not trusted, and all that it asks for is counted as one \
                 client; if it is your proxy, set TRUSTED_PROXIES={setting} (said once)"
            );
        }
        client
    }

    fn health(&self) -> String {
        let store = match self.limiter.store_state() {
            StoreState::Memory => "memory".to_owned(),
            StoreState::Up => "up".to_owned(),
            StoreState::Down(mode) => format!("down: {}", mode.name()),
        };
        serde_json::json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION"), "store": store }).to_string()
    }
}

fn route(method: &str, target: &str) -> Result<Route, NoRoute> {
    let route = match path(target).ok_or(NoRoute::Target)? {
        "/limited" => Route::Limited,
        path if path == "/check" || path.starts_with("/check/") => return Ok(Route::Check),
        "/unlimited" => Route::Unlimited,
        "/healthz" => Route::Healthz,
        _ => return Err(NoRoute::NotFound),
    };
    if matches!(method, "GET" | "HEAD") { Ok(route) } else { Err(NoRoute::Method) }
}

/// The path of a request target in origin form or absolute form (RFC 9112, section 3.2), without the query.
fn path(target: &str) -> Option<&str> {
    let origin = if target.starts_with('/') {
        target
    } else {
        let (scheme, rest) = target.split_once("://")?;
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return None;
        }
        rest.find(['/', '?']).map_or("/", |end| &rest[end..])
    };
    let path = origin.split('?').next()?;
    Some(if path.is_empty() { "/" } else { path })
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn a_target_leads_to_its_path_in_origin_and_absolute_form() {
        for (target, expected) in [
            ("/limited", Some("/limited")),
            ("/limited?x=/unlimited", Some("/limited")),
            ("http://host/limited", Some("/limited")),
            ("HTTP://host:8080/limited?x", Some("/limited")),
            ("http://host", Some("/")),
            ("http://host?x", Some("/")),
            ("//limited", Some("//limited")),
            ("/limited/", Some("/limited/")),
            ("", None),
            ("*", None),
            ("foo", None),
            ("ftp://host/limited", None),
            ("http:/limited", None),
        ] {
            assert_eq!(path(target), expected, "{target:?}");
        }
    }
}
