//! Too much of it: floods, slow clients, clients that never read, connections without number. Others are served meanwhile.

use std::fs;
use std::io;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::support::{Connection, Service, service};

const GET: &str = "GET /unlimited HTTP/1.1\r\nHost: a\r\n\r\n";

/// What the process has, as the system tells.
#[derive(Clone, Copy, Debug)]
struct Held {
    megabytes: u64,
    threads: u64,
    descriptors: usize,
}

fn held(service: &Service) -> Held {
    let status = fs::read_to_string(format!("/proc/{}/status", service.pid())).expect("the process lives");
    let number = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of the status");
        line.trim_start_matches(':').split_whitespace().next().expect("a value").parse().expect("a number")
    };
    let descriptors = fs::read_dir(format!("/proc/{}/fd", service.pid())).expect("the process lives").count();
    Held { megabytes: number("VmRSS") / 1024, threads: number("Threads"), descriptors }
}

/// The longest that a good client waits for an answer, asking again and again until `ended`, and the most memory seen.
fn serve_meanwhile(service: &Service, mut ended: impl FnMut() -> bool) -> (Duration, u64) {
    let (mut longest, mut megabytes) = (Duration::ZERO, 0);
    while !ended() {
        let begun = Instant::now();
        assert_eq!(service.get("/unlimited").status, 200);
        longest = longest.max(begun.elapsed());
        megabytes = megabytes.max(held(service).megabytes);
    }
    (longest, megabytes)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(12), "in vain: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sends bytes over and over, up to so many megabytes, until it is cut: the system tells that by an error, or takes no more.
/// Gives what could be sent.
fn flood(service: &Service, begin: &str, block: &str, megabytes: usize) -> usize {
    let mut connection = service.connect().patience(Duration::from_secs(3));
    let block = block.repeat(64 * 1024 / block.len());
    let mut sent = begin.len();
    if connection.try_send(begin).is_ok() {
        while sent < megabytes << 20 && connection.try_send(&block).is_ok() {
            sent += block.len();
        }
    }
    sent
}

#[test]
fn a_flood_of_requests_that_nobody_reads_is_cut_and_holds_up_nobody() {
    for workers in ["1", "4"] {
        let service = Service::start(&[("WORKERS", workers)]);
        let before = held(&service);
        let mut connection = service.connect();
        let flood = thread::spawn(move || {
            let _ = connection.try_send(GET.repeat(50_000));
            connection
        });
        let (longest, megabytes) = serve_meanwhile(&service, || flood.is_finished());
        assert!(longest < Duration::from_secs(1), "a good client waited {longest:?} with {workers} workers");
        assert!(megabytes < before.megabytes + 50, "{before:?}, then {megabytes} MB");
        let mut connection = flood.join().expect("the flood ends").patience(Duration::from_secs(5));
        assert!(connection.is_closed(), "the flooding connection is still open");
    }
}

#[test]
fn clients_that_never_read_hold_up_nobody() {
    let service = Service::start(&[("WORKERS", "2")]);
    let clients: Vec<_> = (0..6)
        .map(|_| {
            let mut connection = service.connect();
            thread::spawn(move || {
                // Fewer at a time than would be a flood, until the answers fill every buffer and the connection is cut.
                let begun = Instant::now();
                while connection.try_send(GET.repeat(20)).is_ok() && begun.elapsed() < Duration::from_secs(8) {
                    thread::sleep(Duration::from_millis(1));
                }
                begun.elapsed()
            })
        })
        .collect();
    let (longest, _) = serve_meanwhile(&service, || clients.iter().all(thread::JoinHandle::is_finished));
    assert!(longest < Duration::from_secs(1), "a good client waited {longest:?}");
}

#[test]
fn a_head_without_end_is_cut_before_it_fills_the_memory() {
    let service = Service::start(&[]);
    let before = held(&service).megabytes;
    for (begin, block) in [
        ("GET /unlimited HTTP/1.1\r\nX: ", "a"),
        ("GET /", "a"),
        ("GET /unlimited HTTP/1.1\r\n", "X-Line: of a head without end\r\n"),
    ] {
        let (sent, longest, megabytes) = thread::scope(|scope| {
            let flood = scope.spawn(|| flood(&service, begin, block, 100));
            let (longest, megabytes) = serve_meanwhile(&service, || flood.is_finished());
            (flood.join().expect("the flood ends"), longest, megabytes)
        });
        assert!(sent < 100 << 20, "{begin:?} was taken whole");
        assert!(longest < Duration::from_secs(1), "a good client waited {longest:?} for {begin:?}");
        assert!(megabytes < before + 50, "{before} MB, then {megabytes} MB for {begin:?}");
    }
}

#[test]
fn bodies_that_nobody_reads_hold_no_memory_and_no_worker() {
    let service = Service::start(&[("WORKERS", "2")]);
    let before = held(&service);
    for length in ["5000", "1000000000", "100000000000000", "18446744073709551615"] {
        let mut connections: Vec<Connection> = (0..20)
            .map(|_| {
                let mut connection = service.connect();
                connection.send(format!("POST /limited HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\nabc"));
                connection
            })
            .collect();
        let begun = Instant::now();
        assert_eq!(service.get("/healthz").status, 200);
        assert!(begun.elapsed() < Duration::from_secs(1), "/healthz took {:?} with {length}", begun.elapsed());
        for connection in &mut connections {
            assert_eq!(connection.read("POST").expect("an answer").status, 405);
            assert!(connection.is_closed(), "still open after {length}");
        }
    }
    let after = held(&service);
    assert!(after.megabytes < before.megabytes + 20, "{before:?}, then {after:?}");
}

#[test]
fn half_requests_hold_up_nobody_and_are_closed_in_time() {
    let service = Service::start(&[("IDLE_TIMEOUT", "2s")]);
    let before = held(&service);
    let connections: Vec<Connection> = (0..400)
        .map(|number| {
            let mut connection = service.connect();
            connection.send(if number < 20 { "GET / HTTP/2.0\r\n\r\n" } else { "GET / HT" });
            connection
        })
        .collect();
    let begun = Instant::now();
    assert_eq!(service.get("/unlimited").status, 200);
    assert!(begun.elapsed() < Duration::from_secs(1), "a good client waited {:?}", begun.elapsed());
    for mut connection in connections {
        assert!(connection.is_closed(), "a silent connection is still open");
    }
    assert!(begun.elapsed() < Duration::from_secs(6), "closing took {:?}", begun.elapsed());
    // The crate's threads hang on HTTP/2.0 for good; those of the others end when they have been idle for five seconds.
    until("threads and descriptors come back", || {
        let now = held(&service);
        now.threads <= before.threads + 25 && now.descriptors <= before.descriptors + 45
    });
}

#[test]
fn a_head_that_drips_in_is_closed_after_the_idle_timeout() {
    let service = Service::start(&[("IDLE_TIMEOUT", "1s")]);
    let mut connection = service.connect();
    connection.send("GET /unlimited HTTP/1.1\r\nX: ");
    let begun = Instant::now();
    while connection.try_send("a").is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(5), "a dripping head is still listened to");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn connections_that_are_reset_at_once_leave_nothing_behind() {
    let service = Service::start(&[]);
    let before = held(&service);
    for _ in 0..3_000 {
        let connection = service.connect();
        connection.reset(GET);
    }
    let begun = Instant::now();
    assert_eq!(service.get("/unlimited").status, 200);
    assert!(begun.elapsed() < Duration::from_secs(2), "a good client waited {:?}", begun.elapsed());
    until("threads and descriptors come back", || {
        let now = held(&service);
        now.threads <= before.threads + 4 && now.descriptors <= before.descriptors + 8
    });
    let lines = service.log().lines().count();
    assert!(lines < 20, "{lines} lines of log");
}

#[test]
fn a_burst_of_connections_that_stay_open_is_answered() {
    let service = Service::start(&[]);
    let mut connections: Vec<Connection> = (0..64).map(|_| service.connect()).collect();
    let begun = Instant::now();
    for connection in &mut connections {
        connection.send(GET);
    }
    for connection in &mut connections {
        assert_eq!(connection.read("GET").expect("an answer").status, 200);
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "the burst took {:?}", begun.elapsed());
}

#[test]
fn a_burst_of_silent_connections_closes_nobody_who_asks_meanwhile() {
    let service = Service::start(&[]);
    for _ in 0..3 {
        let silent = thread::scope(|scope| {
            let silent = scope.spawn(|| (0..500).map(|_| service.connect()).collect::<Vec<Connection>>());
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..16 {
                        // Each meets another part of the burst.
                        assert_eq!(service.connect().get("/unlimited").status, 200);
                    }
                });
            }
            silent.join().expect("all of them connect")
        });
        drop(silent);
    }
}

/// A service that may open few files, and so holds few connections.
fn with_open_files(files: usize, settings: &[(&str, &str)]) -> Service {
    let mut limited = Command::new("sh");
    let plain = service::command(settings);
    limited.args(["-c", &format!("ulimit -n {files} && exec \"$0\"")]).arg(plain.get_program());
    limited.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Service::spawn(limited)
}

#[test]
fn a_shortage_of_descriptors_is_survived() {
    let service = with_open_files(64, &[]);
    for round in 0..3 {
        let mut connections: Vec<Connection> = (0..100).map(|_| service.connect()).collect();
        for connection in &mut connections {
            let _ = connection.try_send(GET);
        }
        // Those that came last have their turn when others have been closed to make room.
        let ends: Vec<_> = connections.iter_mut().map(|connection| connection.read("GET")).collect();
        let hung = |end: &&io::Result<_>| end.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        assert_eq!(ends.iter().filter(hung).count(), 0, "neither answered nor closed in round {round}");
        drop(connections);
        let begun = Instant::now();
        let mut answered: io::Result<u16> = Err(io::ErrorKind::NotConnected.into());
        while answered.is_err() && begun.elapsed() < Duration::from_secs(2) {
            let mut connection = service.connect().patience(Duration::from_secs(2));
            answered = connection.try_send(GET).and_then(|()| connection.read("GET")).map(|reply| reply.status);
        }
        assert_eq!(answered.ok(), Some(200), "deaf after {:?} in round {round}", begun.elapsed());
    }
    // Once the most that are held are closed again, every client is served.
    for _ in 0..20 {
        assert_eq!(service.get("/unlimited").status, 200);
    }
    let lines = service.log().lines().count();
    assert!(lines < 10, "{lines} lines of log");
}

const BEYOND_MEMORY: &str = "GET /unlimited HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000000000\r\n\r\n";

#[test]
fn a_service_that_loses_half_of_its_connections_for_good_ends_and_says_why() {
    let mut service = with_open_files(64, &[]);
    for _ in 0..8 {
        let mut connection = service.connect();
        connection.send(BEYOND_MEMORY);
        assert_eq!(connection.read("GET").expect("an answer").status, 200);
        assert_eq!(service.get("/unlimited").status, 200);
    }
    assert_eq!(service.wait().code(), Some(1));
    let log = service.log_with("reverse proxy");
    assert!(log.contains("a request declared a body of 100000000000000 bytes"), "{log}");
    assert!(log.contains("half of all connections hang for good"), "{log}");
}

#[test]
fn a_service_does_not_stay_deaf_while_a_client_holds_more_hung_connections_than_it_can() {
    let attacked = ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BEYOND_MEMORY].map(|request| {
        let service = with_open_files(64, &[("IDLE_TIMEOUT", "1s")]);
        let mut held: Vec<Connection> = (0..40).map(|_| service.connect()).collect();
        for connection in &mut held {
            let _ = connection.try_send(request);
        }
        (service, held, request)
    });
    for (mut service, _held, request) in attacked {
        assert_eq!(service.wait().code(), Some(1), "{request:?}");
        assert!(service.log_with("half of all").contains("half of all connections hang for good"), "{request:?}");
    }
}

#[test]
fn connections_that_hang_while_their_clients_hold_them_leave_the_others_their_place() {
    let service = with_open_files(64, &[("IDLE_TIMEOUT", "1s")]);
    let mut held: Vec<Connection> = (0..7).map(|_| service.connect()).collect();
    for connection in &mut held {
        connection.send("GET / HTTP/2.0\r\n\r\n");
    }
    until("they are known for lost", || service.get("/metrics").body.contains("\ntollgate_connections_lost 7\n"));
    // Sixteen are held in all.
    let mut others: Vec<Connection> = (0..8).map(|_| service.connect()).collect();
    for _ in 0..3 {
        for connection in &mut others {
            assert_eq!(connection.get("/unlimited").status, 200);
        }
    }
}
