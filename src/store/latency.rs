//! How long things took: durations counted by size, so that many threads may count and one may look.
//!
//! Counts instead of samples, since they cost the same however much was counted, and add up over instances.

#[cfg(feature = "redis")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the sizes that are told apart: a decision in memory takes some hundred nanoseconds, one of a store that
/// is far away and slow some hundred milliseconds.
const BOUNDS: [Duration; 16] = [
    Duration::from_nanos(100),
    Duration::from_nanos(250),
    Duration::from_nanos(500),
    Duration::from_micros(1),
    Duration::from_micros(10),
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_secs(1),
];

/// The bounds, and one more for what is longer than all of them.
const SIZES: usize = BOUNDS.len() + 1;

/// Counts durations.
#[cfg(feature = "redis")]
#[derive(Debug, Default)]
pub(crate) struct Latency {
    counts: [AtomicU64; SIZES],
    nanos: AtomicU64,
}

#[cfg(feature = "redis")]
impl Latency {
    pub(crate) fn count(&self, took: Duration) {
        let size = BOUNDS.iter().position(|&bound| took <= bound).unwrap_or(BOUNDS.len());
        self.counts[size].fetch_add(1, Ordering::Relaxed);
        // Five hundred years of waiting fit.
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn counted(&self) -> Latencies {
        Latencies {
            counts: std::array::from_fn(|size| self.counts[size].load(Ordering::Relaxed)),
            total: Duration::from_nanos(self.nanos.load(Ordering::Relaxed)),
        }
    }
}

/// Durations that were counted, by size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    counts: [u64; SIZES],
    total: Duration,
}

impl Latencies {
    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All of them together.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Bounds, rising, and how many took no longer than each. More than the last of these were counted when some took longer
    /// than the last bound, one second.
    pub fn up_to(&self) -> impl Iterator<Item = (Duration, u64)> {
        let counts = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        BOUNDS.into_iter().zip(counts.collect::<Vec<_>>())
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_up_to_and_with_their_bound() {
        let latency = Latency::default();
        let longest = Duration::from_secs(3_600);
        for took in [Duration::ZERO, BOUNDS[0], BOUNDS[0] + Duration::from_nanos(1), BOUNDS[15], longest] {
            latency.count(took);
        }
        let counted = latency.counted();
        let up_to: Vec<u64> = counted.up_to().map(|(_, count)| count).collect();
        assert_eq!((up_to[0], up_to[1], up_to[14], up_to[15], counted.count()), (2, 3, 3, 4, 5));
        assert_eq!(counted.total(), 2 * BOUNDS[0] + Duration::from_nanos(1) + BOUNDS[15] + longest);
    }
}
