//! Traffic for those who have no log at hand: patterns that tell the algorithms apart, measured by the limit and window that
//! are asked about. The same seed makes the same traffic.

use std::fmt::Write;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;

use crate::clock::micros;

/// About when the traffic begins: in November 2023, at the start of a window.
const BEGIN: u64 = 1_700_000_000_000_000;

/// For random traffic: about so many requests, so that the text of them stays well below 100 MB.
const REQUESTS: u64 = 1_000_000;

/// For random traffic: so many windows.
const WINDOWS: u64 = 20;

/// The shape of generated traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One client spends its limit in the last tenth of a window, and once more in the first tenth of the next.
    Boundary,
    /// Twenty clients come now and then, with up to twice the limit at once.
    Burst,
    /// One client comes evenly, twice as often as the limit allows, for two windows.
    Steady,
    /// Thousands of clients come at random, each at its own rate: most far below the limit, a few above.
    Poisson,
    /// A thousand clients come together, at the start of every window.
    Herd,
}

impl Pattern {
    /// What is accepted, for people.
    pub const ACCEPTED: &str = "boundary, burst, steady, poisson or herd";
}

impl FromStr for Pattern {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Ok(match text {
            "boundary" => Self::Boundary,
            "burst" => Self::Burst,
            "steady" => Self::Steady,
            "poisson" => Self::Poisson,
            "herd" => Self::Herd,
            _ => return Err(()),
        })
    }
}

/// Traffic to generate.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Its shape.
    pub pattern: Pattern,
    /// Chooses among all traffic of that shape.
    pub seed: u64,
    /// The limit that it is measured by, at most [`Traffic::MAX_LIMIT`].
    pub limit: u64,
    /// The window of that limit.
    pub window: Duration,
}

impl Traffic {
    /// The largest limit that traffic is generated for.
    pub const MAX_LIMIT: u64 = 100_000;

    /// The traffic as a trace: lines of `time,client` in the order of time.
    #[must_use]
    pub fn trace(&self) -> String {
        let mut requests = self.requests();
        requests.sort_by_key(|&(time, _)| time);
        let mut text = String::from("time,client\n");
        for (time, client) in requests {
            // Writing to memory does not fail.
            let _ = writeln!(text, "{time},client-{client}");
        }
        text
    }

    fn requests(&self) -> Vec<(u64, u64)> {
        let Self { limit, window, .. } = *self;
        let window = micros(window);
        let begin = BEGIN.next_multiple_of(window);
        let mut rng = Rng::with_seed(self.seed);
        let mut requests = Vec::new();
        match self.pattern {
            Pattern::Boundary => {
                let border = begin + window;
                let tenth = (window / 10).max(1);
                for n in 0..limit {
                    let at = tenth * n / limit;
                    requests.extend([(border - tenth + at, 1), (border + at, 1)]);
                }
            }
            Pattern::Steady => requests.extend((0..4 * limit).map(|n| (begin + n * window / (2 * limit), 1))),
            Pattern::Burst => {
                for client in 1..=20 {
                    let mut at = begin + rng.u64(0..window);
                    while at < begin + WINDOWS * window {
                        let burst = rng.u64(1..=2 * limit);
                        // Within a fiftieth of a window.
                        requests.extend((0..burst).map(|n| (at + n * window / (100 * limit), client)));
                        at += exponential(&mut rng, window);
                    }
                }
            }
            Pattern::Poisson => {
                // A tail that falls off slowly, as among real clients: a fiftieth of the limit at least, four times at most.
                let clients = (REQUESTS / (WINDOWS * limit)).clamp(100, 20_000);
                for client in 1..=clients {
                    let share = (0.02 * (1.0 - rng.f64()).powf(-1.0 / 1.2)).min(4.0);
                    let mean = as_micros(micros_as_f64(window) / (share * micros_as_f64(limit)));
                    let mut at = begin + exponential(&mut rng, mean);
                    while at < begin + WINDOWS * window {
                        requests.push((at, client));
                        at += exponential(&mut rng, mean);
                    }
                }
            }
            Pattern::Herd => {
                let clients = (REQUESTS / (WINDOWS * limit)).clamp(10, 1_000);
                for start in (0..WINDOWS).map(|number| begin + number * window) {
                    for client in 1..=clients {
                        let burst = rng.u64(1..=limit + limit.div_ceil(2));
                        // Within a twentieth of a window.
                        requests.extend((0..burst).map(|_| (start + rng.u64(0..=window / 20), client)));
                    }
                }
            }
        }
        requests
    }
}

/// A pause before the next of events that come at random with this mean, at least a microsecond.
fn exponential(rng: &mut Rng, mean: u64) -> u64 {
    as_micros(-(1.0 - rng.f64()).ln() * micros_as_f64(mean))
}

#[expect(clippy::cast_precision_loss, reason = "random traffic needs no exact mean")]
fn micros_as_f64(number: u64) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a span of time, cut to whole microseconds"
)]
fn as_micros(span: f64) -> u64 {
    (span as u64).max(1)
}
