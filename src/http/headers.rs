//! Every field that the service sends, and its form. One room, because the draft still moves.
//!
//! `RateLimit` and `RateLimit-Policy` have the syntax of drafts 08 to 11 of draft-ietf-httpapi-ratelimit-headers, in the
//! canonical form of RFC 9651; `X-RateLimit-*` are as GitHub sends them; the refusal is a problem of RFC 9457. Waits are
//! rounded up to what a field can carry, in one place: told too short, an obedient client would be refused again.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt::Write;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use super::Response;
use crate::clock::Timestamp;
use crate::decision::{Decision, Outcome, Verdict};
use crate::policy::Policy;

/// The draft's letters: quota and window in the policy, remaining and time in the state.
const QUOTA: &str = "q";
const WINDOW: &str = "w";
const REMAINING: &str = "r";
const TIME: &str = "t";

/// Types and titles of the draft's problems. The type is not registered yet.
const QUOTA_EXCEEDED: (&str, &str) =
    ("https://iana.org/assignments/http-problem-types#quota-exceeded", "Quota Exceeded");

const REDUCED_CAPACITY: (&str, &str) =
    ("https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", "Temporary Reduced Capacity");

/// The largest integer of a structured field, RFC 9651 section 3.3.1: the largest quota that the headers can tell.
pub(crate) const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Which families of fields are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    /// `RateLimit-Policy` and `RateLimit`.
    pub ietf: bool,
    /// `X-RateLimit-*`.
    pub legacy: bool,
}

/// What [`Families`] is read from.
pub(crate) const FAMILIES_ACCEPTED: &str = "ietf, legacy, both with a comma between them, or none";

impl FromStr for Families {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut families = Self { ietf: false, legacy: false };
        let text = text.to_ascii_lowercase();
        if text == "none" {
            return Ok(families);
        }
        for name in text.split(',') {
            match name.trim() {
                "ietf" => families.ietf = true,
                "legacy" => families.legacy = true,
                _ => return Err(FAMILIES_ACCEPTED),
            }
        }
        Ok(families)
    }
}

/// The fields that tell a client its limits, for one set of policies.
pub(crate) struct RateLimitFields {
    families: Families,
    /// `RateLimit-Policy`, which is the same in every answer.
    policy: String,
    /// Quoted names, in the order of the policies.
    names: Vec<String>,
    /// The limit, when there is one policy: with several it takes a decision to know which one is the tightest.
    only_limit: Option<u64>,
}

impl RateLimitFields {
    pub(crate) fn new(policies: &[Policy], families: Families) -> Self {
        let names: Vec<String> = policies.iter().map(|policy| quoted(policy.name())).collect();
        let member = |(name, policy): (&String, &Policy)| {
            format!("{name};{QUOTA}={};{WINDOW}={}", policy.limit().min(MAX_INTEGER), seconds_up(policy.span()))
        };
        let policy = names.iter().zip(policies).map(member).collect::<Vec<_>>().join(", ");
        let only_limit = if let [policy] = policies { Some(policy.limit()) } else { None };
        Self { families, policy, names, only_limit }
    }

    /// Adds the fields to an answer. `now` is the wall clock at the decision.
    pub(crate) fn add_to(&self, response: &mut Response, decision: &Decision, now: Timestamp) {
        if self.families.ietf {
            response.add("RateLimit-Policy", self.policy.clone());
            // What only the shared store knows is not told while it does not answer.
            if !decision.verdicts().is_empty() {
                response.add("RateLimit", self.state(decision));
            }
        }
        if !self.families.legacy {
            return;
        }
        let verdict = decision.tightest();
        if let Some(limit) = verdict.map(Verdict::limit).or(self.only_limit) {
            response.add("X-RateLimit-Limit", limit.to_string());
        }
        if let Some(verdict) = verdict {
            response.add("X-RateLimit-Remaining", verdict.remaining().to_string());
            let reset_at = Duration::from_micros(now.as_micros()) + verdict.reset_after();
            response.add("X-RateLimit-Reset", seconds_up(reset_at).to_string());
        }
    }

    fn state(&self, decision: &Decision) -> String {
        let mut field = String::with_capacity(32 * self.names.len());
        for (name, verdict) in self.names.iter().zip(decision.verdicts()) {
            let separator = if field.is_empty() { "" } else { ", " };
            let (remaining, time) = (verdict.remaining().min(MAX_INTEGER), seconds_up(verdict.more_after()));
            // Writing to a string cannot fail.
            let _ = write!(field, "{separator}{name};{REMAINING}={remaining};{TIME}={time}");
        }
        field
    }
}

/// A refusal: 429, or the status that a proxy understands.
pub(crate) fn refusal(status: u16, decision: &Decision, policies: &[Policy], retry_after: Duration) -> Response {
    let violated: Vec<&str> = policies
        .iter()
        .zip(decision.verdicts())
        .filter(|(_, verdict)| verdict.outcome() != Outcome::Allowed)
        .map(|(policy, _)| policy.name())
        .collect();
    let retry_after_ms = retry_after.as_micros().div_ceil(1_000);
    let detail = format!("Too many requests for {}: try again in {retry_after_ms} ms.", violated.join(" and "));
    problem(status, QUOTA_EXCEEDED, detail, Some(violated), retry_after)
}

/// 503, while the shared store does not answer and nobody is let in without it.
pub(crate) fn unavailable(retry_after: Duration) -> Response {
    let detail = "The store that counts requests does not answer, and without it nobody is let in.".to_owned();
    problem(503, REDUCED_CAPACITY, detail, None, retry_after)
}

fn problem(
    status: u16,
    (kind, title): (&'static str, &'static str),
    detail: String,
    violated_policies: Option<Vec<&str>>,
    retry_after: Duration,
) -> Response {
    let retry_after_ms = retry_after.as_micros().div_ceil(1_000);
    let problem = Problem { kind, title, status, detail, violated_policies, retry_after_ms };
    let mut response = Response::new(status, "application/problem+json", problem.to_json());
    response.add("Retry-After", seconds_up(retry_after).max(1).to_string());
    response
}

/// A problem of RFC 9457, in the order in which people read it.
#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    violated_policies: Option<Vec<&'a str>>,
    retry_after_ms: u128,
}

impl Problem<'_> {
    fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers are always JSON")
    }
}

impl Response {
    pub(crate) fn new(status: u16, content_type: &'static str, body: impl Into<Cow<'static, str>>) -> Self {
        Self { status, headers: vec![("Content-Type", content_type.into())], body: body.into() }
    }

    pub(crate) fn text(status: u16, body: &'static str) -> Self {
        Self::new(status, "text/plain; charset=utf-8", body)
    }

    pub(crate) fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Cow::Borrowed("") }
    }

    /// Adds a field. Values never hold text of the request, which may carry a line end.
    pub(crate) fn add(&mut self, name: &'static str, value: impl Into<Cow<'static, str>>) {
        self.headers.push((name, value.into()));
    }

    pub(crate) fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.add(name, value);
        self
    }
}

impl Decision {
    /// The verdict that a client with room for only one should know: on a refusal the one with the longest wait, else the
    /// one with the smallest share of its quota left. `None` when nobody was asked, since the store does not answer.
    fn tightest(&self) -> Option<&Verdict> {
        let wait = |verdict: &Verdict| match verdict.outcome() {
            Outcome::Allowed => Duration::ZERO,
            Outcome::Refused { retry_after } => retry_after,
            Outcome::Never | Outcome::Unavailable { .. } => Duration::MAX,
        };
        // `a/b < c/d` as `a·d < c·b`: shares of 64-bit numbers compare exactly in 128 bits.
        let share = |a: &Verdict, b: &Verdict| {
            let scaled = |a: &Verdict, b: &Verdict| u128::from(a.remaining()) * u128::from(b.limit());
            scaled(a, b).cmp(&scaled(b, a))
        };
        let tighter = |a: &&Verdict, b: &&Verdict| wait(b).cmp(&wait(a)).then_with(|| share(a, b));
        self.verdicts().iter().min_by(tighter)
    }
}

/// Whole seconds, rounded up: the only rounding of times that leave the service.
fn seconds_up(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// A string of RFC 9651. Names of policies hold nothing that needs an escape.
fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}
