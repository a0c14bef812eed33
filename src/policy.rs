//! Policies: an algorithm with its settings, validated once. Impossible values do not exist below this room.
//!
//! The bounds are those under which every product and sum of the algorithms stays exact, in `u64` and `u128` here and in
//! split doubles in the store. Text is not parsed here, except the names of algorithms.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The longest window, and the longest time in which an empty bucket may fill: a hundred years.
///
/// An instant plus two such spans stays below 2^53 microseconds until the year 2055, so a Redis script counts it exactly.
pub const MAX_SPAN: Duration = Duration::from_secs(36_525 * 86_400);

/// The largest limit of a sliding window log, which keeps eight bytes for each request in the window.
pub const MAX_LOG_LIMIT: u64 = 10_000_000;

/// The most policies that one limiter enforces together.
pub const MAX_POLICIES: usize = 8;

/// The longest name of a policy, in characters.
const MAX_NAME: usize = 32;

/// The name of a policy that was not given one.
const DEFAULT_NAME: &str = "default";

/// The four ways to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A bucket that holds so many tokens and fills at a steady rate.
    TokenBucket,
    /// A count for each window, whose borders are whole multiples of its length since the Unix epoch.
    FixedWindow,
    /// The time of every request let in: exact.
    SlidingWindowLog,
    /// The count of this window and a share of the last one's: close to the log at the price of three numbers.
    SlidingWindowCounter,
}

impl Algorithm {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 4] =
        [Self::TokenBucket, Self::FixedWindow, Self::SlidingWindowLog, Self::SlidingWindowCounter];

    /// The name in settings and reports, such as `token-bucket`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token-bucket",
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindowLog => "sliding-window-log",
            Self::SlidingWindowCounter => "sliding-window-counter",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = PolicyError;

    /// Reads a name; case does not matter, and `_` is taken for `-`.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let name = text.to_ascii_lowercase().replace('_', "-");
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name).ok_or(PolicyError(Kind::Algorithm))
    }
}

/// One limit: a name, an algorithm and its settings.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Policy;
///
/// let burst = Policy::token_bucket(10, 1, Duration::from_secs(1))?.named("burst")?;
/// let daily = Policy::sliding_window_counter(1_000_000, Duration::from_secs(86_400))?.named("daily")?;
/// assert_eq!((burst.limit(), daily.limit()), (10, 1_000_000));
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    name: Box<str>,
    rule: Rule,
}

/// An algorithm with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingWindowLog(SlidingWindowLog),
    SlidingWindowCounter(SlidingWindowCounter),
}

/// `tokens` per `period` microseconds, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    pub(crate) capacity: u64,
    pub(crate) tokens: u64,
    pub(crate) period: u64,
    /// The full bucket, in units of 1/`period` of a token: `capacity * period`. A microsecond adds `tokens` units.
    pub(crate) full: u64,
    /// Microseconds in which an empty bucket fills, rounded up.
    pub(crate) fill_time: u64,
}

/// At most `limit` in each `window` microseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedWindow {
    pub(crate) limit: u64,
    pub(crate) window: u64,
}

/// At most `limit` in any `window` microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlidingWindowLog {
    pub(crate) limit: u64,
    pub(crate) window: u64,
}

/// At most about `limit` in any `window` microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlidingWindowCounter {
    pub(crate) limit: u64,
    pub(crate) window: u64,
}

impl Policy {
    /// A bucket that holds at most `capacity` tokens and gains `tokens` in every `period`, evenly.
    ///
    /// In any time T it lets in at most `capacity` + `tokens` · T / `period`.
    ///
    /// # Errors
    /// When a number or the period is 0, the period is not whole microseconds, an empty bucket needs more than
    /// [`MAX_SPAN`] to fill, or `capacity` times the period in microseconds passes 64 bits (after `tokens` per `period` is
    /// brought to lowest terms).
    pub fn token_bucket(capacity: u64, tokens: u64, period: Duration) -> Result<Self, PolicyError> {
        if capacity == 0 {
            return Err(PolicyError(Kind::ZeroQuota));
        }
        if tokens == 0 {
            return Err(PolicyError(Kind::ZeroRate));
        }
        let period = span(period)?;
        let divisor = gcd(tokens, period);
        let (tokens, period) = (tokens / divisor, period / divisor);
        let full = capacity.checked_mul(period).ok_or(PolicyError(Kind::BucketTooFine))?;
        let fill_time = full.div_ceil(tokens);
        if u128::from(fill_time) > MAX_SPAN.as_micros() {
            return Err(PolicyError(Kind::BucketTooSlow));
        }
        Ok(Self::of(Rule::TokenBucket(TokenBucket { capacity, tokens, period, full, fill_time })))
    }

    /// At most `limit` in each window. Windows start at whole multiples of their length since the Unix epoch, in UTC, so
    /// that two full quotas fit round a border.
    ///
    /// # Errors
    /// When the limit or the window is 0, or the window is not whole microseconds or longer than [`MAX_SPAN`].
    pub fn fixed_window(limit: u64, window: Duration) -> Result<Self, PolicyError> {
        let (limit, window) = window_of(limit, window)?;
        Ok(Self::of(Rule::FixedWindow(FixedWindow { limit, window })))
    }

    /// At most `limit` in any stretch of time as long as the window: exact, at eight bytes for each request in it.
    ///
    /// # Errors
    /// When the limit or the window is 0, the limit is above [`MAX_LOG_LIMIT`], or the window is not whole microseconds or
    /// longer than [`MAX_SPAN`].
    pub fn sliding_window_log(limit: u64, window: Duration) -> Result<Self, PolicyError> {
        let (limit, window) = window_of(limit, window)?;
        if limit > MAX_LOG_LIMIT {
            return Err(PolicyError(Kind::LogTooLong));
        }
        Ok(Self::of(Rule::SlidingWindowLog(SlidingWindowLog { limit, window })))
    }

    /// About `limit` in any stretch of time as long as the window: the previous window's count, weighted by the share of it
    /// that is still in reach, stands in for the times.
    ///
    /// # Errors
    /// When the limit or the window is 0, or the window is not whole microseconds or longer than [`MAX_SPAN`].
    pub fn sliding_window_counter(limit: u64, window: Duration) -> Result<Self, PolicyError> {
        let (limit, window) = window_of(limit, window)?;
        Ok(Self::of(Rule::SlidingWindowCounter(SlidingWindowCounter { limit, window })))
    }

    fn of(rule: Rule) -> Self {
        Self { name: DEFAULT_NAME.into(), rule }
    }

    /// The same policy under another name: 1 to 32 of `a-z`, `0-9`, `-`, `_`. Without this it is `default`.
    ///
    /// # Errors
    /// When the name is anything else.
    pub fn named(self, name: &str) -> Result<Self, PolicyError> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(plain) {
            return Err(PolicyError(Kind::Name));
        }
        Ok(Self { name: name.into(), ..self })
    }

    /// The name that headers, problem bodies and reports show.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The way in which it counts.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self.rule {
            Rule::TokenBucket(_) => Algorithm::TokenBucket,
            Rule::FixedWindow(_) => Algorithm::FixedWindow,
            Rule::SlidingWindowLog(_) => Algorithm::SlidingWindowLog,
            Rule::SlidingWindowCounter(_) => Algorithm::SlidingWindowCounter,
        }
    }

    /// The whole quota: the capacity of a bucket, the limit of a window.
    #[must_use]
    pub fn limit(&self) -> u64 {
        match self.rule {
            Rule::TokenBucket(bucket) => bucket.capacity,
            Rule::FixedWindow(FixedWindow { limit, .. })
            | Rule::SlidingWindowLog(SlidingWindowLog { limit, .. })
            | Rule::SlidingWindowCounter(SlidingWindowCounter { limit, .. }) => limit,
        }
    }

    /// The time that the quota is for: the window, or for a bucket the time in which an empty one fills, rounded up to a
    /// microsecond.
    #[must_use]
    pub fn span(&self) -> Duration {
        Duration::from_micros(match self.rule {
            Rule::TokenBucket(bucket) => bucket.fill_time,
            Rule::FixedWindow(FixedWindow { window, .. })
            | Rule::SlidingWindowLog(SlidingWindowLog { window, .. })
            | Rule::SlidingWindowCounter(SlidingWindowCounter { window, .. }) => window,
        })
    }

    pub(crate) fn rule(&self) -> Rule {
        self.rule
    }
}

/// The policies that one limiter enforces together: at least one, at most [`MAX_POLICIES`], with names that differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies(Vec<Policy>);

impl Policies {
    /// Several limits that a request must pass all at once.
    ///
    /// # Errors
    /// When there are none, more than [`MAX_POLICIES`], or two of one name.
    pub fn new(policies: Vec<Policy>) -> Result<Self, PolicyError> {
        if policies.is_empty() || policies.len() > MAX_POLICIES {
            return Err(PolicyError(Kind::Count));
        }
        for (index, policy) in policies.iter().enumerate() {
            if policies[..index].iter().any(|earlier| earlier.name == policy.name) {
                return Err(PolicyError(Kind::DuplicateName));
            }
        }
        Ok(Self(policies))
    }
}

impl From<Policy> for Policies {
    fn from(policy: Policy) -> Self {
        Self(vec![policy])
    }
}

impl std::ops::Deref for Policies {
    type Target = [Policy];

    fn deref(&self) -> &[Policy] {
        &self.0
    }
}

/// Why a policy cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyError(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Algorithm,
    ZeroQuota,
    ZeroRate,
    ZeroSpan,
    FractionOfMicrosecond,
    SpanTooLong,
    BucketTooFine,
    BucketTooSlow,
    LogTooLong,
    Name,
    Count,
    DuplicateName,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = MAX_SPAN.as_secs() / 86_400;
        match self.0 {
            Kind::Algorithm => {
                f.write_str("accepted are token-bucket, fixed-window, sliding-window-log and sliding-window-counter")
            }
            Kind::ZeroQuota => f.write_str("a quota is at least 1"),
            Kind::ZeroRate => f.write_str("a bucket gains at least 1 token per period"),
            Kind::ZeroSpan => f.write_str("a window or period is longer than 0"),
            Kind::FractionOfMicrosecond => f.write_str("a window or period is a whole number of microseconds"),
            Kind::SpanTooLong => write!(f, "a window or period is at most {days}d"),
            Kind::BucketTooFine => f.write_str(
                "the capacity times the refill period in microseconds passes 64 bits: \
                 choose a smaller capacity, or a shorter period for the same rate",
            ),
            Kind::BucketTooSlow => {
                write!(f, "an empty bucket fills within {days}d: choose a smaller capacity or a faster refill")
            }
            Kind::LogTooLong => write!(
                f,
                "the log keeps every request of a window, {MAX_LOG_LIMIT} at most: \
                 choose sliding-window-counter for a larger limit"
            ),
            Kind::Name => write!(f, "a policy's name is 1 to {MAX_NAME} of a-z, 0-9, - and _"),
            Kind::Count => write!(f, "a limiter has 1 to {MAX_POLICIES} policies"),
            Kind::DuplicateName => f.write_str("every policy has a name of its own"),
        }
    }
}

impl std::error::Error for PolicyError {}

fn window_of(limit: u64, window: Duration) -> Result<(u64, u64), PolicyError> {
    if limit == 0 {
        return Err(PolicyError(Kind::ZeroQuota));
    }
    Ok((limit, span(window)?))
}

fn span(duration: Duration) -> Result<u64, PolicyError> {
    if duration.is_zero() {
        return Err(PolicyError(Kind::ZeroSpan));
    }
    if duration > MAX_SPAN {
        return Err(PolicyError(Kind::SpanTooLong));
    }
    if !duration.subsec_nanos().is_multiple_of(1_000) {
        return Err(PolicyError(Kind::FractionOfMicrosecond));
    }
    Ok(crate::clock::micros(duration))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
