//! Servers that die, freeze, refuse, or are none.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tollgate::{OnStoreError, Outcome, Policy, RateLimiter, Redis, StoreState};

use super::{YEAR, build, settings, sharing};
use crate::support::redis::{Server, eventually};

const TIMEOUT: Duration = Duration::from_millis(100);

/// What a decision may take beyond the timeout: the rounding of the system's timers and of a busy machine.
const MARGIN: Duration = Duration::from_millis(50);

fn ten() -> Policy {
    Policy::fixed_window(10, YEAR).expect("within the bounds")
}

/// A limiter whose decisions wait for [`TIMEOUT`] at most.
fn hasty(redis: Redis, on_error: OnStoreError) -> RateLimiter {
    with(redis.timeout(TIMEOUT).expect("a timeout"), on_error)
}

fn with(redis: Redis, on_error: OnStoreError) -> RateLimiter {
    build(RateLimiter::builder(ten()), redis.on_error(on_error))
}

/// A store behind a forwarder, with a timeout that a busy machine does not reach and a lost reply does.
fn behind(forwarder: &Forwarder) -> RateLimiter {
    let redis = Redis::new(&forwarder.url).and_then(|redis| redis.timeout(Duration::from_secs(1)));
    with(redis.expect("a URL"), OnStoreError::Closed)
}

fn wait_for(limiter: &RateLimiter, state: StoreState) {
    eventually(&format!("the store is {state:?}"), || limiter.store_state() == state);
}

fn let_in(limiter: &RateLimiter, client: &str) -> usize {
    (0..20).filter(|_| limiter.check(client).is_allowed()).count()
}

#[test]
fn while_the_store_is_down_each_mode_does_what_it_says_and_counts_are_shared_again_when_it_is_back() {
    let mut server = Server::start();
    let [local, open, closed] = OnStoreError::ALL.map(|mode| with(settings(&server), mode));
    for limiter in [&local, &open, &closed] {
        assert_eq!(limiter.store_state(), StoreState::Up);
    }
    assert!(local.check_n("c", 4).is_allowed());

    server.kill();
    assert_eq!(let_in(&local, "c"), 10, "the instance enforces the policy by itself");
    let decision = open.check("c");
    assert_eq!((decision.outcome(), decision.verdicts().len()), (Outcome::Allowed, 0));
    let decision = closed.check("c");
    assert!(matches!(decision.outcome(), Outcome::Unavailable { retry_after } if retry_after > Duration::ZERO));
    assert_eq!((decision.is_allowed(), decision.retry_after(), decision.verdicts().len()), (false, None, 0));
    for (limiter, mode) in [&local, &open, &closed].into_iter().zip(OnStoreError::ALL) {
        assert_eq!(limiter.store_state(), StoreState::Down(mode));
    }

    server.restart();
    for limiter in [&local, &open, &closed] {
        wait_for(limiter, StoreState::Up);
    }
    let all: usize = [&local, &open, &closed].map(|limiter| let_in(limiter, "c")).iter().sum();
    assert_eq!(all, 10, "the store was empty and is shared");
}

#[test]
fn a_limiter_is_made_while_nobody_listens_and_finds_the_store_when_it_comes() {
    let mut server = Server::start();
    server.kill();
    let limiter = with(settings(&server), OnStoreError::Closed);
    assert!(!limiter.check("c").is_allowed());
    server.restart();
    wait_for(&limiter, StoreState::Up);
    assert_eq!(let_in(&limiter, "c"), 10);
}

#[test]
fn no_request_waits_longer_than_the_timeout_for_a_frozen_server_and_after_the_first_ones_none_waits() {
    let server = Server::start();
    let limiter = hasty(settings(&server), OnStoreError::Local);
    limiter.check("c");
    server.signal("STOP");
    let (left, waits) = (AtomicUsizeDown::new(200), Mutex::new(Vec::new()));
    let begun = Instant::now();
    thread::scope(|scope| {
        for worker in 0..16 {
            let (limiter, left, waits) = (&limiter, &left, &waits);
            scope.spawn(move || {
                while left.take() {
                    let begun = Instant::now();
                    limiter.check(&*format!("client {worker}"));
                    waits.lock().expect("no panic").push(begun.elapsed());
                }
            });
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(2), "200 requests took {:?}", begun.elapsed());
    let waits = waits.into_inner().expect("no panic");
    assert!(waits.iter().all(|&wait| wait < TIMEOUT + MARGIN), "{:?}", waits.iter().max());
    assert!(waits.iter().filter(|&&wait| wait > Duration::from_millis(10)).count() <= 16);
    server.signal("CONT");
    wait_for(&limiter, StoreState::Up);
    eventually("connections of the outage are gone", || server.ask::<String>("CLIENT LIST").lines().count() <= 3);
}

/// Hands out so many turns.
struct AtomicUsizeDown(std::sync::atomic::AtomicUsize);

impl AtomicUsizeDown {
    fn new(turns: usize) -> Self {
        Self(turns.into())
    }

    fn take(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

#[test]
fn a_late_reply_is_never_taken_for_the_answer_to_another_client() {
    let server = Server::start();
    let limiter = with(settings(&server).timeout(Duration::from_millis(300)).expect("a timeout"), OnStoreError::Closed);
    assert_eq!(let_in(&limiter, "used up"), 10);
    for round in 0..4 {
        server.ask::<()>("CLIENT PAUSE 700");
        // Not the refused client, which needs no store: one whose reply would say that a lot is left.
        let asked = limiter.check_n(&*format!("late {round}"), 5);
        assert!(matches!(asked.outcome(), Outcome::Unavailable { .. }), "{asked:?}");
        wait_for(&limiter, StoreState::Up);
        let fresh = limiter.check(&*format!("fresh {round}"));
        assert_eq!((fresh.is_allowed(), fresh.verdicts()[0].remaining()), (true, 9));
    }
}

/// Passes bytes on between clients and a server, and drops the replies while it is told to.
struct Forwarder {
    url: String,
    to: Arc<Mutex<u16>>,
    dropping: Arc<AtomicBool>,
}

impl Forwarder {
    fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("redis://{}", listener.local_addr().expect("an address"));
        let (to, dropping) = (Arc::new(Mutex::new(to)), Arc::new(AtomicBool::new(false)));
        let (target, drops) = (Arc::clone(&to), Arc::clone(&dropping));
        // Ends with the process: it waits in accept.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", *target.lock().expect("no panic"))) else { continue };
                let pairs = [(client.try_clone(), server.try_clone()), (server.try_clone(), client.try_clone())];
                for (from, to) in pairs {
                    let (mut from, mut to) = (from.expect("a socket"), to.expect("a socket"));
                    let is_reply = from.peer_addr().ok() == server.peer_addr().ok();
                    let drops = Arc::clone(&drops);
                    thread::spawn(move || {
                        let mut bytes = [0; 4_096];
                        while let Ok(read @ 1..) = from.read(&mut bytes) {
                            if !(is_reply && drops.load(Ordering::SeqCst)) && to.write_all(&bytes[..read]).is_err() {
                                break;
                            }
                        }
                        // The other direction ends by it.
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        Self { url, to, dropping }
    }
}

#[test]
fn a_lost_reply_is_a_charge_that_is_not_sent_again() {
    let server = Server::on_tcp(&[]);
    let forwarder = Forwarder::start(server.port());
    let limiter = behind(&forwarder);
    assert_eq!(limiter.check("warm").verdicts()[0].remaining(), 9);
    forwarder.dropping.store(true, Ordering::SeqCst);
    assert!(matches!(limiter.check("c").outcome(), Outcome::Unavailable { .. }));
    forwarder.dropping.store(false, Ordering::SeqCst);
    wait_for(&limiter, StoreState::Up);
    assert_eq!(limiter.check("c").verdicts()[0].remaining(), 8);
}

#[test]
fn a_primary_that_becomes_a_replica_is_left_for_the_server_behind_the_same_address() {
    let (first, second) = (Server::on_tcp(&[]), Server::on_tcp(&[]));
    let forwarder = Forwarder::start(first.port());
    let limiter = behind(&forwarder);
    assert!(limiter.check("c").is_allowed());
    first.ask::<()>(&format!("REPLICAOF 127.0.0.1 {}", second.port()));
    *forwarder.to.lock().expect("no panic") = second.port();
    // It says READONLY, or that it is loading what the other one has.
    eventually("the replica's refusal is met", || !limiter.check("d").is_allowed());
    wait_for(&limiter, StoreState::Up);
    assert!(limiter.check("e").is_allowed());
    assert!(second.keys().iter().any(|key| key.contains("default")));
}

#[test]
fn what_is_no_redis_or_refuses_to_decide_is_down_and_nobody_waits_twice() {
    let replica = Server::on_tcp(&["--replicaof", "127.0.0.1", "1"]);
    let locked = Server::with(&["--requirepass", "secret"]);
    let full = Server::with(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let swallows = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let answers = |reply: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("redis://{}", listener.local_addr().expect("an address"));
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut bytes = [0; 4_096];
                    while let Ok(1..) = client.read(&mut bytes) {
                        if client.write_all(reply).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        url
    };
    let urls = [
        replica.url().to_owned(),
        locked.url().to_owned(),
        full.url().to_owned(),
        format!("redis://{}", swallows.local_addr().expect("an address")),
        "redis://127.0.0.1:1".to_owned(),
        answers(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        answers(b"*2000000000\r\n"),
        answers(b"$2000000000\r\n"),
        answers(b"*1\r\n*1\r\n*1\r\n*1\r\n"),
        answers(b":-1\r\n"),
        answers(b":-2\r\n"),
        answers(b":9223372036854775807\r\n"),
        answers(b"$-1\r\n"),
        answers(b"*0\r\n"),
        answers(b"*5\r\n:0\r\n:-1\r\n:0\r\n:0\r\n:0\r\n"),
        answers(b"*5\r\n:1\r\n:0\r\n:9223372036854775807\r\n:0\r\n:0\r\n"),
        answers(b"*5\r\n:0\r\n:11\r\n:0\r\n:0\r\n:0\r\n"),
        answers(b"*5\r\n:3\r\n:1\r\n:0\r\n:0\r\n:0\r\n"),
        answers(b"+OK\r\n"),
        answers(b"-BUSY Redis is busy running a script.\r\n"),
        answers(b"-ERR user_script:1: oh\r\n"),
    ];
    for url in &urls {
        let limiter = hasty(Redis::new(url).expect("a URL"), OnStoreError::Closed);
        for _ in 0..3 {
            let begun = Instant::now();
            let outcome = limiter.check("c").outcome();
            assert!(matches!(outcome, Outcome::Unavailable { .. }), "{url}: {outcome:?}");
            assert!(begun.elapsed() < TIMEOUT + MARGIN, "{url}: {:?}", begun.elapsed());
        }
    }
}

#[test]
fn a_full_server_is_down_until_it_has_room() {
    let server = Server::start();
    let limiter = with(settings(&server), OnStoreError::Closed);
    assert!(limiter.check("c").is_allowed());
    server.ask::<()>("CONFIG SET maxmemory 1");
    eventually("the store is full", || !limiter.check("c").is_allowed());
    server.ask::<()>("CONFIG SET maxmemory 0");
    wait_for(&limiter, StoreState::Up);
    assert!(limiter.check("c").is_allowed());
    for key in server.keys() {
        assert!(server.ask::<i64>(&format!("PTTL {key}")) != -1, "{key} lives for ever");
    }
}

#[test]
fn a_password_with_every_awkward_character_logs_in_and_a_wrong_one_is_shown_nowhere() {
    let server = Server::on_tcp(&["--requirepass", "p@ss#w/rd=%"]);
    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}/", server.port());
    let limiter = with(Redis::new(&url("p%40ss%23w%2Frd%3D%25")).expect("a URL"), OnStoreError::Closed);
    assert!(limiter.check("c").is_allowed());
    let error = Redis::new(&url("p@ss#w/rd=%")).expect_err("not encoded").to_string();
    assert!(!error.contains("ss#w") && error.contains("percent-encoded") && error.contains("***@127.0.0.1"), "{error}");
    let wrong = Redis::new(&url("hunter2")).expect("a URL");
    assert!(!format!("{wrong:?}").contains("hunter2"));
    assert!(!with(wrong, OnStoreError::Closed).check("c").is_allowed());
}

#[test]
fn scripts_that_the_server_forgot_are_sent_again_and_nothing_else_is() {
    let server = Server::start();
    let limiter = sharing(&server, &ten());
    for round in 1..=5 {
        assert_eq!(limiter.check("c").verdicts()[0].remaining(), 10 - round);
        server.ask::<()>("SCRIPT FLUSH");
    }
    assert_eq!((server.calls("evalsha"), limiter.store_calls().failed), (5, 0));
}

#[test]
fn ten_outages_leave_no_connection_behind() {
    let mut server = Server::start();
    let limiter = with(settings(&server), OnStoreError::Local);
    let round = |server: &mut Server| {
        server.kill();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| let_in(&limiter, "c"));
            }
        });
        server.restart();
        wait_for(&limiter, StoreState::Up);
    };
    for _ in 0..10 {
        round(&mut server);
    }
    // The first line is the test's own.
    assert!(server.ask::<String>("CLIENT LIST").lines().count() <= 3);
    assert_eq!(sharing(&server, &ten()).check("d").verdicts()[0].remaining(), 9);
    assert_eq!(limiter.check("d").verdicts()[0].remaining(), 8);
}
