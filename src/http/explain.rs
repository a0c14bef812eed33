//! Who the client of a given request would be, told step by step for people.
//!
//! It prints what the walk of `identity` tells on its way: the same code that serves, not a second opinion. An API key is
//! never printed, only the hash it is counted under.

use std::fmt::{self, Write};
use std::net::IpAddr;

use super::identity::{Client, Fallback, FieldName, Found, MAX_API_KEY, MAX_ENTRIES, Step, Trust, entries, walk};
use crate::client::Kind;

/// Says how the client of a request from `peer` with these header lines is found. `None` is a peer without an address.
#[must_use]
pub fn explain(trust: &Trust, peer: Option<IpAddr>, headers: &[(String, String)]) -> String {
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut told = Telling { trust, text: String::new(), entries: 0, address: peer.map(|peer| peer.to_canonical()) };
    // Writing to a string cannot fail, here and below.
    if let (Some(given), Some(IpAddr::V4(mapped))) = (peer.filter(IpAddr::is_ipv6), told.address) {
        writeln!(told.text, "peer {given}: the IPv4 address {mapped} in IPv6 clothing").unwrap_or_default();
    }
    let client = walk(trust, peer, &headers, |step| told.step(step).unwrap_or_default());
    let more = entries(&trust.header, &headers).count() - told.entries;
    told.end(client, more).unwrap_or_default();
    told.text
}

struct Telling<'t> {
    trust: &'t Trust,
    text: String,
    /// How many entries of the header were looked at.
    entries: usize,
    /// Who the client is, as far as the walk has come.
    address: Option<IpAddr>,
}

impl Telling<'_> {
    fn step(&mut self, step: Step<'_>) -> fmt::Result {
        let header = self.trust.header.name();
        let api_key_header = self.trust.api_key_header.as_ref().map_or("", FieldName::name);
        let text = &mut self.text;
        if matches!(step, Step::Proxy { .. } | Step::Client { .. } | Step::Malformed { .. }) {
            if self.entries == 0 {
                writeln!(text, "{header}, from the right:")?;
            }
            self.entries += 1;
        }
        match step {
            Step::ApiKey => {
                writeln!(text, "{api_key_header}: an API key, so neither peer nor {header} matters")
            }
            Step::BlankApiKey => writeln!(text, "{api_key_header}: blank, so there is no API key"),
            Step::LongApiKey { bytes } => {
                writeln!(text, "{api_key_header}: {bytes} bytes, more than {MAX_API_KEY}, so there is no API key")
            }
            Step::Untrusted(Some(peer)) => {
                writeln!(text, "peer {peer}: not in TRUSTED_PROXIES, so no header of it is believed")
            }
            Step::Untrusted(None) => {
                writeln!(
                    text,
                    "peer without an address: unix is not in TRUSTED_PROXIES, so no header of it is believed"
                )
            }
            Step::TrustedPeer(peer, network) => writeln!(text, "peer {peer}: trusted, it is in {network}"),
            Step::TrustedUnix => writeln!(text, "peer without an address: trusted, unix is in TRUSTED_PROXIES"),
            Step::Proxy { entry, address, network } => {
                writeln!(text, "  {}: trusted, {address} is in {network}", shown(entry))
            }
            Step::Client { entry, address } => {
                self.address = Some(address);
                writeln!(text, "  {}: {address} is not trusted, so it is the client", shown(entry))
            }
            Step::Malformed { entry } => {
                writeln!(text, "  '{}': not an address, so the walk ends here", shown(entry))
            }
        }
    }

    /// What the walk ended with, and what was left of its header.
    fn end(&mut self, client: Client, more: usize) -> fmt::Result {
        let header = self.trust.header.name();
        let text = &mut self.text;
        match client.found {
            Found::ApiKey => {}
            Found::Peer { sent_header: true } => {
                let setting = self.address.map_or("unix".to_owned(), |peer| peer.to_string());
                writeln!(
                    text,
                    "{header}: ignored; if the peer is your proxy, TRUSTED_PROXIES={setting} would have it read"
                )?;
            }
            Found::Peer { sent_header: false } => {}
            Found::Header | Found::Fallback(Fallback::Malformed) if more > 0 => {
                writeln!(text, "  {more} more to the left: not looked at, anybody may have written that")?;
            }
            Found::Header | Found::Fallback(Fallback::Malformed) => {}
            Found::Fallback(Fallback::NoHeader) => writeln!(text, "{header}: not there")?,
            Found::Fallback(Fallback::OnlyProxies) => writeln!(text, "  every entry is trusted: none is the client")?,
            Found::Fallback(Fallback::TooManyEntries) => {
                writeln!(text, "  {more} more to the left: not looked at, the last {MAX_ENTRIES} are all that count")?;
            }
        }
        let who = match (client.found, self.address) {
            (Found::ApiKey, _) => "the holder of the API key".to_owned(),
            (_, None) => "the one that all peers without an address are".to_owned(),
            (Found::Header, Some(address)) => address.to_string(),
            (_, Some(address)) => format!("the peer {address}"),
        };
        writeln!(text, "client: {who}")?;
        write!(text, "counted under: ")?;
        let prefix = self.trust.ipv6_prefix.bits();
        match (client.key.0, client.key.address()) {
            (Kind::V6(_), Some(network)) if prefix < 128 => {
                writeln!(text, "{network}/{prefix}, with all that share its first {prefix} bits (IPV6_PREFIX)")
            }
            (Kind::V4(_) | Kind::V6(_), Some(address)) => writeln!(text, "{address}, by itself"),
            (Kind::ApiKey(hash) | Kind::Name(hash), _) => {
                writeln!(text, "{:032x}, 128 bits of SHA-256", u128::from_be_bytes(hash))
            }
            (Kind::V4(_) | Kind::V6(_), None) => unreachable!("a key of an address has one"),
        }
    }
}

/// An entry for a terminal: cut, and without control characters.
fn shown(entry: &str) -> String {
    /// Longer than any address with its port, zone and `for=`.
    const MAX: usize = 120;
    let entry = entry.trim_matches([' ', '\t']);
    let escaped = |c: char| if c == '"' { String::from(c) } else { c.escape_debug().to_string() };
    let shown: String = entry.chars().take(MAX).map(escaped).collect();
    if entry.chars().nth(MAX).is_some() { shown + "..." } else { shown }
}
