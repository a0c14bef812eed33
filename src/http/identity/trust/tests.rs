//! What the settings of trust accept, and with which words they refuse.

use super::{FieldName, ForwardingHeader, Ipv6Prefix, Proxies};

#[test]
fn a_list_of_proxies_that_means_nothing_is_refused_with_its_reason() {
    let networks = "accepted are addresses and networks with a comma between them, such as 10.0.0.0/8,::1, and unix";
    let neither = |part: &str| format!("'{part}' is neither an address nor a network; {networks}");
    let host_bits = |part: &str, network: &str| {
        format!("'{part}' has bits set behind its prefix; the network around it is {network}")
    };
    for (text, reason) in [
        ("", neither("")),
        ("10.0.0.0/8,", neither("")),
        ("10.0.0.0/8,,::1", neither("")),
        ("10.0.0.0/8 ::1", neither("10.0.0.0/8 ::1")),
        ("localhost", neither("localhost")),
        ("10.0.0.0/", neither("10.0.0.0/")),
        ("64/", neither("64/")),
        ("/8", neither("/8")),
        ("10.0.0.0/33", neither("10.0.0.0/33")),
        ("10.0.0.0/256", neither("10.0.0.0/256")),
        ("::/129", neither("::/129")),
        ("10.0.0.0/-1", neither("10.0.0.0/-1")),
        ("10.0.0.0/+8", neither("10.0.0.0/+8")),
        ("10.0.0.0/08", neither("10.0.0.0/08")),
        ("010.0.0.0/8", neither("010.0.0.0/8")),
        ("10.0.0.0/255.0.0.0", neither("10.0.0.0/255.0.0.0")),
        ("10.0.0.1:80", neither("10.0.0.1:80")),
        ("[::1]", neither("[::1]")),
        ("fe80::1%eth0", neither("fe80::1%eth0")),
        ("fe80::%2/64", neither("fe80::%2/64")),
        ("10.0.0.0/8\u{1b}[2J", neither("10.0.0.0/8\\u{1b}[2J")),
        ("10.0.0.1/8", host_bits("10.0.0.1/8", "10.0.0.0/8")),
        ("::1, 2001:db8::1/64", host_bits("2001:db8::1/64", "2001:db8::/64")),
        ("::ffff:127.0.0.1/104", host_bits("::ffff:127.0.0.1/104", "::ffff:127.0.0.0/104")),
        ("0.0.0.0", "'0.0.0.0' is nobody's address; everybody is 0.0.0.0/0, and that is seldom meant".into()),
        ("::", "'::' is nobody's address; everybody is ::/0, and that is seldom meant".into()),
        (&["::1"; 1_025].join(","), "1025 networks are more than 1024".into()),
    ] {
        assert_eq!(text.parse::<Proxies>().map_err(|error| error.to_string()), Err(reason), "{text:?}");
    }
}

#[test]
fn as_many_networks_as_the_bound_says_are_taken() {
    assert!(["::1"; 1_024].join(",").parse::<Proxies>().is_ok());
}

#[test]
fn everybody_is_seen_to_be_trusted_in_each_spelling() {
    for (text, everybody) in [
        ("10.0.0.0/8,::1,unix", vec![]),
        ("0.0.0.0/0", vec!["0.0.0.0/0"]),
        ("::/0,10.0.0.0/8,0.0.0.0/0", vec!["::/0", "0.0.0.0/0"]),
        ("::ffff:0:0/96", vec!["0.0.0.0/0"]),
        ("0.0.0.0/1", vec![]),
    ] {
        let proxies: Proxies = text.parse().expect(text);
        assert_eq!(proxies.everybody().map(|network| network.to_string()).collect::<Vec<_>>(), everybody, "{text}");
    }
}

#[test]
fn a_header_name_is_a_token_and_a_prefix_a_number_of_bits() {
    for (text, name) in [("x-forwarded-FOR", "X-Forwarded-For"), ("FORWARDED", "Forwarded"), ("X-Real-IP", "X-Real-IP")]
    {
        assert_eq!(text.parse::<ForwardingHeader>().expect(text).name(), name);
    }
    for text in ["", "X Real", "X-Real-IP:", "X-Réal", "a,b", "\r\n"] {
        let accepted = "is no header name; accepted are letters, digits and !#$%&'*+-.^_`|~";
        let reason = format!("'{}' {accepted}", text.escape_debug());
        assert_eq!(text.parse::<FieldName>().map_err(|error| error.to_string()).unwrap_err(), reason);
    }
    for text in ["", "0", "129", "256", "-1", "+64", "064", "64/", "/64", "abc", "6 4"] {
        let reason = format!("'{text}' is no length of a prefix; accepted is a whole number from 1 to 128");
        assert_eq!(text.parse::<Ipv6Prefix>().map_err(|error| error.to_string()), Err(reason));
    }
    for (text, bits) in [("1", 1), ("64", 64), ("128", 128)] {
        assert_eq!(text.parse::<Ipv6Prefix>().map(Ipv6Prefix::bits), Ok(bits));
    }
}
