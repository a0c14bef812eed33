//! Refusals that are known to hold, so that a client that hammers costs the store one call for each wait it is told.
//!
//! A refusal with wait d, decided by the store at some instant between sending and receiving, holds until d after the
//! *sending*: until then the store would refuse the same request, whatever others spend. What is told is counted from the
//! *receiving*: whoever waits that long is let in.
//!
//! It answers the same cost only. A larger one would be refused as well, but its wait is longer by what only the store can
//! tell, and the wait that a refusal tells is exact.
//!
//! It is forgotten when a connection broke meanwhile, since the store may have lost everything, or when the client is
//! [reset](Refusals::forget) here. A reset by another instance, or by hand in the store, is seen when the wait is over.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use parking_lot::Mutex;

use crate::client::ClientKey;
use crate::clock::micros;
use crate::decision::{Decision, Outcome, Ruling};

/// The most refusals that are kept, some 10 MB of them. One that finds no room costs a call of the store the next time.
const MAX_REFUSALS: usize = 1 << 16;

/// Threads that meet in a stripe wait for each other, for a fraction of a microsecond.
const STRIPES: usize = 64;

pub(super) struct Refusals {
    hasher: RandomState,
    stripes: [Mutex<Stripe>; STRIPES],
}

#[derive(Default)]
struct Stripe {
    known: HashMap<ClientKey, Refusal>,
    /// A refusal that was on its way during a reset is not kept.
    resets: u64,
}

struct Refusal {
    cost: u64,
    decision: Decision,
    received: Instant,
    /// The end, as counted from the sending.
    until: Instant,
    breaks: u64,
}

/// What a request has to bring to keep its refusal: when it was sent, and into which circumstances.
pub(super) struct Sent {
    at: Instant,
    breaks: u64,
    resets: u64,
}

impl Refusals {
    pub(super) fn new() -> Self {
        Self { hasher: RandomState::new(), stripes: std::array::from_fn(|_| Mutex::default()) }
    }

    /// The refusal that still holds for this client and cost after so many breaks of connections, or leave to send.
    pub(super) fn repeat(&self, client: ClientKey, cost: u64, breaks: u64) -> Result<Decision, Sent> {
        let mut stripe = self.stripe(client).lock();
        let now = Instant::now();
        if let Some(refusal) = stripe.known.get(&client) {
            if now >= refusal.until || refusal.breaks != breaks {
                stripe.known.remove(&client);
            } else if refusal.cost == cost {
                return Ok(refusal.decision.later_by(micros(now - refusal.received)));
            }
        }
        Err(Sent { at: now, breaks, resets: stripe.resets })
    }

    /// Keeps a decision if it is a refusal. `breaks` is the number of breaks by now.
    pub(super) fn keep(&self, client: ClientKey, cost: u64, sent: &Sent, breaks: u64, decision: &Decision) {
        let Outcome::Refused { retry_after } = decision.outcome() else { return };
        let received = Instant::now();
        let until = sent.at + retry_after;
        if breaks != sent.breaks || until <= received {
            return;
        }
        let mut stripe = self.stripe(client).lock();
        let room = stripe.known.len() < MAX_REFUSALS / STRIPES || stripe.known.contains_key(&client);
        if room && stripe.resets == sent.resets {
            stripe.known.insert(client, Refusal { cost, decision: decision.clone(), received, until, breaks });
        }
    }

    pub(super) fn forget(&self, client: ClientKey) {
        let mut stripe = self.stripe(client).lock();
        stripe.resets += 1;
        stripe.known.remove(&client);
    }

    /// Drops those that are over, and gives memory back. A stripe is held for some ten microseconds.
    pub(super) fn sweep(&self) {
        for stripe in &self.stripes {
            let now = Instant::now();
            let mut stripe = stripe.lock();
            stripe.known.retain(|_, refusal| now < refusal.until);
            if stripe.known.len() < stripe.known.capacity() / 4 {
                let kept = stripe.known.len() * 2;
                stripe.known.shrink_to(kept);
            }
        }
    }

    fn stripe(&self, client: ClientKey) -> &Mutex<Stripe> {
        let stripe = self.hasher.hash_one(client) % STRIPES as u64;
        &self.stripes[usize::try_from(stripe).expect("a stripe's number is small")]
    }
}

impl Decision {
    /// The same refusal, told later, when nothing was spent meanwhile. Every wait is shorter; that of a refusal and that for a
    /// quota that is not whole stay above 0. How much of a quota has grown back since is not known here, except all of it.
    fn later_by(&self, elapsed: u64) -> Self {
        let mut later = self.clone();
        for verdict in later.verdicts_mut() {
            if let Ruling::Refused { retry_after } = &mut verdict.outcome {
                *retry_after = retry_after.saturating_sub(elapsed).max(1);
            }
            verdict.reset_after = verdict.reset_after.saturating_sub(elapsed);
            if verdict.reset_after == 0 && verdict.outcome == Ruling::Allowed {
                verdict.remaining = verdict.limit;
                verdict.more_after = 0;
            } else {
                verdict.reset_after = verdict.reset_after.max(1);
                verdict.more_after = verdict.more_after.saturating_sub(elapsed).max(1);
            }
        }
        later
    }
}
