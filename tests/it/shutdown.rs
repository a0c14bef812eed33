//! The end of the process: in order, soon, and whatever its clients are doing.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::support::{Connection, Service};

const GET: &str = "GET /unlimited HTTP/1.1\r\nHost: a\r\n\r\n";

fn assert_ends_well(service: &mut Service, signal: &str, within: Duration) {
    let begun = Instant::now();
    service.signal(signal);
    let status = service.wait();
    assert_eq!(status.code(), Some(0), "after SIG{signal}: {status}, log: {}", service.log());
    assert!(begun.elapsed() < within, "SIG{signal} took {:?}", begun.elapsed());
}

#[test]
fn it_ends_with_idle_and_half_open_connections() {
    for (signal, round) in ["TERM", "INT"].into_iter().zip(0..).cycle().take(10) {
        let mut service = Service::start(&[("WORKERS", "8")]);
        let mut idle: Vec<Connection> = (0..4).map(|_| service.connect()).collect();
        assert_eq!(idle[0].get("/unlimited").status, 200);
        idle[1].send("GET / HT");
        idle[2].send("POST /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\nabc");
        if round == 1 {
            idle[3].send("GET / HTTP/2.0\r\n\r\n");
        }
        assert_ends_well(&mut service, signal, Duration::from_secs(3));
    }
}

#[test]
fn it_ends_while_clients_keep_asking_and_each_request_is_answered_or_its_connection_closed() {
    let mut service = Service::start(&[]);
    let (answered, answers) = std::sync::mpsc::channel();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (mut connection, answered) = (service.connect(), answered.clone());
            thread::spawn(move || {
                connection.get("/unlimited");
                answered.send(()).expect("the test waits for it");
                while connection.try_send(GET).is_ok() {
                    match connection.read("GET") {
                        Ok(reply) => assert_eq!(reply.status, 200),
                        Err(error) => {
                            let open = matches!(error.kind(), std::io::ErrorKind::WouldBlock);
                            assert!(!open, "a request was neither answered nor its connection closed");
                            break;
                        }
                    }
                }
            })
        })
        .collect();
    let mut never_reads = service.connect();
    for _ in 0..200 {
        let _ = never_reads.try_send(GET.repeat(20));
    }
    for _ in &clients {
        answers.recv().expect("an answer before the end");
    }
    assert_ends_well(&mut service, "TERM", Duration::from_secs(5));
    for client in clients {
        client.join().expect("a client that is answered or closed");
    }
}

#[test]
fn every_kind_of_address_is_free_again_after_the_end() {
    for host in ["127.0.0.1", "127.0.0.3", "0.0.0.0", "::", "::1"] {
        let mut service = Service::start(&[("HOST", host)]);
        let address = service.address();
        let reached = match host {
            "0.0.0.0" | "::" => SocketAddr::from(([127, 0, 0, 1], address.port())),
            _ => address,
        };
        let mut connection = Connection::to(reached);
        assert_eq!(connection.get("/unlimited").status, 200, "{host}");
        assert_ends_well(&mut service, "TERM", Duration::from_secs(3));
        assert!(TcpStream::connect(reached).is_err(), "{host} still listens");
        let port = address.port().to_string();
        let next = Service::start(&[("HOST", host), ("PORT", &port)]);
        assert_eq!(next.address(), address);
    }
}

#[test]
fn it_ends_when_all_descriptors_are_used_up() {
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -n 64 && exec \"$0\"", env!("CARGO_BIN_EXE_tollgate")]).env_clear().env("PORT", "0");
    let mut service = Service::spawn(limited);
    let _held: Vec<Connection> = (0..100).map(|_| service.connect()).collect();
    assert_ends_well(&mut service, "TERM", Duration::from_secs(3));
}
