//! Shared mode over HTTP: two instances of the program on one store.

use super::Server;
use crate::support::redis::eventually;
use crate::support::{Reply, Service};

/// An instance with a limit of five in a window that no test outlives, and a timeout that a busy machine does not reach.
fn instance(server: &Server, algorithm: &str, on_store_error: &str) -> Service {
    Service::start(&[
        ("REDIS_URL", server.url()),
        ("REDIS_TIMEOUT", "5s"),
        ("ON_STORE_ERROR", on_store_error),
        ("ALGORITHM", algorithm),
        ("CAPACITY", "5"),
        ("REFILL_RATE", "5/365d"),
        ("LIMIT", "5"),
        ("WINDOW", "365d"),
    ])
}

fn down(service: &Service, mode: &str) {
    eventually("the instance notices", || {
        service.get("/limited");
        service.get("/healthz").body.contains(&format!("\"down: {mode}\""))
    });
}

#[test]
fn what_one_instance_counted_the_other_knows() {
    for algorithm in ["token-bucket", "fixed-window", "sliding-window-log", "sliding-window-counter"] {
        let server = Server::start();
        let (one, two) = (instance(&server, algorithm, "local"), instance(&server, algorithm, "local"));
        for (turn, service) in [&one, &two, &one, &two, &one].into_iter().enumerate() {
            let reply = service.get("/limited");
            assert_eq!((reply.status, reply.number("X-RateLimit-Remaining")), (200, 4 - turn as u64), "{algorithm}");
        }
        for service in [&one, &two] {
            let refusal = service.get("/limited");
            assert_eq!((refusal.status, refusal.parameter("RateLimit", "r")), (429, 0), "{algorithm}");
            assert!(refusal.number("Retry-After") > 0);
            assert!(service.get("/healthz").body.contains("\"store\":\"up\""));
        }
    }
}

#[test]
fn while_the_store_is_down_an_instance_answers_as_it_was_told() {
    let unknown = |reply: &Reply| {
        assert!(reply.header("RateLimit-Policy").is_some());
        for name in ["RateLimit", "X-RateLimit-Remaining", "X-RateLimit-Reset"] {
            assert_eq!(reply.header(name), None, "{name} is told though only the store knows it");
        }
    };
    for mode in ["local", "open", "closed"] {
        let mut server = Server::start();
        let service = instance(&server, "fixed-window", mode);
        assert_eq!(service.get("/limited").number("X-RateLimit-Remaining"), 4);
        server.kill();
        down(&service, mode);
        assert_eq!(service.get("/healthz").status, 200);
        let reply = service.get("/limited");
        match mode {
            "local" => assert!(reply.header("RateLimit").is_some()),
            "open" => {
                assert_eq!(reply.status, 200);
                unknown(&reply);
            }
            _ => {
                assert_eq!((reply.status, reply.number("Retry-After")), (503, 1));
                assert!(reply.body.contains("temporary-reduced-capacity") && reply.body.contains("\"status\":503"));
                assert_eq!(reply.header("Cache-Control"), Some("no-store"));
                unknown(&reply);
            }
        }
        server.restart();
        eventually("the store is used again", || service.get("/healthz").body.contains("\"store\":\"up\""));
    }
}
