//! Tables of (settings, peer, header lines) and the client that they make, to be checked by eye.

use std::net::IpAddr;

use super::Fallback::{Malformed, NoHeader, OnlyProxies, TooManyEntries};
use super::{Client, Found, MAX_ENTRIES, NO_ADDRESS, Proxies, Trust, identify};
use crate::client::ClientKey;

const PEER: Found = Found::Peer { sent_header: false };
const IGNORED: Found = Found::Peer { sent_header: true };
const HEADER: Found = Found::Header;
const KEY: Found = Found::ApiKey;
const NO_HEADER: Found = Found::Fallback(NoHeader);
const MALFORMED: Found = Found::Fallback(Malformed);
const PROXIES: Found = Found::Fallback(OnlyProxies);
const TOO_MANY: Found = Found::Fallback(TooManyEntries);

/// Peer, `-` for one without an address; header lines; client; how it is found.
///
/// The client is an address, `key:` and an API key, or `-` for the one without an address.
type Row<'a> = (&'a str, &'a str, &'a str, Found);

const NO_SETTINGS: [&str; 4] = ["", "X-Forwarded-For", "", "64"];
const TRUSTED: [&str; 4] = ["10.0.0.0/8,127.0.0.0/8", "X-Forwarded-For", "", "64"];

/// `TRUSTED_PROXIES`, `CLIENT_IP_HEADER`, `API_KEY_HEADER`, `IPV6_PREFIX`.
pub(super) fn trust([proxies, header, api_key, prefix]: [&str; 4]) -> Trust {
    Trust {
        proxies: if proxies.is_empty() { Proxies::default() } else { proxies.parse().expect(proxies) },
        header: header.parse().expect(header),
        api_key_header: (!api_key.is_empty()).then(|| api_key.parse().expect(api_key)),
        ipv6_prefix: prefix.parse().expect(prefix),
    }
}

fn peer(text: &str) -> Option<IpAddr> {
    (text != "-").then(|| text.parse().expect(text))
}

fn find(trust: &Trust, peer_address: &str, lines: &str) -> Client {
    let headers: Vec<(&str, &str)> = lines.lines().map(|line| line.split_once(':').expect(line)).collect();
    identify(trust, peer(peer_address), &headers)
}

fn check(settings: [&str; 4], rows: &[Row<'_>]) {
    let trust = trust(settings);
    for (peer, lines, client, found) in rows {
        let key = match (*client, client.strip_prefix("key:")) {
            (_, Some(key)) => ClientKey::api_key(key.as_bytes()),
            ("-", None) => ClientKey::from(NO_ADDRESS),
            (address, None) => ClientKey::from(address.parse::<IpAddr>().expect(address)),
        };
        let expected = Client { key, found: *found };
        assert_eq!(find(&trust, peer, lines), expected, "{settings:?}: {peer} with {lines:?} is {client}");
    }
}

#[test]
fn a_peer_that_is_not_trusted_is_the_client_whatever_it_sends() {
    check(
        NO_SETTINGS,
        &[
            ("198.51.100.1", "", "198.51.100.1", PEER),
            ("198.51.100.1", "X-Forwarded-For: 9.9.9.9", "198.51.100.1", IGNORED),
            ("198.51.100.1", "x-forwarded-for: 9.9.9.9", "198.51.100.1", IGNORED),
            ("198.51.100.1", "X-Real-IP: 9.9.9.9", "198.51.100.1", PEER),
            ("198.51.100.1", "Forwarded: for=9.9.9.9", "198.51.100.1", PEER),
            ("198.51.100.1", "CF-Connecting-IP: 9.9.9.9", "198.51.100.1", PEER),
            ("198.51.100.1", "X-Api-Key: secret", "198.51.100.1", PEER),
            ("127.0.0.1", "X-Forwarded-For: 9.9.9.9", "127.0.0.1", IGNORED),
            ("::1", "X-Forwarded-For: 9.9.9.9", "::", IGNORED),
            ("::ffff:198.51.100.1", "", "198.51.100.1", PEER),
            ("2001:db8:1:2:3:4:5:6", "", "2001:db8:1:2::", PEER),
            ("-", "", "-", PEER),
            ("-", "X-Forwarded-For: 9.9.9.9", "-", IGNORED),
        ],
    );
    check(
        TRUSTED,
        &[
            ("198.51.100.1", "", "198.51.100.1", PEER),
            ("198.51.100.1", "X-Forwarded-For: 9.9.9.9", "198.51.100.1", IGNORED),
            ("11.0.0.1", "X-Forwarded-For: 9.9.9.9", "11.0.0.1", IGNORED),
            ("::10.0.0.1", "X-Forwarded-For: 9.9.9.9", "::", IGNORED),
            ("-", "X-Forwarded-For: 9.9.9.9", "-", IGNORED),
        ],
    );
}

#[test]
fn a_trusted_peer_names_the_client_in_the_rightmost_entry_that_is_not_trusted() {
    check(
        TRUSTED,
        &[
            ("10.0.0.1", "X-Forwarded-For: 203.0.113.7", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Forwarded-For: 9.9.9.9, 203.0.113.7", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Forwarded-For: 9.9.9.9, 203.0.113.7, 10.0.0.2", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Forwarded-For: 9.9.9.9,203.0.113.7,127.0.0.1,10.0.0.2", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Forwarded-For: 10.0.0.3, 203.0.113.7, 10.0.0.2", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Forwarded-For: garbage, 203.0.113.7", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Forwarded-For: \t 203.0.113.7 \t", "203.0.113.7", HEADER),
            ("127.0.0.1", "X-Forwarded-For: 203.0.113.7", "203.0.113.7", HEADER),
            ("::ffff:10.0.0.1", "X-Forwarded-For: 203.0.113.7", "203.0.113.7", HEADER),
            ("10.0.0.1", "x-FORWARDED-for: 203.0.113.7", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Forwarded-For: 9.9.9.9\nX-Forwarded-For: 203.0.113.7", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Forwarded-For: 9.9.9.9\nHost: x\nx-forwarded-for: 203.0.113.7", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Forwarded-For: 203.0.113.7\nX-Forwarded-For: 10.0.0.2", "203.0.113.7", HEADER),
            (
                "10.0.0.1",
                "X-Forwarded-For: 203.0.113.7\nX-Real-IP: 9.9.9.9\nForwarded: for=8.8.8.8",
                "203.0.113.7",
                HEADER,
            ),
            ("10.0.0.1", "X-Forwarded-For: 203.0.113.7\n X-Forwarded-For: 9.9.9.9", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Forwarded-For: 203.0.113.7\nX_Forwarded_For: 9.9.9.9", "203.0.113.7", HEADER),
        ],
    );
}

#[test]
fn a_trusted_peer_is_the_client_itself_when_its_header_names_nobody() {
    check(
        TRUSTED,
        &[
            ("10.0.0.1", "", "10.0.0.1", NO_HEADER),
            ("10.0.0.1", "X-Real-IP: 9.9.9.9", "10.0.0.1", NO_HEADER),
            ("10.0.0.1", " X-Forwarded-For: 9.9.9.9", "10.0.0.1", NO_HEADER),
            ("10.0.0.1", "X-Forwarded-For: 10.0.0.2", "10.0.0.1", PROXIES),
            ("10.0.0.1", "X-Forwarded-For: 10.0.0.5, 10.0.0.2", "10.0.0.1", PROXIES),
            ("10.0.0.1", "X-Forwarded-For: 9.9.9.9, garbage", "10.0.0.1", MALFORMED),
            ("10.0.0.1", "X-Forwarded-For: 9.9.9.9, garbage, 10.0.0.2", "10.0.0.1", MALFORMED),
            ("10.0.0.1", "X-Forwarded-For: 9.9.9.9, unknown", "10.0.0.1", MALFORMED),
            ("10.0.0.1", "X-Forwarded-For: 203.0.113.7,", "10.0.0.1", MALFORMED),
            ("10.0.0.1", "X-Forwarded-For: 203.0.113.7\nX-Forwarded-For:", "10.0.0.1", MALFORMED),
            ("10.0.0.1", "X-Forwarded-For:", "10.0.0.1", MALFORMED),
            ("10.0.0.1", "X-Forwarded-For: ,", "10.0.0.1", MALFORMED),
            ("10.0.0.1", "X-Forwarded-For: for=203.0.113.7", "10.0.0.1", MALFORMED),
            ("10.0.0.1", "X-Forwarded-For: 203.0.113.7 10.0.0.2", "10.0.0.1", MALFORMED),
            ("::ffff:127.0.0.1", "X-Forwarded-For: x", "127.0.0.1", MALFORMED),
        ],
    );
}

#[test]
fn an_entry_may_carry_a_port_brackets_or_a_zone_and_nothing_else() {
    let cases = [
        ("203.0.113.7:51234", Some("203.0.113.7")),
        ("203.0.113.7:51235", Some("203.0.113.7")),
        ("2001:db8::1", Some("2001:db8::")),
        ("2001:DB8::1", Some("2001:db8::")),
        ("2001:db8:0:0:0:0:0:1", Some("2001:db8::")),
        ("[2001:db8::1]", Some("2001:db8::")),
        ("[2001:db8::1]:443", Some("2001:db8::")),
        ("2001:db8:0:1::ff", Some("2001:db8:0:1::")),
        ("2001:db8:0:1::1:0", Some("2001:db8:0:1::")),
        // Eight groups, not an address with a port.
        ("2001:db8::1:443", Some("2001:db8::")),
        ("::ffff:1.2.3.4", Some("1.2.3.4")),
        ("::FFFF:102:304", Some("1.2.3.4")),
        ("[::ffff:1.2.3.4]:80", Some("1.2.3.4")),
        ("2001:db8:1:2::1.2.3.4", Some("2001:db8:1:2::")),
        ("64:ff9b::1.2.3.4", Some("64:ff9b::")),
        ("::1.2.3.4", Some("::")),
        ("fe80::1%eth0", Some("fe80::")),
        ("[fe80::1%eth0]:80", Some("fe80::")),
        ("fe80::1%2", Some("fe80::")),
        ("fe80::1%", None),
        ("fe80::1%a:b", None),
        ("fe80::1%a%b", None),
        ("fe80::1%a b", None),
        ("1.2.3.4%eth0", None),
        ("203.0.113.7:", None),
        ("1.2.3.4:99999", None),
        ("1.2.3.4:+80", None),
        ("1.2.3.4:80:80", None),
        ("[2001:db8::1]:", None),
        ("[2001:db8::1]443", None),
        ("[2001:db8::1", None),
        ("2001:db8::1]", None),
        ("[[2001:db8::1]]", None),
        ("[1.2.3.4]", None),
        ("[1.2.3.4]:80", None),
        ("[]", None),
        ("0.0.0.0", None),
        ("::", None),
        ("::ffff:0.0.0.0", None),
        ("01.2.3.4", None),
        ("1.2.3", None),
        ("0x1.2.3.4", None),
        ("16909060", None),
        ("1.2.3.4/32", None),
        ("\"1.2.3.4\"", None),
        ("_hidden", None),
        ("\u{b}1.2.3.4", None),
    ];
    for (entry, client) in cases {
        let lines = format!("X-Forwarded-For: 9.9.9.9, {entry}");
        let (client, found) = client.map_or(("10.0.0.1", MALFORMED), |client| (client, HEADER));
        check(TRUSTED, &[("10.0.0.1", lines.as_str(), client, found)]);
    }
}

#[test]
fn forwarded_is_read_strictly_from_the_right() {
    let cases = [
        ("for=192.0.2.43", Some("192.0.2.43")),
        ("For=192.0.2.43", Some("192.0.2.43")),
        ("for=9.9.9.9, for=192.0.2.43", Some("192.0.2.43")),
        ("for=192.0.2.43, for=10.0.0.2;proto=https", Some("192.0.2.43")),
        ("for=9.9.9.9\nForwarded: for=192.0.2.43", Some("192.0.2.43")),
        ("for=\"192.0.2.43\"", Some("192.0.2.43")),
        ("for=\"192.0.2.43:47011\"", Some("192.0.2.43")),
        ("for=192.0.2.43:47011", Some("192.0.2.43")),
        ("for=\"[2001:db8:cafe::17]:4711\"", Some("2001:db8:cafe::")),
        ("for=\"[::ffff:192.0.2.43]\"", Some("192.0.2.43")),
        ("proto=https;for=192.0.2.43;by=203.0.113.43", Some("192.0.2.43")),
        ("host=\"a\" ; for = 192.0.2.43 ; proto=https", Some("192.0.2.43")),
        // A host that the client chose and the proxy quoted.
        ("host=\"x;for=9.9.9.9\";for=192.0.2.43", Some("192.0.2.43")),
        // A quote left open by the client does not reach into what the proxy appends.
        ("for=\"9.9.9.9, for=192.0.2.43", Some("192.0.2.43")),
        ("for=9.9.9.9;host=\", for=192.0.2.43", Some("192.0.2.43")),
        // A quote that spans a comma: the right part is no element.
        ("for=192.0.2.43;host=\"a,for=9.9.9.9\"", None),
        ("for=192.0.2.43;host=\"a\\\",for=9.9.9.9;x=\\\"\"", None),
        ("for=\"192.0.2.43", None),
        ("for=192.0.2.43;host=\"a", None),
        ("for=192.0.2.43\"", None),
        ("for=\"192.0.2.43\"x", None),
        ("for=\"\"192.0.2.43\"\"", None),
        ("for=\"192.0.2\\.43\"", None),
        ("for=unknown", None),
        ("for=_hidden", None),
        ("for=\"_SEVKISEK:_y\"", None),
        ("for=", None),
        ("for=\"\"", None),
        ("for", None),
        ("192.0.2.43", None),
        ("proto=https;by=203.0.113.43", None),
        ("for=192.0.2.43;for=9.9.9.9", None),
        ("for=192.0.2.43;FOR=192.0.2.43", None),
        ("xfor=192.0.2.43", None),
        ("for=192.0.2.43,", None),
    ];
    for (value, client) in cases {
        let lines = format!("Forwarded: {value}");
        let (client, found) = client.map_or(("10.0.0.1", MALFORMED), |client| (client, HEADER));
        check(["10.0.0.0/8", "forwarded", "", "64"], &[("10.0.0.1", lines.as_str(), client, found)]);
    }
}

#[test]
fn a_single_address_header_counts_by_its_last_line() {
    check(
        ["10.0.0.0/8", "x-real-ip", "", "64"],
        &[
            ("10.0.0.1", "X-Real-IP: 203.0.113.7", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Real-IP: 203.0.113.7:80", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Real-IP: 9.9.9.9\nX-Real-IP: 203.0.113.7", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Real-IP: 203.0.113.7\nX-Forwarded-For: 9.9.9.9", "203.0.113.7", HEADER),
            ("10.0.0.1", "X-Real-IP: 9.9.9.9, 203.0.113.7", "10.0.0.1", MALFORMED),
            ("10.0.0.1", "X-Real-IP: 9.9.9.9\nX-Real-IP:", "10.0.0.1", MALFORMED),
            ("10.0.0.1", "X-Real-IP: 9.9.9.9\nX-Real-IP: 10.0.0.2", "10.0.0.1", PROXIES),
            ("10.0.0.1", "X-Forwarded-For: 9.9.9.9", "10.0.0.1", NO_HEADER),
            ("198.51.100.1", "X-Real-IP: 203.0.113.7", "198.51.100.1", IGNORED),
        ],
    );
}

#[test]
fn trust_reaches_as_far_as_the_networks_and_no_further() {
    let lines = "X-Forwarded-For: 203.0.113.7";
    let named = |peer| (peer, lines, "203.0.113.7", HEADER);
    check(
        ["192.0.2.1", "X-Forwarded-For", "", "64"],
        &[named("192.0.2.1"), ("192.0.2.2", lines, "192.0.2.2", IGNORED)],
    );
    check(
        ["::ffff:127.0.0.0/104, 2001:db8::/32", "X-Forwarded-For", "", "64"],
        &[
            named("127.0.0.1"),
            named("::ffff:127.9.9.9"),
            named("2001:db8:ffff::1"),
            ("128.0.0.1", lines, "128.0.0.1", IGNORED),
            ("2001:db9::1", lines, "2001:db9::", IGNORED),
        ],
    );
    check(
        ["::/0", "X-Forwarded-For", "", "64"],
        &[
            named("2001:db8::1"),
            ("10.0.0.1", lines, "10.0.0.1", IGNORED),
            ("::ffff:10.0.0.1", lines, "10.0.0.1", IGNORED),
        ],
    );
    check(
        ["unix", "X-Forwarded-For", "", "64"],
        &[
            named("-"),
            ("-", "", "-", NO_HEADER),
            ("-", "X-Forwarded-For: 9.9.9.9, x", "-", MALFORMED),
            ("127.0.0.1", lines, "127.0.0.1", IGNORED),
        ],
    );
    check(["UNIX,10.0.0.0/8", "X-Forwarded-For", "", "64"], &[named("-"), named("10.0.0.1")]);
}

#[test]
fn only_ipv6_is_grouped_and_by_bits() {
    let lines = "X-Forwarded-For: 2001:db8:1:2:3:4:5:6";
    for (prefix, client) in [
        ("1", "::"),
        ("32", "2001:db8::"),
        ("48", "2001:db8:1::"),
        ("56", "2001:db8:1::"),
        ("63", "2001:db8:1:2::"),
        ("64", "2001:db8:1:2::"),
        ("65", "2001:db8:1:2::"),
        ("127", "2001:db8:1:2:3:4:5:6"),
        ("128", "2001:db8:1:2:3:4:5:6"),
    ] {
        check(
            ["10.0.0.0/8", "X-Forwarded-For", "", prefix],
            &[
                ("10.0.0.1", lines, client, HEADER),
                ("2001:db8:1:2:3:4:5:6", "", client, PEER),
                ("203.0.113.7", "", "203.0.113.7", PEER),
                ("203.0.113.8", "", "203.0.113.8", PEER),
                ("10.0.0.1", "X-Forwarded-For: ::ffff:203.0.113.7", "203.0.113.7", HEADER),
            ],
        );
    }
}

#[test]
fn an_api_key_is_the_client_and_what_is_no_key_counts_by_address() {
    let longest = "k".repeat(256);
    let (fits, too_long) = (format!("X-Api-Key: {longest}"), format!("X-Api-Key: {longest}k"));
    let key = format!("key:{longest}");
    check(
        ["10.0.0.0/8", "X-Forwarded-For", "X-API-Key", "64"],
        &[
            ("198.51.100.1", "X-Api-Key: secret", "key:secret", KEY),
            ("198.51.100.2", "x-api-key: \t secret ", "key:secret", KEY),
            ("198.51.100.1", "X-Api-Key: Secret", "key:Secret", KEY),
            ("198.51.100.1", "X-Api-Key: 203.0.113.7", "key:203.0.113.7", KEY),
            ("10.0.0.1", "X-Api-Key: secret\nX-Forwarded-For: 203.0.113.7", "key:secret", KEY),
            ("-", "X-Api-Key: secret", "key:secret", KEY),
            ("198.51.100.1", "X-Api-Key: first\nX-Api-Key: second", "key:first", KEY),
            ("198.51.100.1", "X-Api-Key: a, b", "key:a, b", KEY),
            ("198.51.100.1", fits.as_str(), key.as_str(), KEY),
            ("198.51.100.1", too_long.as_str(), "198.51.100.1", PEER),
            ("198.51.100.1", "X-Api-Key:", "198.51.100.1", PEER),
            ("198.51.100.1", "X-Api-Key: \t ", "198.51.100.1", PEER),
            ("198.51.100.1", "X-Api-Key:\nX-Api-Key: second", "198.51.100.1", PEER),
            ("198.51.100.1", " X-Api-Key: folded", "198.51.100.1", PEER),
            ("198.51.100.1", "", "198.51.100.1", PEER),
            ("10.0.0.1", "X-Forwarded-For: 203.0.113.7", "203.0.113.7", HEADER),
        ],
    );
}

#[test]
fn keys_that_differ_late_and_addresses_that_look_like_keys_are_clients_of_their_own() {
    let (one, other) = ("a".repeat(64) + "1", "a".repeat(64) + "2");
    assert_ne!(ClientKey::api_key(one.as_bytes()), ClientKey::api_key(other.as_bytes()));
    assert_ne!(ClientKey::api_key(b"203.0.113.7"), ClientKey::from(std::net::Ipv4Addr::new(203, 0, 113, 7)));
}

#[test]
fn no_more_than_64_entries_are_looked_at() {
    let header = |proxies: usize| format!("X-Forwarded-For: 203.0.113.7{}", ", 10.0.0.2".repeat(proxies));
    check(
        TRUSTED,
        &[
            ("10.0.0.1", header(MAX_ENTRIES - 1).as_str(), "203.0.113.7", HEADER),
            ("10.0.0.1", header(MAX_ENTRIES).as_str(), "10.0.0.1", TOO_MANY),
            ("10.0.0.1", format!("X-Forwarded-For: {}", ",".repeat(4_096)).as_str(), "10.0.0.1", MALFORMED),
            ("10.0.0.1", "X-Forwarded-For: 10.0.0.2\n".repeat(64).as_str(), "10.0.0.1", PROXIES),
            ("10.0.0.1", "X-Forwarded-For: 10.0.0.2\n".repeat(65).as_str(), "10.0.0.1", TOO_MANY),
            (
                "10.0.0.1",
                ("X-Forwarded-For: 9.9.9.9\n".repeat(49) + "X-Forwarded-For: 203.0.113.7").as_str(),
                "203.0.113.7",
                HEADER,
            ),
        ],
    );
}
