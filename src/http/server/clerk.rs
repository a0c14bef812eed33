//! The clerk: the thread for what would make a worker or the watch wait for a client. Requests that found no worker, and what
//! is left of connections that are shut.

use std::borrow::Cow;
use std::io::Read;
use std::mem;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::TrySendError;
use tiny_http::Request;

use super::answer::{self, Rest};
use super::room::{Room, Slot};
use crate::http::routes::is_about_the_service;

/// What the clerk may have before it: above this, connections are cut without an answer.
pub(super) const MAX_ERRANDS: usize = 4096;

/// Connections whose rest could not be let go are told in the log this often.
const TELL_EVERY: u64 = 100;

/// What the allocator was seen to have is believed for so long: asking costs as much as the rest of such a connection.
const BELIEVED: Duration = Duration::from_millis(100);

/// What the clerk is asked to do, so that neither the watch nor a worker waits for a client.
pub(super) enum Errand {
    /// Answer in a worker's stead.
    Answer(SocketAddr, Request),
    /// Answer that there is no worker.
    Shed(SocketAddr, Request),
    /// Let go of what was kept until the socket was shut.
    Bury(Rest),
    /// There is no more to do.
    End,
}

/// What the allocator can give at once.
#[derive(Default)]
struct Headroom(Option<(u64, Instant)>);

impl Headroom {
    fn has(&mut self, bytes: u64) -> bool {
        if self.0.is_some_and(|(had, since)| bytes <= had && since.elapsed() < BELIEVED) {
            return true;
        }
        let has = usize::try_from(bytes).is_ok_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok());
        if has {
            self.0 = Some((bytes, Instant::now()));
        }
        has
    }
}

impl Room {
    /// The clerk's life: what would make others wait for a client.
    pub(super) fn clerk(self: &Arc<Self>) {
        let slot = &self.slots.clerk;
        let mut headroom = Headroom::default();
        while let Ok(errand) = self.errands.1.recv() {
            let done = panic::catch_unwind(AssertUnwindSafe(|| match errand {
                Errand::Answer(peer, request) => {
                    self.answer_all(peer, request, slot);
                    true
                }
                Errand::Shed(peer, request) => {
                    self.shed(peer, request, slot);
                    true
                }
                Errand::Bury(rest) => {
                    self.let_go(rest, &mut headroom);
                    true
                }
                Errand::End => false,
            }));
            if !done.unwrap_or(true) {
                break;
            }
        }
    }

    fn shed(self: &Arc<Self>, peer: SocketAddr, request: Request, slot: &Slot) {
        if is_about_the_service(request.url()) {
            return self.answer_all(peer, request, slot);
        }
        self.counters.shed.add(1);
        let mut response = answer::text(503, "busy: too many requests are waiting\n".into());
        response.headers.push(("Retry-After", Cow::Borrowed("1")));
        self.write(peer, request, answer::last(response), slot);
        let behind = self.table.done(peer);
        self.abandon(peer, behind.map(|next| next.request));
    }

    /// Lets go of what was kept of a connection whose socket has been shut.
    fn let_go(&self, rest: Rest, headroom: &mut Headroom) {
        match rest {
            Rest::Writer(writer) => drop(writer),
            // The answer goes nowhere: this is the way to the stream.
            Rest::Request(request) => {
                let rest = answer::write_last(request, answer::last(answer::text(400, Cow::Borrowed(""))));
                self.let_go(rest, headroom);
            }
            Rest::Stream(mut stream, declared) => {
                // The crate allocates what was declared, reads to the end, and frees it: nothing is touched that was not
                // received. What no allocation can get would end the process; what no allocation can be asked for is a
                // panic, caught by the caller.
                let impossible = isize::try_from(declared).is_err();
                if impossible || headroom.has(declared.saturating_mul(2)) {
                    // It would allocate anew for each piece that has come: those are taken from it first.
                    while !impossible && stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {}
                    drop(stream);
                    return;
                }
                mem::forget(stream);
                let count = self.counters.set_aside.get();
                self.counters.set_aside.add(1);
                if count.is_multiple_of(TELL_EVERY) {
                    log::warn!(
                        "a request declared a body of {declared} bytes; its connection costs a thread and two descriptors \
                         for good ({} such so far): put a reverse proxy in front",
                        count + 1
                    );
                }
            }
        }
    }

    /// Lets go of what nobody had in hand when the threads ended. Dropped with the room, a declared body could end the process.
    pub(super) fn clear(&self) {
        let mut headroom = Headroom::default();
        self.abandon_all();
        for (.., rest) in mem::take(&mut *self.rests.lock()) {
            // The crate's panics are counted by the hook.
            let _ = panic::catch_unwind(AssertUnwindSafe(|| self.let_go(rest, &mut headroom)));
        }
    }

    pub(super) fn send(&self, errand: Errand) {
        let Err(refused) = self.errands.0.try_send(errand) else { return };
        if let Errand::Answer(peer, request) | Errand::Shed(peer, request) = refused.into_inner() {
            self.table.cut(peer);
            self.counters.shed.add(1);
            self.abandon(peer, Some(request));
        }
    }

    /// Hands the clerk what was kept of a connection. Gives it back when the clerk has too much to do.
    pub(super) fn bury(&self, rest: Rest) -> Option<Rest> {
        match self.errands.0.try_send(Errand::Bury(rest)) {
            Err(TrySendError::Full(Errand::Bury(rest)) | TrySendError::Disconnected(Errand::Bury(rest))) => Some(rest),
            _ => None,
        }
    }
}
