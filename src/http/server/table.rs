//! Who is connected, and whose turn it is: one request of a connection is answered at a time.
//!
//! The HTTP crate lets a client send requests without reading answers, hands all of them over, and makes the thread that
//! answers the second wait for whoever answers the first. Here the second waits in the table instead of in a thread.
//!
//! | trust | meaning | requests | who moves it on |
//! |---|---|---|---|
//! | `Open` | an ordinary connection | answered in order | `close` or `cut` |
//! | `Last` | its last answer is being sent; what follows is no request | dropped | `closing`, when the answer is out |
//! | `Closing` | the client has time to take the answer and to close | dropped | the watch shuts it down |
//! | `Cut` | to be shut down, no answer is owed | dropped | the watch forgets it when its socket has gone |

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tiny_http::Request;

/// Requests that one connection may send ahead of its answers. Browsers and proxies send none ahead, load generators
/// some tens; at 1.3 KB each this is less than 200 KB.
pub(super) const MAX_AHEAD: usize = 128;

/// How long a distrusted connection's address is remembered after its socket has gone: requests of it may still be in
/// the crate's queue.
const REMEMBERED: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    Open,
    Last,
    /// Since when.
    Closing(Instant),
    /// Since when.
    Cut(Instant),
}

struct Connection {
    trust: Trust,
    /// A request of it is between reading and answering.
    held: bool,
    /// The held request is being answered: the next one may come of a client that has the answer already.
    answering: bool,
    /// Requests that wait for the held one's answer.
    waiting: VecDeque<Request>,
    /// The first of them came while the held one was being answered.
    prompt: bool,
    /// When it connected, as far as the watch saw it, or when its last answer ended.
    active: Instant,
    /// When it was first heard of.
    begun: Instant,
    /// Since when bytes have been waiting that nobody reads, and how many threads had been freed by then.
    unread: Option<(Instant, u64)>,
    answered: bool,
}

impl Connection {
    fn new(now: Instant) -> Self {
        Self {
            trust: Trust::Open,
            held: false,
            answering: false,
            waiting: VecDeque::new(),
            prompt: false,
            active: now,
            begun: now,
            unread: None,
            answered: false,
        }
    }
}

/// What is to be done with a request that was just received.
pub(super) enum Admission {
    /// Answer it: it is its connection's turn.
    Answer(Request),
    /// It waits in the table.
    Waits,
    /// Its connection is not listened to any more.
    Drop(Request),
    /// It is one too many ahead of its connection's answers; the connection is cut.
    Overflow(Request),
}

/// The request of a connection that comes after the one that is done with.
pub(super) struct Next {
    pub(super) request: Request,
    /// It was sent before the client could have the answer.
    pub(super) ahead: bool,
}

/// What a look at a connection's socket found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) trust: Trust,
    pub(super) held: bool,
    pub(super) answered: bool,
    /// How long since it connected or had its last answer.
    pub(super) silent: Duration,
    /// When it was first heard of.
    pub(super) begun: Instant,
}

#[derive(Default)]
pub(super) struct Table(Mutex<HashMap<SocketAddr, Connection>>);

impl Table {
    /// Takes in a request. The caller sees to it that requests of one connection come here in the order received.
    pub(super) fn admit(&self, peer: SocketAddr, request: Request) -> Admission {
        let mut table = self.0.lock();
        let connection = table.entry(peer).or_insert_with(|| Connection::new(Instant::now()));
        if connection.trust != Trust::Open {
            return Admission::Drop(request);
        }
        if !connection.held {
            connection.held = true;
            return Admission::Answer(request);
        }
        if connection.waiting.len() < MAX_AHEAD {
            connection.prompt |= connection.waiting.is_empty() && connection.answering;
            connection.waiting.push_back(request);
            return Admission::Waits;
        }
        connection.trust = Trust::Cut(Instant::now());
        Admission::Overflow(request)
    }

    /// The held request of this connection is about to be answered, if the connection may still be answered at all.
    pub(super) fn answering(&self, peer: SocketAddr) -> bool {
        let mut table = self.0.lock();
        let Some(connection) = table.get_mut(&peer) else { return true };
        connection.answering = true;
        connection.trust == Trust::Open
    }

    /// The held request of this connection is done with. Gives the next one that waits; it is held from now on.
    pub(super) fn done(&self, peer: SocketAddr) -> Option<Next> {
        let now = Instant::now();
        let mut table = self.0.lock();
        let connection = table.get_mut(&peer)?;
        connection.active = now;
        connection.answered = true;
        connection.unread = None;
        connection.answering = false;
        let next = connection.waiting.pop_front();
        connection.held = next.is_some();
        let ahead = !mem::take(&mut connection.prompt);
        next.map(|request| Next { request, ahead })
    }

    /// How many requests of this connection wait for the held one's answer.
    #[cfg(test)]
    pub(super) fn waiting(&self, peer: SocketAddr) -> usize {
        self.0.lock().get(&peer).map_or(0, |connection| connection.waiting.len())
    }

    /// The answer that is about to be sent is the last one.
    pub(super) fn close(&self, peer: SocketAddr) {
        if let Some(connection) = self.0.lock().get_mut(&peer)
            && connection.trust == Trust::Open
        {
            connection.trust = Trust::Last;
        }
    }

    /// The last answer is out, or as good as.
    pub(super) fn closing(&self, peer: SocketAddr) {
        if let Some(connection) = self.0.lock().get_mut(&peer)
            && connection.trust == Trust::Last
        {
            connection.trust = Trust::Closing(Instant::now());
        }
    }

    /// Nothing more is read from, or written to, this connection. Tells whether that is new.
    pub(super) fn cut(&self, peer: SocketAddr) -> bool {
        let now = Instant::now();
        let mut table = self.0.lock();
        let connection = table.entry(peer).or_insert_with(|| Connection::new(now));
        let new = !matches!(connection.trust, Trust::Cut(_));
        if new {
            connection.trust = Trust::Cut(now);
        }
        new
    }

    /// Tells what is known of each of the open connections, those seen for the first time included, and forgets the
    /// others. `peers` are the addresses of all open sockets.
    pub(super) fn look(&self, peers: &[SocketAddr], now: Instant) -> Vec<Look> {
        let mut table = self.0.lock();
        let looks = peers
            .iter()
            .map(|peer| {
                let connection = table.entry(*peer).or_insert_with(|| Connection::new(now));
                if connection.trust != Trust::Open {
                    connection.active = now;
                }
                let silent = now.saturating_duration_since(connection.active);
                let Connection { trust, held, answered, begun, .. } = *connection;
                Look { trust, held, answered, silent, begun }
            })
            .collect();
        let open: HashSet<&SocketAddr> = peers.iter().collect();
        table.retain(|peer, connection| {
            let remembered = connection.trust != Trust::Open && now.duration_since(connection.active) < REMEMBERED;
            connection.held || remembered || open.contains(peer)
        });
        looks
    }

    /// Notes whether bytes wait on an open connection, with how many threads were freed until now. Tells for how long they have,
    /// with no request answered since, and how many threads were freed meanwhile.
    pub(super) fn note_unread(
        &self,
        peer: SocketAddr,
        unread: bool,
        now: Instant,
        freed: u64,
    ) -> Option<(Duration, u64)> {
        let mut table = self.0.lock();
        let connection = table.get_mut(&peer)?;
        if !unread || connection.held {
            connection.unread = None;
            return None;
        }
        let (since, freed_then) = *connection.unread.get_or_insert((now, freed));
        Some((now.saturating_duration_since(since), freed - freed_then))
    }

    /// When the oldest of these connections was first heard of.
    pub(super) fn oldest<'a>(&self, peers: impl Iterator<Item = &'a SocketAddr>) -> Option<Instant> {
        let table = self.0.lock();
        peers.filter_map(|peer| table.get(peer).map(|connection| connection.begun)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_from_the_first_look_on_and_with_them_the_threads_that_are_freed() {
        let table = Table::default();
        let peer = SocketAddr::from(([203, 0, 113, 7], 50_000));
        let begun = Instant::now();
        let look = |unread, after, freed| table.note_unread(peer, unread, begun + Duration::from_secs(after), freed);
        assert_eq!(look(true, 0, 5), None, "nobody knows it");
        table.look(&[peer], begun);
        assert_eq!(look(true, 1, 10), Some((Duration::ZERO, 0)));
        assert_eq!(look(true, 4, 522), Some((Duration::from_secs(3), 512)));
        assert_eq!(look(false, 5, 522), None);
        assert_eq!(look(true, 6, 600), Some((Duration::ZERO, 0)));
        assert!(matches!(table.admit(peer, tiny_http::TestRequest::new().into()), Admission::Answer(_)));
        assert_eq!(look(true, 7, 600), None, "a request of it is held");
    }

    #[test]
    fn a_request_that_comes_after_its_predecessors_answer_was_begun_was_not_sent_ahead() {
        let table = Table::default();
        let peer = SocketAddr::from(([203, 0, 113, 7], 50_000));
        let waits = || matches!(table.admit(peer, tiny_http::TestRequest::new().into()), Admission::Waits);
        let ahead = || table.done(peer).map(|next| next.ahead);
        assert!(matches!(table.admit(peer, tiny_http::TestRequest::new().into()), Admission::Answer(_)));
        assert!(waits(), "sent with the first");
        assert!(table.answering(peer));
        assert!(waits(), "behind one that was sent ahead");
        assert_eq!(ahead(), Some(true));
        assert!(table.answering(peer));
        assert_eq!(ahead(), Some(true));
        assert!(table.answering(peer));
        assert!(waits(), "the client may have read");
        assert_eq!(ahead(), Some(false));
        assert!(waits(), "the next one has not been begun");
        assert_eq!(ahead(), Some(true));
        assert_eq!(ahead(), None);
    }
}
