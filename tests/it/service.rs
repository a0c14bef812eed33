//! The service over sockets: routes, methods, and what an answer carries.

use crate::support::Service;

#[test]
fn a_client_gets_its_quota_then_429_and_the_open_endpoint_throughout() {
    let service = Service::start(&[("ALGORITHM", "fixed-window"), ("LIMIT", "3"), ("WINDOW", "1d")]);
    let mut connection = service.connect();
    for remaining in [2, 1, 0] {
        let reply = connection.get("/limited");
        assert_eq!((reply.status, reply.number("X-RateLimit-Remaining")), (200, remaining), "{reply:?}");
    }
    let refusal = connection.get("/limited");
    assert_eq!(refusal.status, 429);
    assert_eq!(connection.get("/unlimited").status, 200);
    assert_eq!(connection.get("/healthz").status, 200);
}
