//! Who is counted, through the service: proxies that are trusted and peers that are not, API keys, groups of IPv6.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use crate::support::service::command;
use crate::support::{Connection, Service};

/// More than any test asks for, in a window that no test outlives: what remains tells how often a client was counted.
const LIMIT: u64 = 1_000;

fn service(settings: &[(&str, &str)]) -> Service {
    let limit = [("ALGORITHM", "fixed-window"), ("LIMIT", "1000"), ("WINDOW", "36525d")];
    Service::start(&[settings, &limit].concat())
}

/// How often the client of this request has been counted, this time included.
fn counted(connection: &mut Connection, headers: &[(&str, &str)]) -> u64 {
    LIMIT - connection.request("GET", "/limited", headers).number("X-RateLimit-Remaining")
}

/// Each group is one client, and no two groups are the same.
fn clients(service: &Service, header: &str, groups: &[&[&str]]) {
    let mut connection = service.connect();
    for group in groups {
        for (times, value) in (1..).zip(*group) {
            assert_eq!(counted(&mut connection, &[(header, value)]), times, "{value:?} in {group:?}");
        }
    }
}

#[test]
fn without_trusted_proxies_no_header_makes_a_new_client() {
    for settings in [vec![], vec![("TRUSTED_PROXIES", "192.0.2.1")]] {
        let service = service(&settings);
        let mut connection = service.connect();
        for request in 1..=20 {
            let (address, element) = (format!("9.9.9.{request}"), format!("for=9.9.9.{request}"));
            let headers = [
                ("X-Forwarded-For", address.as_str()),
                ("X-Real-IP", &address),
                ("CF-Connecting-IP", &address),
                ("Forwarded", &element),
            ];
            assert_eq!(counted(&mut connection, &headers), request);
        }
    }
}

#[test]
fn a_forwarding_header_from_a_peer_that_is_not_trusted_is_told_once_with_the_setting_that_helps() {
    let service = service(&[]);
    let mut connection = service.connect();
    for _ in 0..5 {
        counted(&mut connection, &[("X-Forwarded-For", "203.0.113.7")]);
    }
    let log = service.log_with("set TRUSTED_PROXIES=127.0.0.1 (said once)");
    assert_eq!(log.matches("peer 127.0.0.1 sent X-Forwarded-For").count(), 1, "{log}");
}

#[test]
fn only_the_configured_header_of_a_trusted_proxy_counts() {
    let service = service(&[("TRUSTED_PROXIES", "127.0.0.0/8,10.0.0.0/8"), ("CLIENT_IP_HEADER", "X-Real-IP")]);
    let mut connection = service.connect();
    for times in 1..=3 {
        let forged = format!("9.9.9.{times}");
        assert_eq!(counted(&mut connection, &[("X-Real-IP", "203.0.113.7"), ("X-Forwarded-For", &forged)]), times);
        assert_eq!(counted(&mut connection, &[("X-Forwarded-For", &forged)]), times, "the peer");
    }
    assert!(!service.log().contains("not trusted"), "{}", service.log());
}

#[test]
fn every_spelling_of_a_client_behind_a_trusted_proxy_is_that_client() {
    let service = service(&[("TRUSTED_PROXIES", "127.0.0.0/8,10.0.0.0/8")]);
    clients(
        &service,
        "X-Forwarded-For",
        &[
            &["1.2.3.4", "::ffff:1.2.3.4", "::ffff:102:304", "::FFFF:102:304", "9.9.9.9, 1.2.3.4", "1.2.3.4, 10.0.0.2"],
            &["2001:db8:1:2::1.2.3.4", "2001:db8:1:2::5"],
            &["64:ff9b::1.2.3.4"],
            &["203.0.113.7:51234", "203.0.113.7:51235", "203.0.113.7"],
            &["203.0.113.8"],
            &["2001:DB8::1", "2001:db8:0:0:0:0:0:1", "[2001:db8::1]", "[2001:db8::1]:443"],
            &["2001:db8:0:1::ff", "2001:db8:0:1::1:0"],
            &["2001:db8:0:2::1"],
            &["fe80::1%eth0", "fe80::1"],
            // The peer.
            &["203.0.113.7:", "1.2.3.4:99999", "10.0.0.5", "unknown", "", ",", "203.0.113.7,"],
        ],
    );
}

#[test]
fn of_several_lines_the_last_is_the_proxys_own() {
    let service = service(&[("TRUSTED_PROXIES", "127.0.0.1")]);
    let mut connection = service.connect();
    let mut lines = vec![("X-Forwarded-For", "9.9.9.9"); 49];
    lines.push(("x-forwarded-for", "203.0.113.7"));
    assert_eq!(counted(&mut connection, &lines), 1);
    assert_eq!(counted(&mut connection, &lines[48..]), 2);
    assert_eq!(counted(&mut connection, &[("X-Forwarded-For", "203.0.113.7")]), 3);
    assert_eq!(counted(&mut connection, &[("X-Forwarded-For", "9.9.9.9")]), 1);
}

#[test]
fn a_hundred_addresses_of_one_ipv6_network_are_one_client_or_a_hundred_as_it_is_set() {
    let addresses: Vec<String> = (0..100).map(|host| format!("2001:db8:0:1::{host:x}")).collect();
    for (prefix, times) in [("64", 100), ("128", 1)] {
        let service = service(&[("TRUSTED_PROXIES", "127.0.0.1"), ("IPV6_PREFIX", prefix)]);
        let mut connection = service.connect();
        let last = addresses.iter().map(|address| counted(&mut connection, &[("X-Forwarded-For", address)])).last();
        assert_eq!(last, Some(times), "IPV6_PREFIX={prefix}");
    }
}

#[test]
fn ipv4_clients_of_a_socket_for_both_families_have_quotas_of_their_own() {
    let service = service(&[("HOST", "::"), ("TRUSTED_PROXIES", "127.0.0.9")]);
    let from = |host: u8| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let (local, port) = (Ipv4Addr::new(127, 0, 0, host), service.address().port());
        socket.bind(&SocketAddr::from((local, 0)).into()).expect("every 127.0.0.0/8 is this machine");
        socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()).expect("the service listens");
        Connection::of(TcpStream::from(socket))
    };
    let (mut one, mut other, mut proxy) = (from(1), from(2), from(9));
    assert_eq!([counted(&mut one, &[]), counted(&mut one, &[]), counted(&mut other, &[])], [1, 2, 1]);
    // The peer shows as ::ffff:127.0.0.9, and is trusted as 127.0.0.9.
    assert_eq!(counted(&mut proxy, &[("X-Forwarded-For", "127.0.0.2")]), 2);
}

#[test]
fn an_api_key_is_counted_by_itself_and_what_is_none_by_address() {
    let service = service(&[("API_KEY_HEADER", "X-Api-Key"), ("RUST_LOG", "trace")]);
    let long = "a".repeat(64);
    let (one, other) = (long.clone() + "1", long + "2");
    let (longest, too_long) = ("k".repeat(256), "k".repeat(257));
    clients(
        &service,
        "x-api-key",
        &[
            &["sesame-4711", "sesame-4711"],
            &["Sesame-4711"],
            &["127.0.0.1"],
            &[&one],
            &[&other],
            &["{a}"],
            &[&longest, &longest],
            // The peer, five times.
            &["", "  ", &too_long, &too_long, "\t"],
        ],
    );
    assert_eq!(counted(&mut service.connect(), &[]), 6, "no header at all");
    assert!(!service.log().contains("sesame"), "{}", service.log());
}

#[test]
fn advice_on_settings_is_logged_when_the_service_starts() {
    let service = Service::start(&[("TRUSTED_PROXIES", "0.0.0.0/0"), ("WINDOW", "1m")]);
    service.log_with("WINDOW is '1m'");
    let log = service.log_with("TRUSTED_PROXIES holds 0.0.0.0/0");
    assert_eq!(log.matches("WARN").count(), 2, "{log}");
}

fn explain(arguments: &[&str]) -> (Option<i32>, String) {
    let output = command(&[]).arg("explain").args(arguments).output().expect("the program runs");
    let said = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.code(), String::from_utf8(said).expect("UTF-8"))
}

#[test]
fn explain_tells_every_step_from_the_peer_to_the_key() {
    for (arguments, said) in [
        (
            &[
                "--peer=::ffff:10.0.0.1",
                "--trusted-proxies=10.0.0.0/8",
                "--header=X-Forwarded-For: 9.9.9.9, 2001:db8:1:2::3",
                "--header=x-forwarded-for: 10.0.0.2:80",
            ][..],
            "peer ::ffff:10.0.0.1: the IPv4 address 10.0.0.1 in IPv6 clothing\n\
             peer 10.0.0.1: trusted, it is in 10.0.0.0/8\n\
             X-Forwarded-For, from the right:\n  \
               10.0.0.2:80: trusted, 10.0.0.2 is in 10.0.0.0/8\n  \
               2001:db8:1:2::3: 2001:db8:1:2::3 is not trusted, so it is the client\n  \
               1 more to the left: not looked at, anybody may have written that\n\
             client: 2001:db8:1:2::3\n\
             counted under: 2001:db8:1:2::/64, with all that share its first 64 bits (IPV6_PREFIX)\n",
        ),
        (
            &["--peer=198.51.100.1", "--header=X-Forwarded-For: 9.9.9.9"],
            "peer 198.51.100.1: not in TRUSTED_PROXIES, so no header of it is believed\n\
             X-Forwarded-For: ignored; if the peer is your proxy, TRUSTED_PROXIES=198.51.100.1 would have it read\n\
             client: the peer 198.51.100.1\n\
             counted under: 198.51.100.1, by itself\n",
        ),
        (
            &["--peer=unix", "--trusted-proxies=unix", "--header=X-Forwarded-For: 9.9.9.9, \u{1b}[2J"],
            "peer without an address: trusted, unix is in TRUSTED_PROXIES\n\
             X-Forwarded-For, from the right:\n  \
               '\\u{1b}[2J': not an address, so the walk ends here\n  \
               1 more to the left: not looked at, anybody may have written that\n\
             client: the one that all peers without an address are\n\
             counted under: 6be5e8a61485d8624f2f86fe7cc6c7a4, 128 bits of SHA-256\n",
        ),
        (
            &["--peer=10.0.0.1", "--trusted-proxies=10.0.0.0/8"],
            "peer 10.0.0.1: trusted, it is in 10.0.0.0/8\n\
             X-Forwarded-For: not there\n\
             client: the peer 10.0.0.1\n\
             counted under: 10.0.0.1, by itself\n",
        ),
        // printf secret | sha256sum
        (
            &["--peer=10.0.0.1", "--api-key-header=X-Api-Key", "--header=X-Api-Key: secret"],
            "X-Api-Key: an API key, so neither peer nor X-Forwarded-For matters\n\
             client: the holder of the API key\n\
             counted under: 2bb80d537b1da3e38bd30361aa855686, 128 bits of SHA-256\n",
        ),
    ] {
        assert_eq!(explain(arguments), (Some(0), said.to_owned()), "{arguments:?}");
    }
}

#[test]
fn explain_refuses_what_is_no_request() {
    for (arguments, said) in [
        (&["--peer=1.2.3.4:80"][..], "--peer is '1.2.3.4:80'; accepted is an IPv4 or IPv6 address, or unix"),
        (
            &["--peer=1.2.3.4", "--header=x"],
            "--header is 'x'; accepted is a name and a value with a colon between them",
        ),
        (&[], "--peer <ADDRESS>"),
        (&["--peer=1.2.3.4", "--ipv6-prefix=0"], "--ipv6-prefix is '0'"),
        (&["--peer=1.2.3.4", "--port=1"], "unexpected argument '--port'"),
    ] {
        let (status, told) = explain(arguments);
        assert!(status == Some(2) && told.contains(said), "{arguments:?}: {status:?} {told}");
    }
}
