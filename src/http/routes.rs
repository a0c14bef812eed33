//! What is answered on which path: a plain request in, a plain response out. No socket, no thread.
//!
//! A path is matched as it is spelt: `/limited/` and `/%6cimited` are not found, so that no spelling slips past the limit.
//! Only `/check` has paths below it, for proxies that put the path they ask about behind it, and takes any method, for
//! those that keep the method.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::headers::{Families, RateLimitFields, refusal, unavailable};
use super::identity::{Client, Found, Trust, identify};
use super::metrics::{self, Counters, Traffic};
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
    traffic: Traffic,
    counters: Arc<Counters>,
    /// Whether it was said that a peer sends a forwarding header and is not trusted.
    told_of_untrusted: AtomicBool,
}

/// The paths that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Limited,
    Check,
    Unlimited,
    Healthz,
    Metrics,
}

impl Route {
    pub(super) const ALL: [Self; 5] = [Self::Limited, Self::Check, Self::Unlimited, Self::Healthz, Self::Metrics];

    /// Its path, without the slash.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Limited => "limited",
            Self::Check => "check",
            Self::Unlimited => "unlimited",
            Self::Healthz => "healthz",
            Self::Metrics => "metrics",
        }
    }
}

/// Why a request has no route.
enum NoRoute {
    NotFound,
    /// The path is known, the method is not.
    Method(Route),
    /// No path at all.
    Target,
}

impl Service {
    /// A service that limits by `limiter`, and tells what the server in front of it counts.
    #[must_use]
    pub fn new(limiter: RateLimiter, settings: Settings, counters: Arc<Counters>) -> Self {
        let fields = RateLimitFields::new(limiter.policies(), settings.headers);
        let traffic = Traffic::new(limiter.policies());
        Self { limiter, settings, fields, traffic, counters, told_of_untrusted: AtomicBool::new(false) }
    }

    pub(crate) fn answer(&self, request: &Request<'_>) -> Response {
        let route = route(request.method, request.target);
        let response = self.respond(request, &route);
        let known = match route {
            Ok(route) | Err(NoRoute::Method(route)) => Some(route),
            Err(NoRoute::NotFound | NoRoute::Target) => None,
        };
        self.traffic.answered(known, response.status);
        response
    }

    fn respond(&self, request: &Request<'_>, route: &Result<Route, NoRoute>) -> Response {
        match route {
            Ok(Route::Limited) => self.decide(request, Response::text(200, "let in\n"), TOO_MANY_REQUESTS),
            Ok(Route::Check) => self.decide(request, Response::empty(200), self.settings.deny.code()),
            Ok(Route::Unlimited) => Response::text(200, "unlimited\n"),
            Ok(Route::Healthz) => {
                Response::new(200, "application/json", self.health()).with("Cache-Control", "no-store")
            }
            Ok(Route::Metrics) => {
                let body = metrics::exposition(&self.counters, &self.traffic, &self.limiter);
                Response::new(200, metrics::CONTENT_TYPE, body).with("Cache-Control", "no-store")
            }
            Err(NoRoute::NotFound) => {
                Response::text(404, "not found: there are /limited, /unlimited, /check, /healthz and /metrics\n")
            }
            Err(NoRoute::Method(_)) => {
                Response::text(405, "method not allowed: GET and HEAD are\n").with("Allow", "GET, HEAD")
            }
            Err(NoRoute::Target) => Response::text(400, "bad request: the target is no path\n"),
        }
    }

    /// Counts the request: `allowed`, or a refusal of this status.
    fn decide(&self, request: &Request<'_>, allowed: Response, denied: u16) -> Response {
        let client = self.client(request).key;
        let begun = Instant::now();
        let (decision, now) = self.limiter.check_timed(client);
        self.traffic.decided(&decision, begun.elapsed());
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
        self.traffic.identified(client.found);
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
        "/metrics" => Route::Metrics,
        _ => return Err(NoRoute::NotFound),
    };
    if matches!(method, "GET" | "HEAD") { Ok(route) } else { Err(NoRoute::Method(route)) }
}

/// Whether this is what one looks at when the service is overloaded. Answering asks nobody.
pub(super) fn is_about_the_service(target: &str) -> bool {
    matches!(path(target), Some("/healthz" | "/metrics"))
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
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::http::identity::Trust;
    use crate::policy::Policy;

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

    proptest! {
        #[test]
        fn whatever_is_asked_has_one_answer_of_a_few_and_no_field_twice(
            method in prop_oneof!["GET|HEAD|POST|OPTIONS", "\\PC{0,8}"],
            target in prop_oneof!["(http://[a-z]{0,3})?/(limited|unlimited|check|healthz|metrics)[/?]?.{0,8}", ".{0,40}"],
            fields in proptest::collection::vec(
                (prop_oneof!["X-Forwarded-For|Forwarded|X-Key|Host", ".{0,9}"], ".{0,60}"),
                0..6,
            ),
            trusted in any::<bool>(),
        ) {
            let trust = Trust {
                proxies: if trusted { "0.0.0.0/0,unix".parse().expect("networks") } else { Default::default() },
                header: "X-Forwarded-For".parse().expect("a name"),
                api_key_header: Some("X-Key".parse().expect("a name")),
                ipv6_prefix: "64".parse().expect("a prefix"),
            };
            let policy = Policy::fixed_window(3, Duration::from_secs(1)).expect("a valid policy");
            let headers = Families { ietf: true, legacy: true };
            let settings = Settings { trust, headers, deny: DenyStatus::default() };
            let service = Service::new(RateLimiter::new(policy), settings, Arc::default());
            let headers: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
            for peer in [None, Some([192, 0, 2, 1].into())] {
                let request = Request { method: &method, target: &target, peer, headers: &headers };
                for _ in 0..4 {
                    let response = service.answer(&request);
                    prop_assert!([200, 400, 404, 405, 429].contains(&response.status), "{}", response.status);
                    let mut names: Vec<_> = response.headers.iter().map(|(name, _)| name.to_lowercase()).collect();
                    names.sort();
                    names.dedup();
                    prop_assert_eq!(names.len(), response.headers.len());
                    let clean = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
                    prop_assert!(response.headers.iter().all(|(_, value)| clean(value)), "{:?}", response.headers);
                }
            }
        }
    }
}
