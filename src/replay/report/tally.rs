//! What one limit did to each client.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::{Timestamp, micros};
use crate::decision::Outcome;

/// The totals of one limit.
pub(in crate::replay) struct Tally {
    /// Microseconds of the window in which the most of a client is counted.
    window: Option<u64>,
    pub(super) allowed: u64,
    pub(super) refused: u64,
    /// Of the refused: those that no wait would have helped.
    pub(super) never: u64,
    pub(super) wrongly_let_in: u64,
    pub(super) wrongly_refused: u64,
    clients: Vec<Client>,
}

#[derive(Default)]
struct Client {
    refused: u64,
    passed: Passed,
}

impl Tally {
    pub(in crate::replay) fn new(window: Option<Duration>) -> Self {
        Self {
            window: window.map(micros),
            allowed: 0,
            refused: 0,
            never: 0,
            wrongly_let_in: 0,
            wrongly_refused: 0,
            clients: Vec::new(),
        }
    }

    /// Counts one request. A client has the number of those before it at its first request.
    pub(in crate::replay) fn add(
        &mut self,
        client: usize,
        time: Timestamp,
        cost: u64,
        own: Outcome,
        judge: Option<Outcome>,
    ) {
        if client == self.clients.len() {
            self.clients.push(Client::default());
        }
        let client = &mut self.clients[client];
        let allowed = own == Outcome::Allowed;
        if allowed {
            self.allowed += 1;
            if let Some(window) = self.window
                && cost > 0
            {
                client.passed.add(time.as_micros(), cost, window);
            }
        } else {
            self.refused += 1;
            client.refused += 1;
            self.never += u64::from(own == Outcome::Never);
        }
        match judge.map(|judge| judge == Outcome::Allowed) {
            Some(false) if allowed => self.wrongly_let_in += 1,
            Some(true) if !allowed => self.wrongly_refused += 1,
            _ => {}
        }
    }

    /// How often each client was refused, in the order of their numbers.
    pub(super) fn refused_of(&self) -> impl Iterator<Item = u64> {
        self.clients.iter().map(|client| client.refused)
    }

    /// The most that each client got through in any one window, in the order of their numbers.
    pub(in crate::replay) fn most_of(&self) -> Option<impl Iterator<Item = u64>> {
        self.window.map(|_| self.clients.iter().map(|client| client.passed.most))
    }
}

/// What a client got through in the window that ends with its last request, and the most of any such window.
///
/// What has the same time is one entry. Time that goes back is treated as the limits treat it: by less than a window it
/// counts as the latest time, by more it starts afresh.
#[derive(Default)]
struct Passed {
    last: u64,
    at_last: u64,
    older: VecDeque<(u64, u64)>,
    within: u64,
    most: u64,
}

impl Passed {
    fn add(&mut self, time: u64, cost: u64, window: u64) {
        if time > self.last {
            if self.at_last > 0 {
                self.older.push_back((self.last, self.at_last));
            }
            (self.last, self.at_last) = (time, 0);
            while let Some(&(old, amount)) = self.older.front()
                && time - old >= window
            {
                self.older.pop_front();
                self.within -= amount;
            }
        } else if self.last - time >= window {
            self.older.clear();
            (self.last, self.at_last, self.within) = (time, 0, 0);
        }
        self.at_last += cost;
        self.within += cost;
        self.most = self.most.max(self.within);
    }
}
