//! Clients in memory: a map in stripes, each behind a mutex of its own.
//!
//! This file picks the stripe, holds its lock, and keeps the number of clients within the bound. What a request may spend
//! is the algorithm's business, who calls for sweeps is the reaper's.
//!
//! *Bytes are a feature.* IPv4 addresses have a table of their own, four bytes a key instead of twenty. With a state of two
//! numbers an entry is 20 bytes and one of control; the tables double and are between 7/16 and 7/8 full, so a client costs
//! 24 to 48 bytes all in. In a map that stays full, the marks of those that made room for others may double a table once more.
//!
//! *Stripes are small*, some thousand clients when the map is full, because a table that doubles moves all its entries
//! under the lock.

use std::hash::{BuildHasher, RandomState as Random};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{hint, mem};

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};

use crate::algorithm::{Limit, Loss};
use crate::client::{ClientKey, Kind};
use crate::clock::Now;
use crate::decision::Decision;

/// About so many clients share a stripe when the map is full. More would be moved under the lock when a table doubles; with
/// half as many, a quarter of the memory stayed with the allocator after a sweep, as its smaller blocks do.
const CLIENTS_PER_STRIPE: usize = 16_384;

/// Fewer stripes than this would make threads wait for each other; more than the upper bound only cost memory.
const STRIPES: std::ops::RangeInclusive<usize> = 64..=4_096;

/// A full map has at least about so many clients in a stripe, or one stripe: enough to choose from when one must go.
const MIN_CLIENTS_PER_STRIPE: usize = 64;

/// Of so many clients, the one that has spent least makes room for a new one when the map is full.
const EVICTION_SAMPLE: usize = 8;

/// So many slots of a table are looked at in one hold of a stripe's lock: some hundred nanoseconds.
const SWEEP_STEP: usize = 16;

/// So many times the processor is told to wait between two holds: about as long as one.
const SWEEP_SPINS: usize = 32;

/// A map of clients under one limit, or several together.
pub(crate) struct MemoryStore<L: Limit> {
    limit: L,
    stripes: Box<[Stripe<L::State>]>,
    hasher: SeedableRandomState,
    max_clients: usize,
    clients: AtomicUsize,
    evicted: AtomicUsize,
    reaped: AtomicUsize,
}

/// Two cache lines, so that threads on neighbouring stripes do not slow each other.
#[repr(align(128))]
struct Stripe<S>(Mutex<Tables<S>>);

struct Tables<S> {
    v4: HashTable<(u32, S)>,
    /// Networks, names and API keys.
    others: HashTable<(Kind, S)>,
}

impl<L: Limit> MemoryStore<L> {
    pub(crate) fn new(limit: L, max_clients: usize) -> Self {
        let wanted = (max_clients / CLIENTS_PER_STRIPE).next_power_of_two().clamp(*STRIPES.start(), *STRIPES.end());
        let most = (max_clients / MIN_CLIENTS_PER_STRIPE).max(1);
        let stripes = if wanted <= most { wanted } else { 1 << most.ilog2() };
        let empty = || Stripe(Mutex::new(Tables { v4: HashTable::new(), others: HashTable::new() }));
        Self {
            limit,
            stripes: (0..stripes).map(|_| empty()).collect(),
            // Keyed from the system's randomness: nobody can choose clients that meet in one stripe or slot. SipHash, which
            // std offers, cost a sixth of a decision.
            hasher: SeedableRandomState::with_seed(Random::new().hash_one(0), SharedSeed::global_random()),
            max_clients: max_clients.max(1),
            clients: AtomicUsize::new(0),
            evicted: AtomicUsize::new(0),
            reaped: AtomicUsize::new(0),
        }
    }

    /// Asks, and spends if allowed, in one step.
    ///
    /// The clock is read under the lock. Read before it, a thread that was held up would bring an old time to a client whose
    /// state has been swept meanwhile, start it there anew, and let the refill since then count twice.
    pub(crate) fn decide(&self, client: ClientKey, now: impl Fn() -> Now, cost: u64) -> Decision {
        match client.0 {
            Kind::V4(address) => self.decide_in(|tables| &mut tables.v4, address, now, cost),
            other => self.decide_in(|tables| &mut tables.others, other, now, cost),
        }
    }

    fn decide_in<K: Copy + Eq + std::hash::Hash>(
        &self,
        table: impl Fn(&mut Tables<L::State>) -> &mut HashTable<(K, L::State)>,
        key: K,
        now: impl Fn() -> Now,
        cost: u64,
    ) -> Decision {
        let hash = self.hasher.hash_one(key);
        loop {
            let mut stripe = self.stripe(hash).lock();
            let now = now();
            if let Some((_, state)) = table(&mut stripe).find_mut(hash, |(known, _)| *known == key) {
                let decision = self.limit.decide(state, now, cost);
                if !decision.is_allowed() {
                    self.limit.refuse(state, now);
                } else if cost > 0 {
                    self.limit.spend(state, now, cost);
                }
                return decision;
            }
            let mut state = self.limit.fresh(now);
            let decision = self.limit.decide(&state, now, cost);
            if cost == 0 || !decision.is_allowed() {
                return decision;
            }
            if self.admit(&mut stripe, hash, now) {
                self.limit.spend(&mut state, now, cost);
                table(&mut stripe).insert_unique(hash, (key, state), |(key, _)| self.hasher.hash_one(key));
                return decision;
            }
            // The map is full and this stripe has nobody to give up: one of another stripe goes, and all is asked anew,
            // since the lock was let go.
            drop(stripe);
            self.evict_elsewhere(hash, now);
        }
    }

    /// Whether there is room for one more client, made in this stripe if need be. If so, it has been counted.
    fn admit(&self, stripe: &mut Tables<L::State>, seed: u64, now: Now) -> bool {
        let counted = self.clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |clients| {
            (clients < self.max_clients).then_some(clients + 1)
        });
        counted.is_ok() || self.evict(stripe, seed, now)
    }

    /// Gives up the client whose quota it gives away least to forget, of a few in this stripe.
    fn evict(&self, stripe: &mut Tables<L::State>, seed: u64, now: Now) -> bool {
        let v4 = cheapest(&stripe.v4, seed, |state| self.limit.loss(state, now));
        let other = cheapest(&stripe.others, seed, |state| self.limit.loss(state, now));
        let gone = match (v4, other) {
            (Some((v4_loss, slot)), other) if other.is_none_or(|(loss, _)| v4_loss <= loss) => {
                remove(&mut stripe.v4, slot);
                true
            }
            (_, Some((_, slot))) => {
                remove(&mut stripe.others, slot);
                true
            }
            (_, None) => false,
        };
        if gone {
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        gone
    }

    fn evict_elsewhere(&self, seed: u64, now: Now) {
        let first = self.stripe_index(seed);
        for offset in 1..self.stripes.len() {
            let mut stripe = self.stripes[(first + offset) % self.stripes.len()].0.lock();
            if self.evict(&mut stripe, seed, now) {
                self.clients.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Forgets a client: its next request meets the whole quota.
    pub(crate) fn reset(&self, client: ClientKey) {
        match client.0 {
            Kind::V4(address) => self.reset_in(|tables| &mut tables.v4, address),
            other => self.reset_in(|tables| &mut tables.others, other),
        }
    }

    fn reset_in<K: Copy + Eq + std::hash::Hash>(
        &self,
        table: impl Fn(&mut Tables<L::State>) -> &mut HashTable<(K, L::State)>,
        key: K,
    ) {
        let hash = self.hasher.hash_one(key);
        let mut stripe = self.stripe(hash).lock();
        if let Ok(entry) = table(&mut stripe).find_entry(hash, |(known, _)| *known == key) {
            entry.remove();
            self.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// How many clients are kept.
    pub(crate) fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// How many were given up because the map was full, since the start.
    pub(crate) fn evicted(&self) -> usize {
        self.evicted.load(Ordering::Relaxed)
    }

    /// How many the reaper dropped, since the start.
    pub(crate) fn reaped(&self) -> usize {
        self.reaped.load(Ordering::Relaxed)
    }

    /// Drops every client whose state decides like none, and gives memory back. At each step a waiting request is let in
    /// between, and `now` is asked; `None` ends the sweep.
    pub(crate) fn sweep(&self, mut now: impl FnMut() -> Option<Now>) {
        for Stripe(stripe) in &self.stripes {
            let mut slot = 0;
            loop {
                let mut tables = stripe.lock();
                let Some(now) = now() else { return };
                let idle = |state: &L::State| self.limit.reset_after(state, now) == 0;
                let reaped = sweep_slots(&mut tables.v4, slot, idle) + sweep_slots(&mut tables.others, slot, idle);
                self.clients.fetch_sub(reaped, Ordering::Relaxed);
                self.reaped.fetch_add(reaped, Ordering::Relaxed);
                slot += SWEEP_STEP;
                if slot >= tables.v4.num_buckets().max(tables.others.num_buckets()) {
                    let spare = (
                        give_back(&mut tables.v4, |(key, _)| self.hasher.hash_one(key)),
                        give_back(&mut tables.others, |(key, _)| self.hasher.hash_one(key)),
                    );
                    MutexGuard::unlock_fair(tables);
                    drop(spare);
                    break;
                }
                // Fair: a request that waits for this stripe comes before the next step. And free for as long as a step takes:
                // one that has just come finds it so while it spins, and is not put to sleep, which costs ten times as much.
                MutexGuard::unlock_fair(tables);
                (0..SWEEP_SPINS).for_each(|_| hint::spin_loop());
            }
        }
    }

    fn stripe(&self, hash: u64) -> &Mutex<Tables<L::State>> {
        &self.stripes[self.stripe_index(hash)].0
    }

    /// The stripe comes from the middle bits: the tables use the lowest ones for the slot and the top seven for the tag.
    fn stripe_index(&self, hash: u64) -> usize {
        ((hash >> 32) & 0xffff) as usize & (self.stripes.len() - 1)
    }
}

/// The slot of the client that is the least loss, among the first few from a place that the seed chooses.
#[expect(clippy::cast_possible_truncation, reason = "any bits of the seed will do")]
fn cheapest<K, S>(table: &HashTable<(K, S)>, seed: u64, loss: impl Fn(&S) -> Loss) -> Option<(Loss, usize)> {
    let slots = table.num_buckets();
    (0..slots)
        .map(|step| (seed as usize).wrapping_add(step) & (slots - 1))
        .filter_map(|slot| table.get_bucket(slot).map(|(_, state)| (loss(state), slot)))
        .take(EVICTION_SAMPLE)
        .min()
}

fn remove<T>(table: &mut HashTable<T>, slot: usize) {
    if let Ok(entry) = table.get_bucket_entry(slot) {
        entry.remove();
    }
}

fn sweep_slots<K, S>(table: &mut HashTable<(K, S)>, from: usize, idle: impl Fn(&S) -> bool) -> usize {
    let mut reaped = 0;
    for slot in from..(from + SWEEP_STEP).min(table.num_buckets()) {
        if table.get_bucket(slot).is_some_and(|(_, state)| idle(state)) {
            remove(table, slot);
            reaped += 1;
        }
    }
    reaped
}

/// Swaps a table that is mostly empty for a smaller one; the old one is freed by the caller, outside the lock.
fn give_back<T>(table: &mut HashTable<T>, hash: impl Fn(&T) -> u64) -> Option<HashTable<T>> {
    if table.is_empty() && table.capacity() > 0 {
        return Some(mem::take(table));
    }
    // A quarter full, so that a table does not shrink and grow in turn.
    if table.len() < table.capacity() / 4 {
        table.shrink_to(table.len() * 2, hash);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Ruling, Verdict};

    /// Counts to ten, and panics at a cost of 7 while the state is locked.
    struct Fragile;

    impl Limit for Fragile {
        type State = u64;

        fn fresh(&self, _now: Now) -> u64 {
            0
        }

        fn decide(&self, count: &u64, _now: Now, cost: u64) -> Decision {
            assert_ne!(cost, 7, "on purpose, under the lock");
            let outcome = if count + cost <= 10 { Ruling::Allowed } else { Ruling::Refused { retry_after: 1 } };
            Decision::one(Verdict { outcome, limit: 10, remaining: 10 - count, more_after: 0, reset_after: 0 })
        }

        fn spend(&self, count: &mut u64, _now: Now, cost: u64) {
            *count += cost;
        }

        fn reset_after(&self, count: &u64, _now: Now) -> u64 {
            u64::from(*count < 10)
        }

        fn loss(&self, _count: &u64, _now: Now) -> Loss {
            unreachable!("the map is not full")
        }
    }

    #[test]
    fn a_panic_under_the_lock_leaves_clients_limited_and_sweeps_going() {
        // One stripe would do, but neighbours in the same table are the ones to watch.
        let store = MemoryStore::new(Fragile, 1_000);
        let keys: Vec<ClientKey> = (0..500).map(|n| std::net::Ipv4Addr::from_bits(n).into()).collect();
        for key in &keys {
            assert!(store.decide(*key, Now::default, 4).is_allowed());
        }
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            store.decide(keys[7], Now::default, 7);
        }));
        assert!(panicked.is_err());
        for key in &keys {
            assert!(store.decide(*key, Now::default, 6).is_allowed());
            assert!(!store.decide(*key, Now::default, 1).is_allowed());
        }
        store.sweep(|| Some(Now::default()));
        assert_eq!(store.clients(), 0);
    }
}
