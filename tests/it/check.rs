//! `/check`, for a proxy that asks before it forwards.

use crate::support::{Connection, Service};

fn service(limit: &str, deny: &str) -> Service {
    let settings = [("ALGORITHM", "fixed-window"), ("LIMIT", limit), ("WINDOW", "36525d"), ("DENY_STATUS", deny)];
    Service::start(&settings)
}

fn remaining(connection: &mut Connection, method: &str, target: &str) -> u64 {
    let reply = connection.request(method, target, &[]);
    assert_eq!((reply.status, reply.body.as_str()), (200, ""), "{method} {target}");
    assert_eq!(reply.header("Cache-Control"), Some("no-store"));
    reply.parameter("RateLimit", "r")
}

#[test]
fn every_method_on_check_and_on_every_path_below_it_counts_as_limited_does() {
    let service = service("100", "");
    let mut connection = service.connect();
    let methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND"];
    let targets = ["/check", "/check?x=/limited", "/check/", "/check/api/x?y", "/check//", "http://host/check/api"];
    let mut left = 100;
    for method in methods {
        for target in targets {
            left -= 1;
            assert_eq!(remaining(&mut connection, method, target), left, "{method} {target}");
        }
    }
    // One quota with /limited.
    assert_eq!(connection.get("/limited").parameter("RateLimit", "r"), left - 1);
}

#[test]
fn what_only_looks_like_check_is_not_found_and_does_not_count() {
    let service = service("2", "");
    let mut connection = service.connect();
    for target in ["/checkout", "/Check", "/%63heck", "//check", "/check%2Fx", "/x/check"] {
        assert_eq!(connection.get(target).status, 404, "{target}");
    }
    assert_eq!(remaining(&mut connection, "GET", "/check"), 1);
}

#[test]
fn a_refusal_has_the_status_that_the_proxy_understands_and_all_that_a_429_carries() {
    for (setting, status) in [("", 429), ("429", 429), ("403", 403)] {
        let service = service("1", setting);
        let mut connection = service.connect();
        remaining(&mut connection, "GET", "/check");
        let refusal = connection.request("POST", "/check/api", &[]);
        assert_eq!(refusal.status, status);
        assert!(refusal.number("Retry-After") >= 1);
        assert_eq!(refusal.parameter("RateLimit", "r"), 0);
        assert_eq!(refusal.parameter("RateLimit-Policy", "q"), 1);
        assert_eq!(refusal.header("Cache-Control"), Some("no-store"));
        assert_eq!(refusal.header("Content-Type"), Some("application/problem+json"));
        let problem: serde_json::Value = serde_json::from_str(&refusal.body).expect("JSON");
        assert_eq!(problem["status"], status, "RFC 9457: the status of the answer");
        assert_eq!(problem["violated-policies"], serde_json::json!(["default"]));

        let head = connection.request("HEAD", "/check", &[]);
        assert_eq!((head.status, head.body.as_str()), (status, ""));
        assert_eq!(connection.get("/limited").status, 429, "/limited has clients of its own");
    }
}

#[test]
fn a_body_is_neither_read_nor_taken_for_the_next_request() {
    let service = service("100", "");
    let mut connection = service.connect();
    connection.send("POST /check/upload HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(connection.read("POST").expect("an answer").status, 200);
    assert_eq!(remaining(&mut service.connect(), "GET", "/check"), 98);
}
