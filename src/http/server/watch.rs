//! The thread that looks after the others. It waits for nobody: what could block is the clerk's.
//!
//! It looks at the sockets of all connections from time to time, and often while something is the matter:
//! - silent: no whole request within the idle timeout. That is also how slow and endless heads end, and versions of HTTP
//!   on which the crate hangs.
//! - flooding: bytes come faster than they are read, and no request comes of them.
//! - starved: bytes wait and nobody reads them. The crate hands several connections that come at once to one idle thread,
//!   where all but one wait until it closes. A connection that finds no idle thread gets a new one, which then serves the one
//!   that has waited longest: so the watch opens connections to itself, and closes them. Silent ones may wait before those whose
//!   bytes are seen to wait, so that it opens more each time, but no more than there are connections.
//! - surplus: more connections than there are descriptors for.
//! - a worker stuck in writing to a client that does not read.
//! - nobody accepts, because the crate's acceptor ended: a new one is started.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{io, mem};

use super::Listen;
use super::acceptor::{Acceptor, Signs};
use super::room::{MAX_LINGERING, Room, Slot, Slots};
use super::sockets::{Descriptor, Descriptors, raise_limit};
use super::table::{Look, Trust};

/// Pause between two rounds. A client that floods gains some megabytes in it; an idle process spends 0.2 % of a core.
const ROUND: Duration = Duration::from_millis(25);

/// A look at all sockets may cost this share of one core: one part in so many while all is well.
const CALM_SHARE: u32 = 200;
/// The same while something is the matter, or connections come and go.
const URGENT_SHARE: u32 = 8;
/// Shortest and longest pause between two looks while all is well.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// After its last answer a client has so long to take it and to close. Then its socket is shut: bytes of it that nobody
/// read would otherwise make the system discard the answer on its way.
const LINGER: Duration = Duration::from_millis(300);

/// Bytes that wait for longer than this on a connection have no thread that reads them.
const STARVED_AFTER: Duration = Duration::from_millis(20);

/// What waits for longer than this, a thread having been freed for every connection meanwhile, will not become a request: the
/// crate's thread hangs, or takes longer over a head than any honest one needs.
const DEAD_AFTER: Duration = Duration::from_secs(2);

/// So many unread bytes in the midst of something, at two looks, are a flood: heads have a few hundred bytes and are read
/// as they come, and a body is known by its request.
const FLOOD: usize = 32 * 1024;
/// The second look comes so soon.
const FLOOD_ROUND: Duration = Duration::from_millis(10);

/// Looks at which the number of reset connections does not fall before they are taken for lost.
const RESET_LOOKS: u32 = 40;

/// Connections to ourselves in one round, for the sake of bytes that wait.
const MAX_PUSHED: usize = 256;
/// The same for connections that were reset, of which none is in a hurry.
const MAX_FREED: usize = 64;

/// When all workers have been writing for so long, their clients lose their connections before the write timeout. So does
/// one that holds up a thread of which there is no other.
const HOLD_UP: Duration = Duration::from_millis(250);

/// Descriptors for everything but connections: logs, listeners, the store, threads' own.
const OTHER_DESCRIPTORS: usize = 32;

/// The crate holds two descriptors for a connection.
const PER_CONNECTION: usize = 2;

/// Most connections held: each costs a thread of the crate.
const MAX_CONNECTIONS: usize = 8192;

/// Connections that nothing frees leave room for others up to this share of what is held: half. Beyond it the server gives
/// up, when that has lasted for so long that no slow thread can be the reason.
const LOST_SHARE: usize = 2;
const LOST_FOR: Duration = Duration::from_secs(5);

/// A stop waits for answers so long, and then cuts what is left.
const STOP_WITHIN: Duration = Duration::from_secs(2);

pub(super) struct Watch {
    room: Arc<Room>,
    acceptor: Acceptor,
    listen: Listen,
    /// Where a connection to ourselves goes.
    own: SocketAddr,
    descriptors: Descriptors,
    max_connections: usize,
    /// Until the next round.
    pause: Duration,
    /// When the next look is due, if it is urgent and if not.
    urgent_look: Instant,
    calm_look: Instant,
    /// Something was the matter at the last look.
    urgent: bool,
    /// How many descriptors were open before the last look.
    count: i64,
    /// Connections that were reset and hold descriptors; those of them that nothing frees; looks without a change.
    reset: usize,
    lost: usize,
    reset_looks: u32,
    /// Connections to ourselves, in all, and at the last look for the sake of bytes that wait.
    freed: u64,
    pushed: usize,
    /// Since when too many have been lost.
    crippled: Option<Instant>,
    /// When the youngest connection was first seen.
    newest: Instant,
    stop_begun: Option<Instant>,
}

impl Watch {
    pub(super) fn new(room: Arc<Room>, listener: TcpListener, listen: Listen) -> io::Result<Self> {
        let mut own = listener.local_addr()?;
        if own.ip().is_unspecified() {
            own.set_ip(if own.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
        }
        let descriptors = Descriptors::open(own.port())?;
        let limit = raise_limit();
        let max_connections =
            limit.saturating_sub(OTHER_DESCRIPTORS).div_euclid(PER_CONNECTION).clamp(1, MAX_CONNECTIONS);
        log::info!("holding at most {max_connections} connections, of {limit} open files");
        let now = Instant::now();
        Ok(Self {
            room,
            acceptor: Acceptor::new(listener),
            listen,
            own,
            descriptors,
            max_connections,
            pause: ROUND,
            urgent_look: now,
            calm_look: now,
            urgent: false,
            count: 0,
            reset: 0,
            lost: 0,
            reset_looks: 0,
            freed: 0,
            pushed: 0,
            crippled: None,
            newest: now,
            stop_begun: None,
        })
    }

    /// The watch's life, which ends when the server has stopped.
    pub(super) fn run(mut self) {
        let wake = self.room.wake.1.clone();
        loop {
            let woken = wake.recv_timeout(self.pause).is_ok();
            let round = panic::catch_unwind(AssertUnwindSafe(|| self.round(woken)));
            match round {
                Ok(true) => return,
                Ok(false) => {}
                Err(_) => log::error!("the watch panicked and goes on"),
            }
        }
    }

    /// Whether the server has stopped.
    fn round(&mut self, woken: bool) -> bool {
        let now = Instant::now();
        self.room.drain();
        self.acceptor.drain_old(&self.room);
        let stuck = self.cut_stuck(now);
        let stopping = self.room.stopping();
        let mut left = None;
        let count = self.descriptors.count();
        let urgent = self.urgent || woken || stuck || stopping || count != self.count;
        if now >= self.calm_look || (urgent && now >= self.urgent_look) {
            self.count = count;
            left = self.look(now);
        }
        if !stopping {
            self.mind_acceptor(now);
            return false;
        }
        let begun = *self.stop_begun.get_or_insert(now);
        let late = now.duration_since(begun) > STOP_WITHIN;
        // A second look: what was accepted last may not have had its thread at the first.
        if (left == Some(0) && now > begun) || late {
            self.end(late);
            return true;
        }
        false
    }

    /// Cuts the connections that hold up their writers. Tells whether there were any.
    fn cut_stuck(&self, now: Instant) -> bool {
        let Slots { workers, ahead, clerk } = &self.room.slots;
        let stuck = |slot: &Slot| {
            let (peer, since) = slot.writing()?;
            let age = now.saturating_duration_since(since);
            (age > HOLD_UP).then_some((peer, age))
        };
        let at_work: Vec<_> = workers.iter().filter_map(stuck).collect();
        let patience = if at_work.len() == workers.len() { HOLD_UP } else { self.listen.write_timeout };
        let alone = [ahead, clerk].into_iter().filter_map(stuck);
        let found = at_work.into_iter().filter(|(_, age)| *age > patience).chain(alone);
        let mut any = false;
        for (peer, _) in found {
            any = true;
            if self.room.table.trust(peer) != Trust::Cut {
                self.room.counters.unread_closed.add(1);
                self.room.table.cut(peer);
            }
        }
        any
    }

    /// Looks at every connection once. Tells how many there are that may still be served, if that can be told.
    fn look(&mut self, now: Instant) -> Option<usize> {
        let (connections, reset) = match self.descriptors.look() {
            Ok(found) => (by_peer(found.open), found.reset),
            Err(error) => {
                log::error!("cannot list open connections: {error}");
                self.urgent_look = now + MAX_PAUSE;
                self.calm_look = now + MAX_PAUSE;
                return None;
            }
        };
        let room = &self.room;
        let peers: Vec<SocketAddr> = connections.keys().copied().collect();
        let looks = room.table.look(&peers, now);
        room.counters.connections.set(peers.len() as u64);
        let mut gone = HashSet::new();
        let mut lingering = Vec::new();
        let mut open = Vec::new();
        let mut bytes = [0; FLOOD];
        let mut urgent = false;
        let mut suspect = false;
        let mut starved = 0;
        for (peer, look) in peers.iter().copied().zip(looks) {
            self.newest = self.newest.max(look.begun);
            let sockets = &connections[&peer];
            match look.trust {
                Trust::Last => urgent = true,
                Trust::Closing(since) => {
                    // A client that has closed as well has all that it wanted.
                    let ended = sockets[0].unread(&mut bytes) == Some(0);
                    if ended || now.saturating_duration_since(since) >= LINGER {
                        gone.insert(peer);
                    } else {
                        lingering.push((since, peer));
                    }
                }
                Trust::Cut => {
                    gone.insert(peer);
                }
                Trust::Open if room.stopping() => {
                    // What was read is answered; the next read finds the end.
                    sockets.iter().for_each(|socket| socket.shut(Shutdown::Read));
                    open.push((peer, look));
                }
                Trust::Open if look.held => open.push((peer, look)),
                Trust::Open if look.silent > self.listen.idle_timeout => {
                    room.counters.idle_closed.add(1);
                    gone.insert(peer);
                }
                Trust::Open => {
                    let unread = sockets[0].unread(&mut bytes);
                    let flood = unread == Some(FLOOD) && !begins_request(&bytes);
                    suspect |= flood;
                    let waited = room.table.note_unread(peer, unread.is_some(), now, self.freed);
                    let Some((since, freed)) = waited else {
                        open.push((peer, look));
                        continue;
                    };
                    let had_a_thread = freed >= peers.len() as u64;
                    if (had_a_thread && since > DEAD_AFTER) || (flood && !since.is_zero()) {
                        room.counters.flood_closed.add(1);
                        gone.insert(peer);
                    } else {
                        urgent = true;
                        starved += usize::from(since > STARVED_AFTER && !had_a_thread);
                        open.push((peer, look));
                    }
                }
            }
        }
        urgent |= !lingering.is_empty();
        lingering.sort();
        let longest = lingering.len().saturating_sub(MAX_LINGERING);
        gone.extend(lingering.drain(..longest).map(|(_, peer)| peer));
        let held = open.len();
        gone.extend(self.surplus(open));
        for peer in &gone {
            room.table.cut(*peer);
            connections[peer].iter().for_each(|socket| socket.shut(Shutdown::Both));
        }
        self.bury(now, |peer| gone.contains(&peer) || !connections.contains_key(&peer));
        // Twice as many each time, for silent ones that wait before them; no more than there can be.
        self.pushed = if starved == 0 { 0 } else { starved.max(2 * self.pushed).min(peers.len()).min(MAX_PUSHED) };
        let reset = self.reset_and_starved(reset / PER_CONNECTION);
        let starved = starved + reset;
        self.room.counters.starved.add(starved as u64);
        self.free(self.pushed.max(reset.min(MAX_FREED)));
        self.mind_losses(now);
        self.acceptor.forget_old(|| self.room.table.oldest(connections.keys()));
        let cost = now.elapsed();
        self.urgent_look = Instant::now() + cost * URGENT_SHARE;
        self.calm_look = Instant::now() + (cost * CALM_SHARE).clamp(MIN_PAUSE, MAX_PAUSE);
        self.urgent = urgent || starved > 0;
        self.pause = if suspect { FLOOD_ROUND } else { ROUND };
        Some(held)
    }

    /// The connections beyond the most that are held: those that never had an answer first, then by their silence.
    fn surplus(&self, mut open: Vec<(SocketAddr, Look)>) -> Vec<SocketAddr> {
        let surplus = (open.len() + self.lost).saturating_sub(self.max_connections).min(open.len());
        if surplus == 0 {
            return Vec::new();
        }
        self.room.counters.surplus_closed.add(surplus as u64);
        open.sort_by_key(|(_, look)| (look.held, look.answered, std::cmp::Reverse(look.silent)));
        open.into_iter().take(surplus).map(|(peer, _)| peer).collect()
    }

    /// Hands the clerk what was kept, before `now`, of connections that are shut.
    fn bury(&self, now: Instant, shut: impl Fn(SocketAddr) -> bool) {
        let mut rests = self.room.rests.lock();
        for (peer, since, rest) in mem::take(&mut *rests) {
            let back = if since < now && shut(peer) { self.room.bury(rest) } else { Some(rest) };
            rests.extend(back.map(|rest| (peer, since, rest)));
        }
    }

    /// Opens so many connections to ourselves.
    fn free(&mut self, threads: usize) {
        for _ in 0..threads {
            if let Err(error) = TcpStream::connect_timeout(&self.own, ROUND) {
                log::debug!("cannot connect to {}: {error}", self.own);
                return;
            }
            self.freed += 1;
        }
    }

    /// How many connections were reset while they waited for a thread: they hold descriptors until one looks at them.
    /// Those that stay, whatever is done, belong to threads that hang.
    fn reset_and_starved(&mut self, reset: usize) -> usize {
        if reset < self.reset {
            self.reset_looks = 0;
        } else if reset > self.lost {
            self.reset_looks += 1;
        }
        if self.reset_looks > RESET_LOOKS {
            self.reset_looks = 0;
            self.lost = reset;
        }
        self.reset = reset;
        self.lost = self.lost.min(reset);
        // At the first look their threads may just be about to notice.
        if self.reset_looks > 1 || (self.reset_looks == 0 && reset > self.lost) { reset - self.lost } else { 0 }
    }

    /// Asks for an end when half of what can be held hangs in the crate for good: a process that starts afresh serves better
    /// than one that goes deaf.
    fn mind_losses(&mut self, now: Instant) {
        self.room.counters.lost.set(self.lost as u64);
        if self.lost < self.max_connections.div_ceil(LOST_SHARE) {
            self.crippled = None;
        } else if now.duration_since(*self.crippled.get_or_insert(now)) > LOST_FOR {
            self.room.give_up();
        }
    }

    /// Starts to accept anew when nobody does.
    fn mind_acceptor(&mut self, now: Instant) {
        let signs = self.signs();
        let dead = self.room.deaf.load(Ordering::Acquire)
            || self.acceptor.is_suspect(now, signs) && {
                self.look(now);
                let signs = self.signs();
                self.acceptor.is_dead(now, signs)
            };
        if dead {
            self.acceptor.revive(now, &self.room);
        }
    }

    fn signs(&self) -> Signs {
        let panics = self.room.counters.crate_panics.get();
        Signs { newest: self.newest, descriptors: self.descriptors.count(), panics }
    }

    /// Cuts what is left and ends the other threads.
    fn end(&mut self, late: bool) {
        let connections = self.descriptors.look().map_or_else(|_| Vec::new(), |found| found.open);
        if late {
            log::warn!("cutting {} connections that did not end in time", connections.len() / PER_CONNECTION);
        }
        for socket in connections {
            self.room.table.cut(socket.peer);
            socket.shut(Shutdown::Both);
        }
        self.bury(Instant::now(), |_| true);
        self.room.end();
    }
}

/// Whether this looks like the beginning of a request: then nobody has read any of it.
fn begins_request(bytes: &[u8]) -> bool {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    method > 0 && bytes[method..].first() == Some(&b' ')
}

fn by_peer(descriptors: Vec<Descriptor>) -> HashMap<SocketAddr, Vec<Descriptor>> {
    let mut found: HashMap<SocketAddr, Vec<Descriptor>> = HashMap::with_capacity(descriptors.len() / PER_CONNECTION);
    for descriptor in descriptors {
        found.entry(descriptor.peer).or_default().push(descriptor);
    }
    found
}
