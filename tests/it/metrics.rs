//! `/metrics`: what is counted, in the text exposition of Prometheus.

use std::collections::{BTreeMap, HashSet};

use super::support::redis::{Server, eventually};
use super::support::{Reply, Service};

/// Every sample by its name and labels as written. Panics on what the format (version 0.0.4) does not allow.
fn samples(reply: &Reply) -> BTreeMap<String, f64> {
    assert_eq!((reply.status, reply.header("Content-Type")), (200, Some("text/plain; version=0.0.4")));
    assert!(reply.body.ends_with('\n'), "the last line has no end");
    let mut samples = BTreeMap::new();
    let mut families: HashSet<&str> = HashSet::new();
    let mut family = ("", "");
    for line in reply.body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect("a name and a text");
            assert!(families.insert(name), "{name} comes twice");
            assert!(!help.is_empty());
            family = (name, "");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a name and a type");
            assert_eq!(name, family.0, "the type of another family");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            family.1 = kind;
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            let bare = name.split('{').next().expect("a name");
            let suffix = bare.strip_prefix(family.0).unwrap_or_else(|| panic!("{line} in {family:?}"));
            let allowed: &[&str] = if family.1 == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(allowed.contains(&suffix), "{line} in {family:?}");
            assert_eq!(family.1 == "counter", bare.ends_with("_total"), "{line}");
            let known = samples.insert(name.to_owned(), value.parse().expect("a number"));
            assert!(known.is_none(), "{name} comes twice");
        }
    }
    samples
}

#[test]
fn requests_are_counted_by_route_and_status_and_decisions_by_policy() {
    let service = Service::start(&[
        ("POLICIES", "burst=token-bucket:2:1/1d;daily=fixed-window:100/1d"),
        ("TRUSTED_PROXIES", "127.0.0.1"),
        ("API_KEY_HEADER", "X-Key"),
    ]);
    let mut connection = service.connect();
    for headers in [&[("X-Forwarded-For", "203.0.113.7")][..], &[("X-Key", "k")], &[], &[], &[]] {
        connection.request("GET", "/limited", headers);
    }
    for (method, path) in [("HEAD", "/check/x"), ("POST", "/limited"), ("GET", "/unlimited?x"), ("GET", "/nowhere")] {
        connection.send(format!("{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        connection.read(method).expect("an answer");
    }
    let mut bad = service.connect();
    bad.send("GET /limited HTTP/1.1\r\nHost: a\r\nContent-Length: abc\r\n\r\n");
    assert_eq!(bad.read("GET").expect("an answer").status, 400);

    let found = samples(&connection.get("/metrics"));
    for (sample, expected) in [
        (r#"tollgate_requests_total{route="limited",status="200"}"#, 4.0),
        (r#"tollgate_requests_total{route="limited",status="429"}"#, 1.0),
        (r#"tollgate_requests_total{route="limited",status="405"}"#, 1.0),
        (r#"tollgate_requests_total{route="check",status="429"}"#, 1.0),
        (r#"tollgate_requests_total{route="unlimited",status="200"}"#, 1.0),
        (r#"tollgate_requests_total{route="none",status="404"}"#, 1.0),
        (r#"tollgate_requests_total{route="none",status="400"}"#, 1.0),
        (r#"tollgate_requests_total{route="metrics",status="200"}"#, 0.0),
        (r#"tollgate_decisions_total{policy="burst",outcome="allowed"}"#, 4.0),
        (r#"tollgate_decisions_total{policy="burst",outcome="refused"}"#, 2.0),
        (r#"tollgate_decisions_total{policy="daily",outcome="allowed"}"#, 6.0),
        (r#"tollgate_decisions_total{policy="daily",outcome="refused"}"#, 0.0),
        (r#"tollgate_identified_total{by="header"}"#, 1.0),
        (r#"tollgate_identified_total{by="api_key"}"#, 1.0),
        (r#"tollgate_identified_total{by="fallback"}"#, 4.0),
        (r#"tollgate_identified_total{by="peer"}"#, 0.0),
        (r#"tollgate_decision_seconds_bucket{le="+Inf"}"#, 6.0),
        (r#"tollgate_decision_seconds_bucket{le="1"}"#, 6.0),
        ("tollgate_decision_seconds_count", 6.0),
        ("tollgate_clients", 3.0),
        ("tollgate_requests_bad_total", 1.0),
        (r#"tollgate_store_mode{mode="memory"}"#, 1.0),
    ] {
        assert_eq!(found.get(sample), Some(&expected), "{sample} in {found:#?}");
    }
    assert!(!found.contains_key("tollgate_store_up"), "there is no store");
    assert_eq!(samples(&connection.get("/metrics"))[r#"tollgate_requests_total{route="metrics",status="200"}"#], 1.0);
    let text = connection.get("/metrics").body;
    for secret in ["203.0.113", "127.0.0.1", "nowhere", "\"k\""] {
        assert!(!text.contains(secret), "{secret} is in the metrics");
    }
}

#[test]
fn the_store_is_told_with_its_mode_and_what_it_was_asked() {
    for mode in ["local", "open", "closed"] {
        let mut server = Server::start();
        let service = Service::start(&[
            ("REDIS_URL", server.url()),
            ("REDIS_TIMEOUT", "5s"),
            ("ON_STORE_ERROR", mode),
            ("ALGORITHM", "fixed-window"),
            ("LIMIT", "1"),
            ("WINDOW", "365d"),
        ]);
        for _ in 0..3 {
            service.get("/limited");
        }
        let found = samples(&service.get("/metrics"));
        for (sample, expected) in [
            ("tollgate_store_up", 1.0),
            (r#"tollgate_store_mode{mode="shared"}"#, 1.0),
            (r#"tollgate_store_calls_total{result="answered"}"#, 2.0),
            (r#"tollgate_store_calls_total{result="failed"}"#, 0.0),
            ("tollgate_store_repeated_total", 1.0),
            ("tollgate_store_seconds_count", 2.0),
            (r#"tollgate_decisions_total{policy="default",outcome="refused"}"#, 2.0),
        ] {
            assert_eq!(found.get(sample), Some(&expected), "{sample} in {found:#?}");
        }
        server.kill();
        eventually("the outage is told", || {
            service.get("/limited");
            let found = samples(&service.get("/metrics"));
            found["tollgate_store_up"] == 0.0 && found[&format!("tollgate_store_mode{{mode=\"{mode}\"}}")] == 1.0
        });
        // Whoever noticed the outage, this request meets it.
        service.get("/limited");
        let found = samples(&service.get("/metrics"));
        let outcome =
            |outcome: &str| found[&format!(r#"tollgate_decisions_total{{policy="default",outcome="{outcome}"}}"#)];
        assert_eq!(outcome("unasked") > 0.0, mode == "open", "{found:#?}");
        assert_eq!(outcome("unavailable") > 0.0, mode == "closed", "{found:#?}");
    }
}
