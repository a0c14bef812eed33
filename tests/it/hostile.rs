//! What comes over a socket that no honest client sends, a line for each. After each, a good client has its answer
//! within two seconds, a client that has spent its quota still has, and what was smuggled in was not counted.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::support::{Connection, Reply, Service};

/// Each is sent on so many connections at once: more than there are workers.
const AT_ONCE: usize = 3;

const SETTINGS: &[(&str, &str)] = &[
    ("API_KEY_HEADER", "X-Key"),
    ("CAPACITY", "3"),
    ("REFILL_RATE", "1/1d"),
    ("WORKERS", "2"),
    ("IDLE_TIMEOUT", "1s"),
];

/// How it must end.
enum End {
    /// At most one answer, with one of these statuses (none at all when there are none), and the connection is closed.
    Closed(&'static [u16]),
    /// Answers with these statuses, and the connection goes on.
    Open(&'static [u16]),
}
use End::{Closed, Open};

/// What is sent, with the method it is read as; `{HIDDEN}` is a request that must not be heard.
struct Case(&'static str, &'static str, End);

const HIDDEN: &str = "{HIDDEN}";

#[rustfmt::skip]
const CASES: &[Case] = &[
    // Bodies that are announced and not sent.
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\nabc", Closed(&[405])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000000000\r\n\r\nabc", Closed(&[405])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775808\r\n\r\nabc", Closed(&[405])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\nabc", Closed(&[405])),
    Case("GET", "GET /unlimited HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000000000\r\n\r\nabc", Closed(&[200])),
    Case("HEAD", "HEAD /unlimited HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000000000\r\n\r\n{HIDDEN}", Closed(&[200])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\nabc", Closed(&[405])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 70000\r\n\r\n{HIDDEN}", Closed(&[405])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\nabc", Closed(&[])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n", Closed(&[405])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2000000\r\n\r\n", Closed(&[405])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n", Open(&[405])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nExpect: foo\r\nContent-Length: 3\r\n\r\n", Closed(&[417])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", Closed(&[405])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n{HIDDEN}", Closed(&[405])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n16;x /limited HTTP/1.1\r\n\r\n", Closed(&[405])),
    Case("POST", "POST /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /unlimited HTTP/1.1\r\nHost: a\r\n\r\n", Open(&[405, 200])),
    // Two readers could disagree on where these end.
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nContent-Length: abc\r\n\r\n{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\nhello{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 0\r\n\r\nhello{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\nContent-Length: 0\r\n\r\n{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 100000000000000\r\n\r\n{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nX: y\rTransfer-Encoding: chunked\r\n\r\n{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nX: y\nContent-Length: 5\r\n\r\n{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n{HIDDEN}", Closed(&[400])),
    Case("GET", "GET /limited HTTP/1.1\r\nHost: a\r\n: nameless\r\n\r\n{HIDDEN}", Closed(&[400])),
    // Not HTTP/1.1, or not whole.
    Case("GET", "", Closed(&[])),
    Case("GET", "GET /unlimited HT", Closed(&[])),
    Case("GET", "GET /unlimited HTTP/1.1\r\nHost: a\r\n", Closed(&[])),
    Case("GET", "GET /unlimited HTTP/1.1\nHost: a\n\n", Closed(&[])),
    Case("GET", "GET /unlimited HTTP/2.0\r\n\r\n", Closed(&[505])),
    Case("GET", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Closed(&[505])),
    Case("GET", "\x16\x03\x01\x02\x00\x01\x00\x01\x7c\x03\x03", Closed(&[400])),
    Case("GET", "GET /unlimited HTTP/1.1\r\nHost: a\r\nX-City: S\u{e3}o\r\n\r\n", Closed(&[])),
    Case("GET", "\r\n\r\n", Closed(&[400])),
    Case("GET", "GET /unlimited HTTP/1.0\r\n\r\n{HIDDEN}", Closed(&[200])),
    Case("GET", "GET /unlimited HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", Open(&[200])),
    Case("GET", "GET /unlimited HTTP/1.1\r\nHost: a\r\nTE: chunked\r\n\r\n", Open(&[200])),
    Case("GET", "GET /unlimited HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n{HIDDEN}", Closed(&[200])),
    // Targets.
    Case("GET", "GET foo HTTP/1.1\r\nHost: a\r\n\r\n", Open(&[400])),
    Case("GET", "GET  HTTP/1.1\r\nHost: a\r\n\r\n", Open(&[400])),
    Case("OPTIONS", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", Open(&[400])),
    Case("GET", "GET /%ff HTTP/1.1\r\nHost: a\r\n\r\nGET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", Open(&[404, 404])),
];

fn keyed(key: &str) -> String {
    format!("GET /limited HTTP/1.1\r\nHost: a\r\nX-Key: {key}\r\n\r\n")
}

/// Every answer on a connection until it closes or is silent.
fn replies(connection: &mut Connection, method: &str, most: usize) -> (Vec<Reply>, Option<io::Error>) {
    let mut replies = Vec::new();
    while replies.len() < most {
        match connection.read(method) {
            Ok(reply) => replies.push(reply),
            Err(error) => return (replies, Some(error)),
        }
    }
    (replies, None)
}

fn check(service: &Service, number: usize, case: &Case) {
    let Case(method, text, end) = case;
    let hidden = format!("hidden-{number}");
    let bytes = text.replace(HIDDEN, &keyed(&hidden));
    let mut connections: Vec<Connection> = (0..AT_ONCE)
        .map(|_| {
            let mut connection = service.connect();
            // The other end may close before it has read all.
            let _ = connection.try_send(&bytes);
            connection
        })
        .collect();
    assert_good_and_spent(service, text);
    for connection in &mut connections {
        let statuses = |replies: &[Reply]| replies.iter().map(|reply| reply.status).collect::<Vec<_>>();
        match end {
            Open(expected) => {
                let (replies, error) = replies(connection, method, expected.len());
                assert_eq!(statuses(&replies), *expected, "{text:?}, then {error:?}");
                assert_eq!(connection.get("/unlimited").status, 200, "{text:?}");
            }
            Closed(allowed) => {
                let (replies, error) = replies(connection, method, 2);
                let found = statuses(&replies);
                let fits = found.len() <= 1 && found.iter().all(|status| allowed.contains(status));
                assert!(fits, "{text:?} got {replies:?}, and one of {allowed:?} is allowed");
                let error = error.expect("fewer than two answers end with an error");
                let open = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
                assert!(!open, "{text:?} got {found:?}, and the connection is still open");
            }
        }
    }
    assert_good_and_spent(service, text);
    if text.contains(HIDDEN) {
        let mut fresh = service.connect();
        fresh.send(keyed(&hidden));
        let reply = fresh.read("GET").expect("an answer");
        assert_eq!(reply.number("X-RateLimit-Remaining"), 2, "what was hidden in {text:?} was counted");
    }
}

fn assert_good_and_spent(service: &Service, after: &str) {
    let begun = Instant::now();
    assert_eq!(service.get("/unlimited").status, 200, "a good client after {after:?}");
    assert!(begun.elapsed() < Duration::from_secs(2), "a good client waited {:?} after {after:?}", begun.elapsed());
    let mut spent = service.connect();
    spent.send(keyed("spent"));
    assert_eq!(spent.read("GET").expect("an answer").status, 429, "a spent client after {after:?}");
}

#[test]
fn whatever_is_sent_harms_nobody_else() {
    let service = Service::start(SETTINGS);
    for _ in 0..3 {
        let mut client = service.connect();
        client.send(keyed("spent"));
        assert_eq!(client.read("GET").expect("an answer").status, 200);
    }
    thread::scope(|scope| {
        for (number, case) in CASES.iter().enumerate() {
            let service = &service;
            scope.spawn(move || check(service, number, case));
        }
    });
}
