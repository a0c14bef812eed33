//! The forms of values. Each parser takes trimmed text and, when it does not fit, says what is accepted.

use std::time::Duration;

use crate::http::headers::MAX_INTEGER;
use crate::policy::{Algorithm, MAX_POLICIES, Policies, Policy};

/// The most digits behind the point of a rate: a millionth of a token a second is a token in eleven days.
const MAX_DECIMALS: usize = 6;

/// A client that is slower than a day is gone.
const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);

pub(super) fn port(text: &str) -> Result<u16, String> {
    digits(text).and_then(|number| u16::try_from(number).ok()).ok_or_else(|| "a whole number from 0 to 65535".into())
}

/// A number of things that this process holds.
pub(super) fn count(text: &str, most: usize) -> Result<usize, String> {
    let number = digits(text).and_then(|number| usize::try_from(number).ok());
    number.filter(|number| (1..=most).contains(number)).ok_or_else(|| format!("a whole number from 1 to {most}"))
}

/// A capacity or limit: what a header field can carry.
pub(super) fn quota(text: &str) -> Result<u64, String> {
    let number = digits(text).filter(|number| (1..=MAX_INTEGER).contains(number));
    number.ok_or_else(|| format!("a whole number from 1 to {MAX_INTEGER}"))
}

pub(super) fn algorithm(text: &str) -> Result<Algorithm, String> {
    text.parse().map_err(|_| {
        let names: Vec<&str> = Algorithm::ALL.map(Algorithm::name).into();
        format!("one of {}", names.join(", "))
    })
}

/// A length of time above 0. How long it may be is the policy's business.
pub(super) fn window(text: &str) -> Result<Duration, String> {
    duration(text)
        .filter(|window| !window.is_zero())
        .ok_or_else(|| "a duration above 0, such as 250ms, 10s, 1m, 2h or 1d; a bare number is seconds".into())
}

/// How long a client may take.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    duration(text)
        .filter(|timeout| !timeout.is_zero() && *timeout <= MAX_TIMEOUT)
        .ok_or_else(|| "a duration above 0 and up to 1d, such as 500ms, 30s, 1m".into())
}

/// Tokens and the period in which they come: `2`, `0.5`, `100/1m`.
pub(super) fn rate(text: &str) -> Result<(u64, Duration), String> {
    let parsed = match text.split_once('/') {
        Some((tokens, period)) => digits(tokens.trim_end()).zip(duration(period.trim_start())),
        None => decimal(text),
    };
    parsed.filter(|(tokens, period)| *tokens > 0 && !period.is_zero()).ok_or_else(|| {
        format!(
            "a number of tokens per second above 0, whole or with at most {MAX_DECIMALS} decimals (2, 0.5), \
             or an amount per duration (100/1m)"
        )
    })
}

/// `NAME=token-bucket:CAPACITY:REFILL_RATE` or `NAME=ALGORITHM:LIMIT/WINDOW`, with `;` between them.
pub(super) fn policies(text: &str) -> Result<Policies, String> {
    let parts = text.split(';').map(str::trim);
    // One at the end is a habit of people who write lists.
    let parts: Vec<&str> = match text.trim_end().strip_suffix(';') {
        Some(rest) => rest.split(';').map(str::trim).collect(),
        None => parts.collect(),
    };
    if parts.len() > MAX_POLICIES {
        return Err(format!("{} policies are more than {MAX_POLICIES}", parts.len()));
    }
    let policies = parts.into_iter().map(policy).collect::<Result<_, _>>()?;
    Policies::new(policies).map_err(|error| error.to_string())
}

fn policy(part: &str) -> Result<Policy, String> {
    let form = "NAME=token-bucket:CAPACITY:REFILL_RATE or NAME=ALGORITHM:LIMIT/WINDOW";
    let (name, rest) = part.split_once('=').ok_or_else(|| format!("policy '{part}' is not of the form {form}"))?;
    let name = name.trim();
    let wrong = |what: &str, value: &str, accepted: String| {
        format!("the {what} of policy '{name}' is '{value}'; accepted is {accepted}")
    };
    let (kind, settings) =
        rest.split_once(':').ok_or_else(|| format!("policy '{name}' is '{rest}', which is not of the form {form}"))?;
    let kind = kind.trim();
    let kind = algorithm(kind).map_err(|accepted| wrong("algorithm", kind, accepted))?;
    let policy = if kind == Algorithm::TokenBucket {
        let (capacity, refill) = settings
            .split_once(':')
            .ok_or_else(|| wrong("bucket", settings, "CAPACITY:REFILL_RATE, such as 10:1/1s".into()))?;
        let (capacity, refill) = (capacity.trim(), refill.trim());
        let tokens_and_period = rate(refill).map_err(|accepted| wrong("refill rate", refill, accepted))?;
        let capacity = quota(capacity).map_err(|accepted| wrong("capacity", capacity, accepted))?;
        Policy::token_bucket(capacity, tokens_and_period.0, tokens_and_period.1)
    } else {
        let (limit, length) =
            settings.split_once('/').ok_or_else(|| wrong("limit", settings, "LIMIT/WINDOW, such as 1000/1d".into()))?;
        let (limit, length) = (limit.trim(), length.trim());
        let length = window(length).map_err(|accepted| wrong("window", length, accepted))?;
        let limit = quota(limit).map_err(|accepted| wrong("limit", limit, accepted))?;
        match kind {
            Algorithm::FixedWindow => Policy::fixed_window(limit, length),
            Algorithm::SlidingWindowLog => Policy::sliding_window_log(limit, length),
            Algorithm::SlidingWindowCounter => Policy::sliding_window_counter(limit, length),
            Algorithm::TokenBucket => unreachable!("buckets were told apart above"),
        }
    };
    policy.and_then(|policy| policy.named(name)).map_err(|error| format!("policy '{name}': {error}"))
}

/// Plain digits, without a sign, that fit 64 bits.
pub(super) fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number = digits(number)?;
    let seconds = |each: u64| number.checked_mul(each).map(Duration::from_secs);
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "" | "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3_600),
        "d" => seconds(86_400),
        _ => None,
    }
}

/// Tokens per second as a whole number of tokens in a power of ten of seconds: exact, where a float would not be.
fn decimal(text: &str) -> Option<(u64, Duration)> {
    let Some((whole, decimals)) = text.split_once('.') else { return Some((digits(text)?, Duration::from_secs(1))) };
    digits(whole)?;
    digits(decimals)?;
    if decimals.len() > MAX_DECIMALS {
        return None;
    }
    let tokens = digits(&format!("{whole}{decimals}"))?;
    Some((tokens, Duration::from_secs(10u64.pow(u32::try_from(decimals.len()).ok()?))))
}
