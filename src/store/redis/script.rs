//! The script, the keys it works on, and what its reply means.
//!
//! One text for each set of algorithms: what they share, those that the policies need, and the frame. Never a text for each
//! policy, since servers keep every text they are sent.
//!
//! A key is `PREFIX:{CLIENT}:POLICY:SETTINGS`. The braces hold the client alone, so that all keys of a client live on one
//! node of a cluster. The settings are part of the name: a policy that changes starts afresh, and no number is read in
//! another's unit; what the old policy left goes when its TTL is over.

use std::fmt::Write;

use redis::{Script as Hashed, Value, cmd};
use smallvec::SmallVec;

use super::settings::{Kind, RedisError};
use crate::client;
use crate::client::ClientKey;
use crate::clock::Timestamp;
use crate::decision::{Decision, Ruling, Verdict};
use crate::policy::{Algorithm, Policy, Rule};

/// The largest quota and refill that a script counts exactly: twice as much is the last whole number of a double.
pub(super) const MAX_EXACT: u64 = 1 << 52;

const SHARED: &str = include_str!("lua/exact.lua");
const FRAME: &str = include_str!("lua/decide.lua");

/// Asks whether this server would take a decision: it runs scripts, it is no replica, it has room, the key is its own.
const PROBE: &str = "return redis.call('SET', KEYS[1], '', 'PX', 1000)";

/// Integers in the reply for each policy.
const FIELDS: usize = 5;

/// No wait is as long: time that goes back adds a span to the two of the counter.
const MAX_WAIT_IN_SPANS: u64 = 3;

/// What is sent for one set of policies.
pub(super) struct Script {
    text: String,
    hash: String,
    prefix: String,
    parts: Vec<Part>,
}

struct Part {
    /// Policy and settings, with the colon before them.
    key: String,
    /// Name and settings of the algorithm.
    arguments: Vec<String>,
    limit: u64,
    max_wait: u64,
}

impl Script {
    /// # Errors
    /// When a script could not count a policy exactly.
    pub(super) fn new(policies: &[Policy], prefix: &str) -> Result<Self, RedisError> {
        let mut text = SHARED.to_owned();
        for algorithm in Algorithm::ALL {
            if policies.iter().any(|policy| policy.algorithm() == algorithm) {
                text.push_str(lua(algorithm));
            }
        }
        text.push_str(FRAME);
        let parts = policies.iter().map(part).collect::<Result<_, _>>()?;
        let hash = Hashed::new(&text).get_hash().to_owned();
        Ok(Self { text, hash, prefix: prefix.to_owned(), parts })
    }

    /// One decision, by the hash of the script. An empty time is the server's.
    pub(super) fn call(&self, tag: &str, now: Option<Timestamp>, cost: u64) -> Vec<u8> {
        self.command("EVALSHA", &self.hash, tag, now, cost)
    }

    /// The same with the text, for a server that does not know the hash.
    pub(super) fn call_in_full(&self, tag: &str, now: Option<Timestamp>, cost: u64) -> Vec<u8> {
        self.command("EVAL", &self.text, tag, now, cost)
    }

    fn command(&self, name: &str, script: &str, tag: &str, now: Option<Timestamp>, cost: u64) -> Vec<u8> {
        let mut command = cmd(name);
        command.arg(script).arg(self.parts.len());
        for part in &self.parts {
            command.arg(self.key(tag, &part.key));
        }
        command.arg(now.map_or(String::new(), |now| now.as_micros().to_string())).arg(cost);
        for part in &self.parts {
            command.arg(&part.arguments);
        }
        command.get_packed_command()
    }

    /// Forgets a client.
    pub(super) fn forget(&self, tag: &str) -> Vec<u8> {
        let mut command = cmd("DEL");
        for part in &self.parts {
            command.arg(self.key(tag, &part.key));
        }
        command.get_packed_command()
    }

    /// Tries what a decision for this client needs, with a key of its own that is gone in a second.
    pub(super) fn probe(&self, tag: &str) -> Vec<u8> {
        cmd("EVAL").arg(PROBE).arg(1).arg(self.key(tag, ":probe")).get_packed_command()
    }

    fn key(&self, tag: &str, part: &str) -> String {
        format!("{}:{{{tag}}}{part}", self.prefix)
    }

    /// What a reply says; `None` when no decision looks like this, whoever sent it.
    pub(super) fn decision(&self, reply: &Value) -> Option<Decision> {
        let Value::Array(numbers) = reply else { return None };
        if numbers.len() != self.parts.len() * FIELDS {
            return None;
        }
        let number = |value: &Value| match value {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        let mut verdicts = SmallVec::new();
        for (part, fields) in self.parts.iter().zip(numbers.chunks_exact(FIELDS)) {
            let wait = |value| number(value).filter(|&wait| wait <= part.max_wait);
            let outcome = match (number(&fields[0])?, wait(&fields[2])?) {
                (0, 0) => Ruling::Allowed,
                (1, retry_after @ 1..) => Ruling::Refused { retry_after },
                (2, 0) => Ruling::Never,
                _ => return None,
            };
            verdicts.push(Verdict {
                outcome,
                limit: part.limit,
                remaining: number(&fields[1]).filter(|&remaining| remaining <= part.limit)?,
                more_after: wait(&fields[3])?,
                reset_after: wait(&fields[4])?,
            });
        }
        Some(Decision::all(verdicts))
    }
}

const fn lua(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::TokenBucket => include_str!("lua/token_bucket.lua"),
        Algorithm::FixedWindow => include_str!("lua/fixed_window.lua"),
        Algorithm::SlidingWindowLog => include_str!("lua/sliding_window_log.lua"),
        Algorithm::SlidingWindowCounter => include_str!("lua/sliding_window_counter.lua"),
    }
}

fn part(policy: &Policy) -> Result<Part, RedisError> {
    let (code, in_key, sent) = match policy.rule() {
        Rule::TokenBucket(bucket) => {
            let settings = vec![bucket.capacity, bucket.tokens, bucket.period];
            ("tb", settings.clone(), [settings, vec![bucket.fill_time]].concat())
        }
        Rule::FixedWindow(rule) => ("fw", vec![rule.limit, rule.window], vec![rule.limit, rule.window]),
        Rule::SlidingWindowLog(rule) => ("sl", vec![rule.limit, rule.window], vec![rule.limit, rule.window]),
        Rule::SlidingWindowCounter(rule) => ("sc", vec![rule.limit, rule.window], vec![rule.limit, rule.window]),
    };
    if sent.iter().any(|&setting| setting > MAX_EXACT) {
        return Err(RedisError(Kind::Inexact(policy.name().to_owned())));
    }
    let mut key = format!(":{}:{code}", policy.name());
    for setting in in_key {
        // Writing to a string cannot fail.
        let _ = write!(key, "-{setting}");
    }
    let name = policy.algorithm().name().to_owned();
    let arguments = std::iter::once(name).chain(sent.iter().map(u64::to_string)).collect();
    let span = u64::try_from(policy.span().as_micros()).expect("a span is at most a hundred years");
    Ok(Part { key, arguments, limit: policy.limit(), max_wait: span * MAX_WAIT_IN_SPANS })
}

/// The client as the keys name it: an address, or the digest of a name or an API key. The same in every instance, of
/// bounded length, and without braces.
pub(super) fn tag(client: ClientKey) -> String {
    let digest = |kind: &str, digest: [u8; 16]| format!("{kind}-{:032x}", u128::from_be_bytes(digest));
    match client.0 {
        client::Kind::V4(bits) => std::net::Ipv4Addr::from_bits(bits).to_string(),
        client::Kind::V6(octets) => std::net::Ipv6Addr::from(octets).to_string(),
        client::Kind::Name(name) => digest("name", name),
        client::Kind::ApiKey(key) => digest("key", key),
    }
}
