//! The service over sockets: routes, methods, and what an answer carries.

use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::service::command;
use crate::support::{Reply, Service};

/// A fixed window that no test outlives.
const LONG: (&str, &str) = ("WINDOW", "36525d");

fn fixed(limit: &str) -> Service {
    Service::start(&[("ALGORITHM", "fixed-window"), ("LIMIT", limit), LONG])
}

const ALGORITHMS: [&str; 4] = ["token-bucket", "fixed-window", "sliding-window-log", "sliding-window-counter"];

#[test]
fn a_client_gets_its_quota_then_429_and_the_open_endpoint_throughout() {
    let service = fixed("3");
    let mut connection = service.connect();
    for remaining in [2, 1, 0] {
        let reply = connection.get("/limited");
        assert_eq!((reply.status, reply.number("X-RateLimit-Remaining")), (200, remaining), "{reply:?}");
        assert_eq!(reply.header("Retry-After"), None);
    }
    assert_eq!(connection.get("/limited").status, 429);
    assert_eq!(connection.get("/unlimited").status, 200);
    assert_eq!(connection.get("/healthz").status, 200);
}

#[test]
fn twenty_five_quick_requests_of_the_default_settings_are_ten_or_eleven_times_200() {
    let service = Service::start(&[]);
    let mut connection = service.connect();
    let replies: Vec<Reply> = (0..25).map(|_| connection.get("/limited")).collect();
    let allowed = replies.iter().filter(|reply| reply.status == 200).count();
    // More only if the burst itself took seconds.
    assert!((10..=13).contains(&allowed), "{allowed} of 25");
    assert_eq!(replies[24].status, 429);
    thread::sleep(Duration::from_secs(replies[24].number("Retry-After")));
    assert_eq!(connection.get("/limited").status, 200);
}

#[test]
fn after_the_told_wait_every_algorithm_lets_in_again() {
    for algorithm in ALGORITHMS {
        let service =
            Service::start(&[("ALGORITHM", algorithm), ("CAPACITY", "1"), ("LIMIT", "1"), ("WINDOW", "500ms")]);
        let mut connection = service.connect();
        let refusal = loop {
            let reply = connection.get("/limited");
            if reply.status == 429 {
                break reply;
            }
        };
        let wait: u64 = problem(&refusal)["retry_after_ms"].as_u64().expect("a number");
        assert!((1..=1_000).contains(&wait), "{wait}");
        assert_eq!(refusal.number("Retry-After"), 1);
        thread::sleep(Duration::from_millis(wait));
        assert_eq!(connection.get("/limited").status, 200, "{algorithm}");
    }
}

fn problem(reply: &Reply) -> serde_json::Value {
    serde_json::from_str(&reply.body).unwrap_or_else(|error| panic!("{error}: {reply:?}"))
}

#[test]
fn a_refusal_carries_its_wait_its_policy_and_the_problem() {
    let service = Service::start(&[("ALGORITHM", "fixed-window"), ("LIMIT", "1"), ("WINDOW", "1d")]);
    service.get("/limited");
    let refusal = service.get("/limited");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let wait = refusal.number("Retry-After");
    assert!((1..=86_400).contains(&wait));
    assert_eq!(refusal.status, 429);
    assert_eq!(refusal.header("RateLimit-Policy"), Some("\"default\";q=1;w=86400"));
    assert_eq!(refusal.header("RateLimit"), Some(&*format!("\"default\";r=0;t={wait}")));
    assert_eq!((refusal.number("X-RateLimit-Limit"), refusal.number("X-RateLimit-Remaining")), (1, 0));
    assert!((now + wait - 2..=now + wait + 2).contains(&refusal.number("X-RateLimit-Reset")));
    assert_eq!(refusal.header("Content-Type"), Some("application/problem+json"));
    assert_eq!(refusal.header("Cache-Control"), Some("no-store"));
    let problem = problem(&refusal);
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["title"], "Quota Exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["default"]));
    assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
    assert_eq!(problem["retry_after_ms"].as_u64().expect("a number").div_ceil(1_000), wait);
}

#[test]
fn the_policy_field_rounds_windows_up_to_seconds() {
    let fixed = |window| [("ALGORITHM", "fixed-window"), ("WINDOW", window)];
    for (settings, expected) in [
        (fixed("2000ms"), "q=10;w=2"),
        (fixed("1500ms"), "q=10;w=2"),
        (fixed("100ms"), "q=10;w=1"),
        (fixed("1ms"), "q=10;w=1"),
        (fixed("90"), "q=10;w=90"),
        (fixed("2h"), "q=10;w=7200"),
        (fixed("2d"), "q=10;w=172800"),
        ([("CAPACITY", "5"), ("REFILL_RATE", "2")], "q=5;w=3"),
        ([("CAPACITY", "100"), ("REFILL_RATE", "100/1m")], "q=100;w=60"),
        ([("CAPACITY", "1"), ("REFILL_RATE", "1/1d")], "q=1;w=86400"),
        ([("ALGORITHM", "fixed-window"), ("LIMIT", "5000000000")], "q=5000000000;w=60"),
    ] {
        let reply = Service::start(&settings).get("/limited");
        assert_eq!(reply.header("RateLimit-Policy"), Some(&*format!("\"default\";{expected}")), "{settings:?}");
    }
}

#[test]
fn each_family_of_headers_is_sent_when_it_is_asked_for() {
    for (families, ietf, legacy) in
        [("ietf,legacy", true, true), ("ietf", true, false), ("legacy", false, true), ("none", false, false)]
    {
        let service = Service::start(&[("RATE_LIMIT_HEADERS", families), ("CAPACITY", "1"), ("REFILL_RATE", "1/1d")]);
        for status in [200, 429] {
            let reply = service.get("/limited");
            assert_eq!(reply.status, status);
            for name in ["RateLimit", "RateLimit-Policy"] {
                assert_eq!(reply.header(name).is_some(), ietf, "{families}: {name}");
            }
            for name in ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"] {
                assert_eq!(reply.header(name).is_some(), legacy, "{families}: {name}");
            }
        }
    }
}

#[test]
fn no_answer_carries_a_field_twice_or_a_number_below_zero() {
    let service = fixed("1");
    for (method, path) in
        [("GET", "/limited"), ("GET", "/limited"), ("GET", "/nowhere"), ("PUT", "/limited"), ("GET", "/healthz")]
    {
        let reply = service.connect().request(method, path, &[]);
        for (name, value) in &reply.headers {
            reply.header(name);
            assert!(!value.starts_with('-'), "{name}: {value}");
        }
    }
}

#[test]
fn head_counts_like_get_and_other_methods_do_not_count() {
    let service = fixed("2");
    let mut connection = service.connect();
    let head = connection.request("HEAD", "/limited", &[]);
    assert_eq!((head.status, head.number("X-RateLimit-Remaining")), (200, 1));
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO"] {
        let reply = connection.request(method, "/limited", &[("Content-Length", "0")]);
        assert_eq!((reply.status, reply.header("Allow")), (405, Some("GET, HEAD")), "{method}");
    }
    let get = connection.get("/limited");
    assert_eq!((get.status, get.number("X-RateLimit-Remaining")), (200, 0));
    let head = connection.request("HEAD", "/limited", &[]);
    assert_eq!((head.status, head.number("X-RateLimit-Remaining")), (429, 0));
    assert!(head.number("Retry-After") > 0);
    let preflight = [("Origin", "http://example.com"), ("Access-Control-Request-Method", "GET")];
    assert_eq!(connection.request("OPTIONS", "/limited", &preflight).status, 405);
    assert_eq!(connection.get("/unlimited").status, 200);
}

#[test]
fn no_spelling_of_the_path_slips_past_the_limit() {
    let service = fixed("1");
    let mut connection = service.connect();
    assert_eq!(connection.get("http://x/limited").status, 200);
    for target in ["/limited", "/limited?x=1", "http://x/limited", "HTTP://x:1/limited?y"] {
        assert_eq!(connection.get(target).status, 429, "{target}");
    }
    for target in ["/limited/", "/LIMITED", "//limited", "/%6cimited", "/./limited", "/healthz/", "/", "/%ff", "/%00"] {
        assert_eq!(connection.get(target).status, 404, "{target}");
    }
    for target in ["/healthz?x", "http://x/healthz", "/unlimited?y"] {
        assert_eq!(connection.get(target).status, 200, "{target}");
    }
    for target in ["foo", "*", "ftp://x/limited"] {
        assert_eq!(connection.get(target).status, 400, "{target}");
    }
    assert_eq!(connection.get(&format!("/{}", "a".repeat(8_192))).status, 404);
}

#[test]
fn twenty_pipelined_requests_are_answered_in_order() {
    let service = fixed("100");
    let mut connection = service.connect();
    connection.send("GET /limited HTTP/1.1\r\nHost: x\r\n\r\n".repeat(20));
    for remaining in (80..100).rev() {
        let reply = connection.read("GET").expect("an answer");
        assert_eq!((reply.status, reply.number("X-RateLimit-Remaining")), (200, remaining));
    }
}

#[test]
fn several_policies_are_told_in_order_and_refuse_together() {
    let policies = "burst=fixed-window:2/36525d;daily=sliding-window-log:3/36525d";
    let service = Service::start(&[("POLICIES", policies)]);
    let mut connection = service.connect();
    let reply = connection.get("/limited");
    let seconds = 36_525u64 * 86_400;
    let expected = format!("\"burst\";q=2;w={seconds}, \"daily\";q=3;w={seconds}");
    assert_eq!(reply.header("RateLimit-Policy"), Some(&*expected));
    assert!(reply.header("RateLimit").is_some_and(|field| field.starts_with("\"burst\";r=1;t=")));
    assert!(reply.header("RateLimit").is_some_and(|field| field.contains(", \"daily\";r=2;t=")));
    // A half is left of one, two thirds of the other.
    assert_eq!((reply.number("X-RateLimit-Limit"), reply.number("X-RateLimit-Remaining")), (2, 1));
    assert_eq!(connection.get("/limited").status, 200);
    for _ in 0..3 {
        let refusal = connection.get("/limited");
        assert_eq!(refusal.status, 429);
        assert_eq!(problem(&refusal)["violated-policies"], serde_json::json!(["burst"]));
        // Refusals spent nothing in the policy that would have let them in.
        assert!(refusal.header("RateLimit").is_some_and(|field| field.contains("\"daily\";r=1;t=")));
    }
}

#[test]
fn ipv6_is_listened_on_and_told() {
    let service = Service::start(&[("HOST", "::1")]);
    assert!(service.address().is_ipv6());
    assert_eq!(service.get("/limited").status, 200);
}

#[test]
fn a_bad_setting_stops_the_program_before_it_listens() {
    for (settings, named) in [
        (&[("LIMIT", "abc")][..], "LIMIT"),
        (&[("CAPACITY", "-1")], "CAPACITY"),
        (&[("LIMIT", "0"), ("ALGORITHM", "fixed-window")], "LIMIT"),
        (&[("REFILL_RATE", "NaN")], "REFILL_RATE"),
        (&[("REFILL_RATE", "inf")], "REFILL_RATE"),
        (&[("REFILL_RATE", "1e400")], "REFILL_RATE"),
        (&[("WINDOW", "soon")], "WINDOW"),
        (&[("WINDOW", "18446744073709551615ms"), ("ALGORITHM", "fixed-window")], "WINDOW"),
        (&[("PORT", "x")], "PORT"),
    ] {
        let output = command(settings).output().expect("the program runs");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{settings:?}: {told}");
        assert!(output.stdout.is_empty());
        assert!(told.contains(named) && told.contains(settings[0].1) && told.lines().count() == 1, "{told}");
    }
    for flags in [&["--unknown"][..], &["--limit", "x"], &["surprise"]] {
        let output = command(&[]).args(flags).output().expect("the program runs");
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

#[test]
fn help_and_version_work_whatever_is_set() {
    for (flag, told) in [("--help", "REFILL_RATE"), ("--version", env!("CARGO_PKG_VERSION"))] {
        let output = command(&[("LIMIT", "broken")]).arg(flag).output().expect("the program runs");
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains(told));
    }
}

#[test]
fn an_address_that_cannot_be_had_is_told_with_status_1() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    for settings in [[("HOST", "127.0.0.1"), ("PORT", &*port)], [("HOST", "192.0.2.1"), ("PORT", "0")]] {
        let output = command(&settings).output().expect("the program runs");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(settings[0].1) && output.stdout.is_empty(), "{told}");
    }
}

#[test]
fn a_signal_stops_the_service_with_status_0_also_with_idle_connections_and_frees_the_port() {
    for signal in ["TERM", "INT"] {
        let mut service = Service::start(&[("WORKERS", "8")]);
        let mut idle = service.connect();
        assert_eq!(idle.get("/unlimited").status, 200);
        let address = service.address();
        service.signal(signal);
        assert_eq!(service.wait().code(), Some(0), "{signal}");
        TcpListener::bind(address).expect("the port is free at once");
    }
}

#[test]
fn sixty_four_connections_that_come_at_once_and_stay_are_all_served() {
    let service = Service::start(&[]);
    let mut connections: Vec<_> = (0..64).map(|_| service.connect().patience(Duration::from_secs(5))).collect();
    for connection in &mut connections {
        connection.send("GET /unlimited HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    for (number, connection) in connections.iter_mut().enumerate() {
        let reply = connection.read("GET").unwrap_or_else(|error| panic!("connection {number}: {error}"));
        assert_eq!(reply.status, 200);
    }
    for connection in &mut connections {
        assert_eq!(connection.get("/unlimited").status, 200);
    }
}

#[test]
fn windows_do_not_follow_the_local_calendar() {
    let mut command: Command = command(&[("ALGORITHM", "fixed-window"), ("WINDOW", "1d"), ("LIMIT", "1")]);
    command.env("TZ", "Pacific/Kiritimati");
    let service = Service::spawn(command);
    let reply = service.get("/limited");
    assert_eq!(reply.number("X-RateLimit-Reset") % 86_400, 0);
}

#[test]
fn a_guard_limits_a_server_that_is_not_ours() {
    let server = tiny_http::Server::http("127.0.0.1:0").expect("a free port");
    let address = server.server_addr().to_ip().expect("TCP");
    let policy = tollgate::Policy::fixed_window(2, Duration::from_secs(86_400 * 36_525)).expect("a valid policy");
    let guard = tollgate::Guard::new(tollgate::RateLimiter::new(policy));
    let serving = thread::spawn(move || {
        for _ in 0..3 {
            let request = server.recv().expect("a request");
            if let Some(request) = guard.admit(request).expect("an answer") {
                request.respond(tiny_http::Response::from_string("hello")).expect("an answer");
            }
        }
    });
    let mut connection = crate::support::Connection::to(address);
    assert_eq!((connection.get("/a").body.as_str(), connection.get("/b").status), ("hello", 200));
    let refusal = connection.get("/c");
    assert_eq!((refusal.status, refusal.number("X-RateLimit-Remaining")), (429, 0));
    assert!(refusal.number("Retry-After") > 0 && refusal.header("RateLimit").is_some());
    serving.join().expect("no panic");
}
