//! Time: whole microseconds, two clocks, and one that tests turn by hand.
//!
//! This is the only room that reads a clock. Everything below the façade takes a [`Timestamp`] as an argument.
//! Microseconds, because they are exact in a `u64` here and in the doubles of a Redis script alike; nanoseconds are not.
//! The token bucket and the log count monotonic time, which never steps; windows that start at whole multiples since the
//! Unix epoch need the wall clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// An instant: whole microseconds since the origin of the clock that told it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The instant `micros` microseconds after the origin.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }
}

/// Where a limiter gets its time from.
///
/// Readings may go back and may come out of order between threads: the algorithms are asked as of the later time then.
pub trait Clock: Send + Sync {
    /// Time that never steps, from any origin.
    fn monotonic(&self) -> Timestamp;

    /// Time since the Unix epoch, which may step when the machine's clock is set.
    fn wall(&self) -> Timestamp;
}

/// The clocks of this machine.
#[derive(Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts at 0 now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Timestamp {
        Timestamp(micros(self.origin.elapsed()))
    }

    fn wall(&self) -> Timestamp {
        // A machine whose clock stands before 1970 gets the epoch: every decision is still sound, only the windows are odd.
        Timestamp(micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

/// A clock that moves when it is told to, for tests. Clones show the same time, on both scales.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{ManualClock, Policy, RateLimiter};
///
/// let clock = ManualClock::default();
/// let policy = Policy::token_bucket(1, 1, Duration::from_secs(10))?;
/// let limiter = RateLimiter::builder(policy).clock(clock.clone()).build();
///
/// assert!(limiter.check("ada").is_allowed());
/// assert_eq!(limiter.check("ada").retry_after(), Some(Duration::from_secs(10)));
/// clock.advance(Duration::from_secs(10));
/// assert!(limiter.check("ada").is_allowed());
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self { now: Arc::new(AtomicU64::new(now.0)) }
    }

    /// Moves the clock ahead, to the end of time at most. Parts of a microsecond are dropped.
    pub fn advance(&self, by: Duration) {
        let by = micros(by);
        let moved = |now: u64| Some(now.saturating_add(by));
        // The closure never declines, so the update cannot fail.
        let _ = self.now.fetch_update(Ordering::SeqCst, Ordering::SeqCst, moved);
    }

    /// Sets the clock, ahead or back.
    pub fn set(&self, now: Timestamp) {
        self.now.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Timestamp {
        self.monotonic()
    }
}

/// Whole microseconds, cut, and to the end of time at most.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A reading of the clocks that a decision needs. One that no policy counts by is left at its origin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Now {
    pub(crate) monotonic: Timestamp,
    pub(crate) wall: Timestamp,
}
