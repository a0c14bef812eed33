//! The smallest limit under which at least a given share of the clients would never have been refused.
//!
//! One pass finds it, without a search. A client that is never refused gets everything in, whatever the limit is; so what it
//! needs is the most that an algorithm counts of it when nothing is refused: the most in a window, the highest estimate,
//! the emptiest that a bucket gets. A limit of that suffices, and one less does not. What is needed is asked of the limiters
//! that serve, with limits that nothing reaches.
//!
//! For the bucket this holds while the times in the input go back by less than an empty bucket of the capacity found takes
//! to fill; by more, a real one would start afresh.

use std::io::{self, Read, Write};
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use super::ReplayError;
use super::clients::key;
use super::columns::align;
use super::report::{Form, Row};
use super::run::{Recording, limiter};
use crate::clock::{ManualClock, micros};
use crate::limiter::RateLimiter;
use crate::policy::{Algorithm, MAX_LOG_LIMIT, MAX_SPAN, Policy, PolicyError, Rule, TokenBucket};

/// More than anybody asks for, and far from the end of 64 bits.
const BEYOND: u64 = 1_000_000_000_000_000;

/// A share of the clients, such as 99.9 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Of [`Self::WHOLE`].
    parts: u64,
}

impl Share {
    /// What is accepted, for people.
    pub const ACCEPTED: &str = "a percentage above 0 and up to 100, with at most 6 decimals";

    const DECIMALS: usize = 6;
    const PERCENT: u64 = 1_000_000;
    const WHOLE: u64 = 100 * Self::PERCENT;

    /// The least number of these clients that is such a share of them.
    fn of(self, clients: usize) -> usize {
        let least = (clients as u128 * u128::from(self.parts)).div_ceil(u128::from(Self::WHOLE));
        usize::try_from(least).expect("a share of them is at most all of them")
    }
}

impl FromStr for Share {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || decimals.len() > Self::DECIMALS {
            return Err(());
        }
        let whole: u64 = whole.parse().map_err(|_| ())?;
        let decimals: u64 = format!("{decimals:0<width$}", width = Self::DECIMALS).parse().map_err(|_| ())?;
        let parts = whole.checked_mul(Self::PERCENT).and_then(|parts| parts.checked_add(decimals)).ok_or(())?;
        if parts == 0 || parts > Self::WHOLE { Err(()) } else { Ok(Self { parts }) }
    }
}

/// What is looked for: the capacity of a bucket with this refill rate, and the limits of this window.
#[derive(Clone, Debug)]
pub struct Suggest {
    share: Share,
    wide: Vec<Wide>,
    form: Form,
}

/// An algorithm with a limit that nothing reaches.
#[derive(Clone, Debug)]
struct Wide {
    policy: Policy,
    narrow: Narrow,
}

/// The settings other than the limit.
#[derive(Clone, Copy, Debug)]
enum Narrow {
    Bucket { tokens: u64, period: Duration },
    Window { algorithm: Algorithm, window: Duration },
}

impl Narrow {
    fn policy(self, limit: u64) -> Result<Policy, PolicyError> {
        match self {
            Self::Bucket { tokens, period } => Policy::token_bucket(limit, tokens, period),
            Self::Window { algorithm: Algorithm::FixedWindow, window } => Policy::fixed_window(limit, window),
            Self::Window { algorithm: Algorithm::SlidingWindowLog, window } => {
                Policy::sliding_window_log(limit, window)
            }
            Self::Window { window, .. } => Policy::sliding_window_counter(limit, window),
        }
    }

    /// The largest limit that makes a policy.
    fn wide(self) -> Result<Policy, PolicyError> {
        let most = match self {
            Self::Bucket { .. } => {
                let Rule::TokenBucket(TokenBucket { tokens, period, .. }) = self.policy(1)?.rule() else {
                    unreachable!("a bucket makes a bucket")
                };
                let fills = u128::from(tokens) * u128::from(micros(MAX_SPAN)) / u128::from(period);
                (u64::MAX / period).min(u64::try_from(fills).unwrap_or(u64::MAX))
            }
            Self::Window { algorithm: Algorithm::SlidingWindowLog, .. } => MAX_LOG_LIMIT,
            Self::Window { .. } => BEYOND,
        };
        self.policy(most.min(BEYOND))
    }
}

/// A row of the answer, in the names of the JSON.
#[derive(Serialize)]
struct Line {
    name: &'static str,
    /// The smallest limit; none when the largest does not do.
    smallest: Option<u64>,
    settings: Option<String>,
    clients: usize,
    clients_never_refused: usize,
    /// The smallest limit for all clients.
    for_all: Option<u64>,
}

impl Suggest {
    /// Looks for the smallest limits of all algorithms.
    ///
    /// # Errors
    /// When there is no bucket with this refill rate, or no window of this length.
    pub fn new(share: Share, refill: (u64, Duration), window: Duration, form: Form) -> Result<Self, PolicyError> {
        let narrow = |algorithm| match algorithm {
            Algorithm::TokenBucket => Narrow::Bucket { tokens: refill.0, period: refill.1 },
            _ => Narrow::Window { algorithm, window },
        };
        let wide = |narrow: Narrow| Ok(Wide { policy: narrow.wide()?, narrow });
        Ok(Self { share, wide: Algorithm::ALL.map(narrow).into_iter().map(wide).collect::<Result<_, _>>()?, form })
    }

    pub(super) fn write(&self, recording: Recording<'_, impl Read>, out: &mut dyn Write) -> Result<(), ReplayError> {
        let clock = ManualClock::default();
        let limiters: Vec<RateLimiter> = self.wide.iter().map(|wide| limiter(wide.policy.clone(), &clock)).collect();
        // For each algorithm, what each client needs; none when the largest limit refused it.
        let mut needs: Vec<Vec<Option<u64>>> = vec![Vec::new(); limiters.len()];
        recording.each(|client, request| {
            clock.set(request.time);
            let (client, client_key) = (client as usize, key(client));
            for (limiter, needs) in limiters.iter().zip(&mut needs) {
                if client == needs.len() {
                    // A limit is at least 1.
                    needs.push(Some(1));
                }
                let decision = limiter.check_n(client_key, request.cost);
                let counted = decision.verdicts().iter().map(|verdict| verdict.limit() - verdict.remaining()).max();
                let counted = counted.filter(|_| decision.is_allowed());
                needs[client] = needs[client].zip(counted).map(|(most, counted)| most.max(counted));
            }
            Ok(())
        })?;
        let lines: Vec<Line> = self.wide.iter().zip(needs).map(|(wide, needs)| self.line(wide, needs)).collect();
        match self.form {
            Form::Json => write_json(&lines, out),
            Form::Table => self.write_table(&lines, out),
        }
        .map_err(ReplayError::Write)
    }

    fn line(&self, wide: &Wide, mut needs: Vec<Option<u64>>) -> Line {
        // Those who need more than there is come last.
        needs.sort_unstable_by_key(|need| need.unwrap_or(u64::MAX));
        let smallest = self.share.of(needs.len()).checked_sub(1).and_then(|last| needs[last]);
        let suits = |need: &&Option<u64>| smallest.is_some_and(|limit| need.is_some_and(|need| need <= limit));
        Line {
            name: wide.policy.algorithm().name(),
            smallest,
            settings: smallest
                .and_then(|limit| wide.narrow.policy(limit).ok())
                .map(|policy| Row::of("", policy, None).settings),
            clients: needs.len(),
            clients_never_refused: needs.iter().filter(suits).count(),
            for_all: needs.last().copied().flatten(),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a share is read to a few digits")]
    fn write_table(&self, lines: &[Line], out: &mut dyn Write) -> io::Result<()> {
        let heading = [
            ["", "limit"],
            ["", "smallest"],
            ["clients never", "refused"],
            ["share", "of clients"],
            ["for all", "clients"],
        ];
        let mut rows: Vec<Vec<String>> =
            (0..2).map(|line| heading.map(|column| column[line].to_owned()).into()).collect();
        rows.extend(lines.iter().map(|line| {
            let share = 100.0 * line.clients_never_refused as f64 / line.clients.max(1) as f64;
            vec![
                line.name.to_owned(),
                line.settings.clone().unwrap_or_else(|| "none".to_owned()),
                line.clients_never_refused.to_string(),
                format!("{share:.3}%"),
                line.for_all.map_or_else(|| "none".to_owned(), |limit| limit.to_string()),
            ]
        }));
        align(&rows, 2, out)
    }
}

fn write_json(lines: &[Line], out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, lines)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage_and_never_less_than_asked_for() {
        for (text, clients, least) in [
            ("100", 7, 7),
            ("99.9", 1_000, 999),
            ("99.9", 1_001, 1_000),
            ("0.000001", 7, 1),
            ("50", 3, 2),
            ("99.999999", 1_000_000, 1_000_000),
            ("33.333333", 3, 1),
            ("50", 0, 0),
        ] {
            assert_eq!(text.parse::<Share>().map(|share| share.of(clients)), Ok(least), "{text} of {clients}");
        }
        for text in ["", "0", "0.0", "100.000001", "101", "-1", "+1", "1e2", ".5", "5.", "1.2345678", "99,9", "99.9%"] {
            assert_eq!(text.parse::<Share>(), Err(()), "{text}");
        }
    }
}
