//! The thread that looks after the others. It waits for nobody: what could block is the clerk's.
//!
//! It looks at the sockets of all connections from time to time, and often while something is the matter:
//! - silent: no whole request within the idle timeout. That is also how slow and endless heads end, and versions of HTTP
//!   on which the crate hangs.
//! - flooding: bytes come faster than they are read, and no request comes of them.
//! - starved: bytes wait and nobody reads them. The watch frees threads (see `threadless`).
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
use super::threadless::Threadless;

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
/// crate's thread hangs, or takes longer over a head than any honest one needs. A connection that was shut and is still there
/// after so long has no thread, or one that hangs.
const DEAD_AFTER: Duration = Duration::from_secs(2);

/// So many unread bytes in the midst of something, at two looks, are a flood: heads have a few hundred bytes and are read
/// as they come, and a body is known by its request.
const FLOOD: usize = 32 * 1024;
/// The second look comes so soon.
const FLOOD_ROUND: Duration = Duration::from_millis(10);

/// When all workers have been writing for so long, their clients lose their connections before the write timeout. So does
/// one that holds up a thread of which there is no other.
const HOLD_UP: Duration = Duration::from_millis(250);

/// Descriptors for everything but connections: logs, listeners, the store, threads' own.
const OTHER_DESCRIPTORS: usize = 32;

/// The crate holds two descriptors for a connection.
const PER_CONNECTION: usize = 2;

/// Most connections held: each costs a thread of the crate.
const MAX_CONNECTIONS: usize = 8192;

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
    threadless: Threadless,
    /// Threads freed, each by a connection to ourselves.
    freed: u64,
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
            threadless: Threadless::default(),
            freed: 0,
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
            if self.room.table.cut(peer) {
                self.room.counters.unread_closed.add(1);
            }
        }
        any
    }

    /// Looks at every connection once. Tells how many there are that may still be served, if that can be told.
    fn look(&mut self, now: Instant) -> Option<usize> {
        let (connections, reset) = match self.descriptors.look() {
            Ok(found) => (by_peer(found.open), found.reset / PER_CONNECTION),
            Err(error) => {
                log::error!("cannot list open connections: {error}");
                self.urgent_look = now + MAX_PAUSE;
                self.calm_look = now + MAX_PAUSE;
                return None;
            }
        };
        let peers: Vec<SocketAddr> = connections.keys().copied().collect();
        let looks = self.room.table.look(&peers, now);
        self.room.counters.connections.set(peers.len() as u64);
        let mut urgent = false;
        let (mut waiting, mut ended, mut suspect) = (0, reset, false);
        let (mut open, mut lingering, mut gone) = (Vec::new(), Vec::new(), HashSet::new());
        let mut bytes = [0; FLOOD];
        for (peer, look) in peers.iter().copied().zip(looks) {
            self.newest = self.newest.max(look.begun);
            let verdict = self.judge(peer, look, &connections[&peer], peers.len(), &mut bytes, now);
            urgent |= !matches!(verdict, Verdict::Fine | Verdict::Shut | Verdict::Ended);
            suspect |= verdict == Verdict::Suspect;
            match verdict {
                Verdict::Fine | Verdict::Suspect | Verdict::Waits => open.push((peer, look)),
                Verdict::Starves => {
                    waiting += 1;
                    open.push((peer, look));
                }
                Verdict::Ends => {}
                Verdict::Lingers(since) => lingering.push((since, peer)),
                Verdict::Shut => {
                    gone.insert(peer);
                }
                Verdict::Ended => {
                    ended += 1;
                    gone.insert(peer);
                }
            }
        }
        lingering.sort();
        let longest = lingering.len().saturating_sub(MAX_LINGERING);
        gone.extend(lingering.drain(..longest).map(|(_, peer)| peer));
        let held = open.len();
        let idlest = idlest(&open);
        gone.extend(self.surplus(open));
        for peer in &gone {
            self.shut(*peer, &connections[peer]);
        }
        self.bury(now, |peer| gone.contains(&peer) || !connections.contains_key(&peer));
        let wanted = self.threadless.note(peers.len(), waiting, ended);
        self.room.counters.starved.add(wanted.threads as u64);
        self.room.counters.lost.set(self.threadless.lost() as u64);
        match idlest {
            // No connection to ourselves comes through, since those that were shut and wait for a thread have the descriptors.
            // One that has a thread and no use for it makes way.
            Some(peer) if wanted.now > 0 && peers.len() + reset >= self.max_connections => {
                self.room.counters.surplus_closed.add(1);
                self.shut(peer, &connections[&peer]);
            }
            _ => self.free(wanted.now),
        }
        if self.threadless.is_crippled(now, self.max_connections) {
            self.room.give_up();
        }
        self.acceptor.forget_old(|| self.room.table.oldest(connections.keys()));
        let cost = now.elapsed();
        self.urgent_look = Instant::now() + cost * URGENT_SHARE;
        self.calm_look = Instant::now() + (cost * CALM_SHARE).clamp(MIN_PAUSE, MAX_PAUSE);
        self.urgent = urgent || wanted.threads > 0;
        self.pause = if suspect { FLOOD_ROUND } else { ROUND };
        Some(held)
    }

    /// What is to become of one of so many connections. `bytes` is room to look at what it has sent.
    fn judge(
        &self,
        peer: SocketAddr,
        look: Look,
        sockets: &[Descriptor],
        connections: usize,
        bytes: &mut [u8; FLOOD],
        now: Instant,
    ) -> Verdict {
        let counters = &self.room.counters;
        match look.trust {
            Trust::Last => Verdict::Ends,
            Trust::Closing(since) => {
                // A client that has closed as well has all that it wanted.
                let ended = sockets[0].unread(bytes) == Some(0);
                if ended || now.saturating_duration_since(since) >= LINGER {
                    return Verdict::Shut;
                }
                Verdict::Lingers(since)
            }
            Trust::Cut(since) if look.held || now.saturating_duration_since(since) <= DEAD_AFTER => Verdict::Shut,
            Trust::Cut(_) => Verdict::Ended,
            Trust::Open if self.room.stopping() => {
                // What was read is answered; the next read finds the end.
                sockets.iter().for_each(|socket| socket.shut(Shutdown::Read));
                Verdict::Fine
            }
            Trust::Open if look.held => Verdict::Fine,
            Trust::Open if look.silent > self.listen.idle_timeout => {
                counters.idle_closed.add(1);
                Verdict::Shut
            }
            Trust::Open => {
                let unread = sockets[0].unread(bytes);
                let flood = unread == Some(FLOOD) && !begins_request(bytes);
                let waited = self.room.table.note_unread(peer, unread.is_some(), now, self.freed);
                let Some((since, freed)) = waited else { return Verdict::Fine };
                let had_a_thread = freed >= connections as u64;
                if (had_a_thread && since > DEAD_AFTER) || (flood && !since.is_zero()) {
                    counters.flood_closed.add(1);
                    return Verdict::Shut;
                }
                match (flood, since > STARVED_AFTER && !had_a_thread) {
                    (true, _) => Verdict::Suspect,
                    (false, true) => Verdict::Starves,
                    (false, false) => Verdict::Waits,
                }
            }
        }
    }

    fn shut(&self, peer: SocketAddr, sockets: &[Descriptor]) {
        self.room.table.cut(peer);
        sockets.iter().for_each(|socket| socket.shut(Shutdown::Both));
    }

    /// The connections beyond the most that are held: those that never had an answer first, then by their silence.
    fn surplus(&self, mut open: Vec<(SocketAddr, Look)>) -> Vec<SocketAddr> {
        let surplus = (open.len() + self.threadless.lost()).saturating_sub(self.max_connections).min(open.len());
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

/// Of the connections that had an answer and ask for nothing, the one that has been silent for longest.
fn idlest(open: &[(SocketAddr, Look)]) -> Option<SocketAddr> {
    let idle = open.iter().filter(|(_, look)| look.answered && !look.held);
    idle.max_by_key(|(_, look)| look.silent).map(|(peer, _)| *peer)
}

/// What a look makes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// Bytes of it wait to be read.
    Waits,
    /// The same, and it wants a thread.
    Starves,
    /// It may be a flood: the next look tells.
    Suspect,
    /// Its last answer is on its way.
    Ends,
    /// Its client has time to take the last answer, since then.
    Lingers(Instant),
    /// It is to be shut.
    Shut,
    /// It was shut, and no thread has let go of it yet.
    Ended,
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
