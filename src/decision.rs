//! What a limiter answers: let in or not, and what is left.
//!
//! Every value is always there and means itself: no wait is `None`, not 0 or -1. Times are differences, in whole
//! microseconds; rounding them for people or headers is not done here.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

/// Whether a request may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Let in, and its cost was spent.
    Allowed,
    /// Over the limit. Nothing was spent.
    Refused {
        /// After exactly this wait the same request is let in, and not a microsecond sooner, if nothing else is let in
        /// meanwhile.
        retry_after: Duration,
    },
    /// The cost is above the whole quota: no wait helps. Nothing was spent.
    Never,
    /// The shared store does not answer, and the limiter was told to let nobody in meanwhile.
    Unavailable {
        /// When it is worth asking again. A guess, not a promise.
        retry_after: Duration,
    },
}

/// What one policy says about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub(crate) outcome: Ruling,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) more_after: u64,
    pub(crate) reset_after: u64,
}

/// [`Outcome`] with the wait in microseconds, as the algorithms count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ruling {
    Allowed,
    Refused { retry_after: u64 },
    Never,
}

impl Verdict {
    /// Whether this policy lets the request in.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self.outcome {
            Ruling::Allowed => Outcome::Allowed,
            Ruling::Refused { retry_after } => Outcome::Refused { retry_after: Duration::from_micros(retry_after) },
            Ruling::Never => Outcome::Never,
        }
    }

    /// The whole quota: the capacity of a bucket, the limit of a window.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What could be spent now, after this request: the largest cost that would pass. Never above the limit.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The exact wait until `remaining` grows, if nothing is spent meanwhile; zero when the whole quota is there.
    #[must_use]
    pub fn more_after(&self) -> Duration {
        Duration::from_micros(self.more_after)
    }

    /// The exact wait until the whole quota is back, if nothing is spent meanwhile; zero when it is there.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after)
    }
}

/// About the time in which a store that is back is noticed.
const UNAVAILABLE_FOR: Duration = Duration::from_secs(1);

/// The answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Empty when it was made without knowing what the client has spent.
    verdicts: SmallVec<[Verdict; 1]>,
    unavailable: bool,
}

impl Decision {
    pub(crate) fn one(verdict: Verdict) -> Self {
        Self { verdicts: smallvec![verdict], unavailable: false }
    }

    /// All or nothing. The caller reports what was not spent: when one refuses, the others say what is there without it.
    pub(crate) fn all(verdicts: SmallVec<[Verdict; 1]>) -> Self {
        debug_assert!(!verdicts.is_empty(), "a limiter has at least one policy");
        Self { verdicts, unavailable: false }
    }

    /// Let in without asking anybody.
    #[cfg(feature = "redis")]
    pub(crate) fn unasked() -> Self {
        Self { verdicts: SmallVec::new(), unavailable: false }
    }

    /// Kept out without asking anybody.
    #[cfg(feature = "redis")]
    pub(crate) fn unavailable() -> Self {
        Self { verdicts: SmallVec::new(), unavailable: true }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn verdicts_mut(&mut self) -> &mut [Verdict] {
        &mut self.verdicts
    }

    /// Whether the request may pass: every policy lets it in, or it is refused with the longest of their waits.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        if self.unavailable {
            return Outcome::Unavailable { retry_after: UNAVAILABLE_FOR };
        }
        let mut longest = None;
        for verdict in &self.verdicts {
            match verdict.outcome {
                Ruling::Allowed => {}
                Ruling::Refused { retry_after } => longest = longest.max(Some(retry_after)),
                Ruling::Never => return Outcome::Never,
            }
        }
        match longest {
            None => Outcome::Allowed,
            Some(wait) => Outcome::Refused { retry_after: Duration::from_micros(wait) },
        }
    }

    /// Whether the request was let in.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        !self.unavailable && self.verdicts.iter().all(|verdict| verdict.outcome == Ruling::Allowed)
    }

    /// The exact wait of a refusal; `None` when the request was let in, when no wait helps, and when nobody knows.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.outcome() {
            Outcome::Refused { retry_after } => Some(retry_after),
            Outcome::Allowed | Outcome::Never | Outcome::Unavailable { .. } => None,
        }
    }

    /// What each policy says, in the order in which the limiter was given them.
    ///
    /// Empty when the shared store does not answer and the limiter was told to let everybody in, or nobody.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }
}
