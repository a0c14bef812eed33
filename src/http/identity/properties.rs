//! What holds for any header: random text, near to what proxies and attackers write.

use std::net::IpAddr;

use proptest::prelude::*;

use super::tests::trust;
use super::{Client, Fallback, FieldName, Found, Proxies, identify};
use crate::client::ClientKey;

/// Text that is near to what a header may hold.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9a-f:.,;=\"\\[\\]% _forFOR/\\\\]{0,60}",
        "[\\x00-\\x7f]{0,60}",
        "(for=)?\"?(\\[?([0-9a-f]{0,4}:){0,8}[0-9.]{0,15}\\]?)(:[0-9]{0,6})?\"?",
    ]
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
        any::<u128>().prop_map(|bits| IpAddr::V6(bits.into()))
    ]
}

fn headers() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("X-Forwarded-For"), Just("Forwarded"), Just("X-Real-IP")]
}

proptest! {
    #[test]
    fn no_header_of_an_untrusted_peer_changes_who_it_is(
        peer in addresses(),
        header in headers(),
        lines in prop::collection::vec((headers(), text()), 0..5),
    ) {
        let trust = trust(["10.0.0.0/8,::1", header, "", "64"]);
        prop_assume!(trust.proxies.network_of(peer.to_canonical()).is_none());
        let lines: Vec<(&str, &str)> = lines.iter().map(|(name, value)| (*name, value.as_str())).collect();
        prop_assert_eq!(identify(&trust, Some(peer), &lines).key, ClientKey::network(peer, 64));
    }

    #[test]
    fn nothing_left_of_the_first_untrusted_entry_changes_who_it_is(
        forwarded in any::<bool>(),
        address in prop::option::of(addresses()),
        text in text().prop_filter("one entry", |text| !text.contains(',')),
        proxies in 0usize..5,
        left in prop::collection::vec(text(), 0..4),
        same_line in any::<bool>(),
    ) {
        let (name, proxy) = if forwarded { ("Forwarded", ", for=10.0.0.2") } else { ("X-Forwarded-For", ", 10.0.0.2") };
        let trust = trust(["10.0.0.0/8", name, "", "64"]);
        let peer = Some("10.0.0.1".parse().unwrap());
        let client = match address {
            Some(IpAddr::V4(address)) if forwarded => format!("for={address}"),
            Some(IpAddr::V6(address)) if forwarded => format!("for=\"[{address}]\""),
            Some(address) => address.to_string(),
            None => text,
        };
        let right = client + &proxy.repeat(proxies);
        let alone = identify(&trust, peer, &[(name, &right)]);
        // An entry that is trusted itself is no client: what stands left of it counts.
        prop_assume!(matches!(alone.found, Found::Header | Found::Fallback(Fallback::Malformed)));
        let mut lines: Vec<(&str, &str)> = left.iter().map(|value| (name, value.as_str())).collect();
        let joined = left.join(",") + "," + &right;
        if same_line { lines = vec![(name, &joined)] } else { lines.push((name, &right)) }
        prop_assert_eq!(identify(&trust, peer, &lines), alone);
    }

    #[test]
    fn an_address_is_the_same_client_in_every_spelling(address in addresses(), port in any::<u16>()) {
        let trust = trust(["10.0.0.0/8", "X-Forwarded-For", "", "64"]);
        prop_assume!(trust.proxies.network_of(address.to_canonical()).is_none());
        prop_assume!(!address.to_canonical().is_unspecified());
        let spellings = match address {
            IpAddr::V4(v4) => vec![
                format!("{v4}:{port}"), format!("::ffff:{v4}"), format!("[{}]:{port}", v4.to_ipv6_mapped()),
            ],
            IpAddr::V6(v6) => {
                let groups = v6.segments().map(|group| format!("{group:04X}")).join(":");
                vec![format!("[{v6}]"), format!("[{v6}]:{port}"), format!("{v6}%eth0"), groups]
            }
        };
        for text in spellings.iter().chain([&address.to_string()]) {
            let found = identify(&trust, Some("10.0.0.1".parse().unwrap()), &[("X-Forwarded-For", text)]);
            prop_assert_eq!(found, Client { key: ClientKey::network(address, 64), found: Found::Header }, "{}", text);
        }
    }

    #[test]
    fn no_text_makes_it_panic(
        header in headers(),
        lines in prop::collection::vec((headers(), prop_oneof![text(), any::<String>()]), 0..5),
        setting in any::<String>(),
    ) {
        let lines: Vec<(&str, &str)> = lines.iter().map(|(name, value)| (*name, value.as_str())).collect();
        identify(&trust(["10.0.0.0/8", header, "X-Real-IP", "64"]), Some("10.0.0.1".parse().unwrap()), &lines);
        let _ = setting.parse::<Proxies>();
        let _ = setting.parse::<FieldName>();
    }
}
