//! What is answered on which path: a plain request in, a plain response out. No socket, no thread.
//!
//! A path is matched as it is spelt: `/limited/` and `/%6cimited` are not found, so that no spelling slips past the limit.

use std::net::{IpAddr, Ipv6Addr};

use super::headers::{Families, RateLimitFields, refusal};
use super::{Request, Response};
use crate::client::ClientKey;
use crate::decision::Outcome;
use crate::limiter::RateLimiter;

/// The service behind the socket.
pub struct Service {
    limiter: RateLimiter,
    fields: RateLimitFields,
}

/// The paths that are known.
enum Route {
    Limited,
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
    /// A service that limits by `limiter` and tells clients so in these families of headers.
    #[must_use]
    pub fn new(limiter: RateLimiter, families: Families) -> Self {
        let fields = RateLimitFields::new(limiter.policies(), families);
        Self { limiter, fields }
    }

    pub(crate) fn answer(&self, request: &Request<'_>) -> Response {
        match route(request.method, request.target) {
            Ok(Route::Limited) => self.limited(request),
            Ok(Route::Unlimited) => Response::text(200, "unlimited\n"),
            Ok(Route::Healthz) => {
                Response::new(200, "application/json", self.health()).with("Cache-Control", "no-store")
            }
            Err(NoRoute::NotFound) => Response::text(404, "not found: there are /limited, /unlimited and /healthz\n"),
            Err(NoRoute::Method) => {
                Response::text(405, "method not allowed: GET and HEAD are\n").with("Allow", "GET, HEAD")
            }
            Err(NoRoute::Target) => Response::text(400, "bad request: the target is no path\n"),
        }
    }

    fn limited(&self, request: &Request<'_>) -> Response {
        // Without a peer address all clients are one.
        let client = ClientKey::from(request.peer.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)));
        let (decision, now) = self.limiter.check_timed(client);
        let mut response = match decision.outcome() {
            Outcome::Allowed => Response::text(200, "let in\n"),
            Outcome::Refused { retry_after } => refusal(429, &decision, self.limiter.policies(), retry_after),
            Outcome::Never => unreachable!("a request costs 1, and a quota is at least 1"),
            Outcome::Unavailable { .. } => {
                Response::text(503, "the store of the limiter does not answer\n").with("Retry-After", "1")
            }
        };
        self.fields.add_to(&mut response, &decision, now);
        response.with("Cache-Control", "no-store")
    }

    fn health(&self) -> String {
        serde_json::json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION"), "store": "memory" }).to_string()
    }
}

fn route(method: &str, target: &str) -> Result<Route, NoRoute> {
    let route = match path(target).ok_or(NoRoute::Target)? {
        "/limited" => Route::Limited,
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
