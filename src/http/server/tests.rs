//! The server behind a socket, with a handler that tests can look into.

use std::borrow::Cow;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use super::{Counters, Handler, Listen, Request, Response, Server};

const PATIENCE: Duration = Duration::from_secs(5);

fn listen(address: impl Into<SocketAddr>) -> Listen {
    Listen {
        address: address.into(),
        workers: 4,
        idle_timeout: Duration::from_secs(30),
        write_timeout: Duration::from_secs(5),
    }
}

fn start(handler: impl Fn(&Request<'_>) -> Response + Send + Sync + 'static) -> (Server, Arc<Counters>) {
    let counters = Arc::new(Counters::default());
    let handler: Handler = Arc::new(handler);
    let server = Server::serve(listen((Ipv4Addr::LOCALHOST, 0)), handler, Arc::clone(&counters)).expect("a free port");
    (server, counters)
}

fn echo(request: &Request<'_>) -> Response {
    Response { status: 200, headers: vec![], body: Cow::Owned(request.target.to_owned()) }
}

/// A handler that is held up at `/slow`: it says so on the first channel, and goes on when the other end of the second is dropped.
fn held_up() -> (Handler, Receiver<()>, Sender<()>) {
    let (enter, entered) = crossbeam_channel::bounded(1);
    let (release, released) = crossbeam_channel::bounded(0);
    let handler = move |request: &Request<'_>| {
        if request.target == "/slow" {
            // Nobody listens any more once all have been let go.
            let _ = enter.send(());
            let _ = released.recv();
        }
        echo(request)
    };
    (Arc::new(handler), entered, release)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    stream
}

/// Reads until this text has come; gives all that was read.
fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(end.as_bytes()) {
        match stream.read(&mut byte) {
            Ok(1..) => read.push(byte[0]),
            other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&read)),
        }
    }
    String::from_utf8(read).expect("an answer in ASCII")
}

fn get(stream: &mut TcpStream, target: &str) -> String {
    write!(stream, "GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
    read_until(stream, &format!("\r\n\r\n{target}"))
}

#[test]
fn a_burst_of_connections_that_stay_open_is_answered_within_a_second() {
    for connections in [5, 64, 500] {
        let (server, counters) = start(echo);
        let mut streams: Vec<TcpStream> = (0..connections).map(|_| connect(server.address())).collect();
        let begun = Instant::now();
        for stream in &mut streams {
            write!(stream, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
        }
        for stream in &mut streams {
            read_until(stream, "\r\n\r\n/x");
        }
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(1), "{connections} connections took {took:?}");
        println!("{connections}: {took:?}, starved {}", counters.starved.get());
        server.stop();
    }
}

#[test]
fn a_panic_of_the_handler_costs_its_request_and_no_worker() {
    let (server, counters) =
        start(|request| if request.target == "/panic" { panic!("on purpose") } else { echo(request) });
    let mut stream = connect(server.address());
    for _ in 0..20 {
        write!(stream, "GET /panic HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
        let answer = read_until(&mut stream, "says more\n");
        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    }
    get(&mut stream, "/after");
    assert_eq!(counters.handler_panics.get(), 20);
    server.stop();
}

#[test]
fn head_gets_the_fields_of_get_without_the_body() {
    let (server, _) = start(echo);
    let mut stream = connect(server.address());
    write!(stream, "HEAD /four HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
    let head = read_until(&mut stream, "\r\n\r\n");
    assert!(head.contains("Content-Length: 5\r\n"), "{head}");
    // Were there a body, it would come before this answer.
    assert!(get(&mut stream, "/next").starts_with("HTTP/1.1 200 "));
    server.stop();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (server, _) = start(echo);
    for _ in 0..50 {
        let mut stream = connect(server.address());
        let requests: String = (0..100).map(|n| format!("GET /{n:03} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
        stream.write_all(requests.as_bytes()).expect("the server reads");
        for n in 0..100 {
            let answer = read_until(&mut stream, "\r\n\r\n/");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert_eq!(read_until(&mut stream, &format!("{n:03}")), format!("{n:03}"));
        }
    }
    server.stop();
}

#[test]
fn a_client_that_asks_at_once_again_does_not_keep_its_worker_from_one_that_waits() {
    let (enter, entered) = crossbeam_channel::unbounded::<String>();
    let (release, released) = crossbeam_channel::bounded::<()>(0);
    let handler = move |request: &Request<'_>| {
        enter.send(request.target.to_owned()).expect("the test looks");
        // It ends when the other end is dropped.
        let _ = released.recv();
        echo(request)
    };
    let one = Listen { workers: 1, ..listen((Ipv4Addr::LOCALHOST, 0)) };
    let server = Server::serve(one, Arc::new(handler), Arc::default()).expect("a free port");
    let until = |there: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !there() {
            assert!(begun.elapsed() < PATIENCE, "it does not come");
            thread::yield_now();
        }
    };
    let mut quick = connect(server.address());
    let mut patient = connect(server.address());
    write!(quick, "GET /first HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
    assert_eq!(entered.recv().as_deref(), Ok("/first"));
    write!(patient, "GET /patient HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
    until(&|| server.room.turn.try_lock().is_ok_and(|ready| ready.len() == 1));
    write!(quick, "GET /again HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
    until(&|| server.room.table.waiting(quick.local_addr().expect("an address")) == 1);
    release.send(()).expect("the worker waits");
    assert_eq!(entered.recv().as_deref(), Ok("/patient"));
    drop(release);
    read_until(&mut patient, "\r\n\r\n/patient");
    read_until(&mut quick, "\r\n\r\n/again");
    server.stop();
}

#[test]
fn a_silent_connection_is_closed_after_the_idle_timeout() {
    let counters = Arc::new(Counters::default());
    let patient = Listen { idle_timeout: Duration::from_millis(300), ..listen((Ipv4Addr::LOCALHOST, 0)) };
    let server = Server::serve(patient, Arc::new(echo), Arc::clone(&counters)).expect("a free port");
    for sent in ["", "GET / HT", "GET / HTTP/2.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n"] {
        let mut stream = connect(server.address());
        stream.write_all(sent.as_bytes()).expect("the server reads");
        let begun = Instant::now();
        assert_eq!(stream.read(&mut [0; 1]).expect("an orderly close"), 0, "{sent:?}");
        assert!(begun.elapsed() >= Duration::from_millis(250), "{sent:?} was closed after {:?}", begun.elapsed());
    }
    assert_eq!(counters.idle_closed.get(), 4);
    server.stop();
}

#[test]
fn a_connection_that_does_not_take_its_answer_is_cut_after_the_write_timeout_and_frees_its_worker() {
    let counters = Arc::new(Counters::default());
    let hasty = Listen { write_timeout: Duration::from_millis(300), ..listen((Ipv4Addr::LOCALHOST, 0)) };
    let long = "x".repeat(32 << 20);
    let handler = move |request: &Request<'_>| Response {
        status: 200,
        headers: vec![],
        body: if request.target == "/long" { Cow::Owned(long.clone()) } else { Cow::Borrowed("short") },
    };
    let server = Server::serve(hasty, Arc::new(handler), Arc::clone(&counters)).expect("a free port");
    // One fewer than there are workers: with all of them held up it would not take as long.
    let deaf: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut stream = connect(server.address());
            write!(stream, "GET /long HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
            stream
        })
        .collect();
    let begun = Instant::now();
    // Counted first, and gone at the next look.
    while counters.unread_closed.get() < 3 || counters.connections.get() >= 3 {
        assert!(begun.elapsed() < PATIENCE, "{} of 3 are cut", counters.unread_closed.get());
        let mut stream = connect(server.address());
        write!(stream, "GET /short HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
        read_until(&mut stream, "short");
    }
    assert!(begun.elapsed() >= Duration::from_millis(250), "they were cut after {:?}", begun.elapsed());
    assert_eq!(counters.unread_closed.get(), 3);
    for mut stream in deaf {
        let read = stream.read_to_end(&mut Vec::new());
        assert!(read.is_err() || read.is_ok_and(|length| length < 32 << 20), "the answer came whole");
    }
    server.stop();
}

#[test]
fn requests_that_find_no_worker_for_a_second_are_turned_away_and_questions_about_the_service_are_answered() {
    let counters = Arc::new(Counters::default());
    let one = Listen { workers: 1, ..listen((Ipv4Addr::LOCALHOST, 0)) };
    let (handler, entered, release) = held_up();
    let server = Server::serve(one, handler, Arc::clone(&counters)).expect("a free port");
    let ask = |target: &str| {
        let mut stream = connect(server.address());
        write!(stream, "GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
        stream
    };
    let mut slow = ask("/slow");
    entered.recv().expect("the worker is held up");
    let mut waiting: Vec<TcpStream> = (0..5).map(|_| ask("/x")).collect();
    let mut about: Vec<TcpStream> = ["/healthz", "/metrics", "http://a/healthz?x"].into_iter().map(ask).collect();
    for stream in &mut waiting {
        let answer = read_until(stream, "waiting\n");
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After: 1\r\n"), "{answer}");
        assert_eq!(stream.read(&mut [0; 1]).expect("an orderly close"), 0);
    }
    for stream in &mut about {
        let answer = read_until(stream, "\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert_eq!(counters.shed.get(), 5);
    drop(release);
    assert!(read_until(&mut slow, "\r\n\r\n/slow").starts_with("HTTP/1.1 200 "));
    server.stop();
}

#[test]
fn a_port_that_is_taken_and_an_address_that_is_not_ours_are_errors_that_say_so() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let taken = taken.local_addr().expect("an address");
    for (address, expected) in [
        (taken, format!("cannot listen on {taken}: the port is taken")),
        (SocketAddr::from(([192, 0, 2, 1], 0)), "cannot listen on 192.0.2.1:0: no interface".to_owned()),
    ] {
        let holder = TcpListener::bind(taken);
        let Err(error) = Server::serve(listen(address), Arc::new(echo), Arc::default()) else {
            panic!("{address} could be bound")
        };
        drop(holder);
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

#[test]
fn a_stop_is_quick_with_idle_connections_and_frees_the_port() {
    for address in [
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        SocketAddr::from(([127, 0, 0, 2], 0)),
    ] {
        let server = Server::serve(listen(address), Arc::new(echo), Arc::default()).expect("a free port");
        let bound = server.address();
        let host = if address.ip().is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { address.ip() };
        let reached = SocketAddr::new(host, bound.port());
        let mut idle: Vec<TcpStream> = (0..20).map(|_| connect(reached)).collect();
        get(&mut idle[0], "/once");
        idle[1].write_all(b"GET / HT").expect("the server reads");
        let begun = Instant::now();
        server.stop();
        assert!(begun.elapsed() < Duration::from_secs(3), "{address}: {:?}", begun.elapsed());
        assert!(TcpStream::connect(reached).is_err(), "{address} still takes connections");
        let again = Server::serve(Listen { address: bound, ..listen(bound) }, Arc::new(echo), Arc::default());
        again.unwrap_or_else(|error| panic!("the port is not free: {error}")).stop();
    }
}

#[test]
fn a_stop_waits_for_the_answers_that_were_begun() {
    let (handler, entered, release) = held_up();
    let listen = listen((Ipv4Addr::LOCALHOST, 0));
    let server = Server::serve(listen, handler, Arc::default()).expect("a free port");
    let address = server.address();
    let mut streams: Vec<TcpStream> = (0..12).map(|_| connect(address)).collect();
    for stream in &mut streams {
        write!(stream, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
    }
    for _ in 0..listen.workers {
        entered.recv().expect("a worker is held up");
    }
    let stopped = thread::spawn(move || server.stop());
    while TcpStream::connect(address).is_ok() {
        thread::yield_now();
    }
    drop((release, entered));
    for stream in &mut streams {
        assert!(read_until(stream, "\r\n\r\n/slow").starts_with("HTTP/1.1 200 "));
        assert_eq!(stream.read(&mut [0; 1]).expect("an orderly close"), 0);
    }
    stopped.join().expect("the stop ends");
}

#[test]
fn a_stop_lets_go_of_a_body_that_no_memory_holds_after_its_threads_have_ended() {
    let (handler, entered, release) = held_up();
    let one = Listen { workers: 1, ..listen((Ipv4Addr::LOCALHOST, 0)) };
    let server = Server::serve(one, handler, Arc::default()).expect("a free port");
    let huge = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000000000\r\n\r\nabc";
    let mut slow = connect(server.address());
    write!(slow, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\nGET /ahead HTTP/1.1\r\nHost: a\r\n\r\n{huge}")
        .expect("it reads");
    entered.recv().expect("the worker is held up");
    let stopped = thread::spawn(move || server.stop());
    // It is cut, and the worker finds that nobody takes any more.
    assert_eq!(slow.read(&mut [0; 1]).unwrap_or(0), 0);
    drop(release);
    stopped.join().expect("the stop ends");
}
