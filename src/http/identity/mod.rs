//! Who is counted for a request: its peer, the client that a trusted proxy names, or the holder of an API key.
//!
//! A header says whatever its writer likes, so one is read only from a peer in `TRUSTED_PROXIES`, only the one that those
//! proxies write, and only from its end: the right-most entry is the proxy's own, and all that stands left of the first
//! untrusted entry was written by the client. What cannot be read falls back to the peer, never to an entry further left.
//! After "The perils of the 'real' client IP" (adam-p.ca, 2022) and its realclientip-go.
//!
//! An API key is chosen by the client, and nothing here checks it. Pure: no socket, no log, no metric.

mod entry;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
mod trust;

use std::net::IpAddr;

use ipnet::IpNet;

use crate::client::ClientKey;

pub use trust::{FieldName, ForwardingHeader, Ipv6Prefix, Proxies, Trust, TrustError};

/// The most entries of a forwarding header that are looked at, from the right. No chain of proxies is so long, and how far
/// the header goes on to the left is the client's choice.
pub(crate) const MAX_ENTRIES: usize = 64;

/// The longest API key, in bytes. A longer one is no key: hashing it would be work that the client chooses.
pub(crate) const MAX_API_KEY: usize = 256;

/// The one client that all peers without an address are. As a name it is never the key of an address.
const NO_ADDRESS: &str = "peer without an address";

/// Who is counted, and how that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) key: ClientKey,
    pub(crate) found: Found,
}

/// How a client was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// By its API key.
    ApiKey,
    /// In the forwarding header of a trusted proxy.
    Header,
    /// It is the peer, which is not trusted. If it sent the forwarding header, that was ignored: it may be a proxy that
    /// `TRUSTED_PROXIES` lacks.
    Peer { sent_header: bool },
    /// It is the trusted peer itself, since its header names nobody.
    Fallback(Fallback),
}

/// Why a trusted peer's header names nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallback {
    /// There is none.
    NoHeader,
    /// The first entry from the right that is not a trusted proxy is not an address either.
    Malformed,
    /// Every entry is a trusted proxy.
    OnlyProxies,
    /// So is every one of the last [`MAX_ENTRIES`].
    TooManyEntries,
}

/// What the walk looks at, in order, for those who want to see how a client is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// The API key header is there, and what it holds is the key.
    ApiKey,
    /// The API key header is there, and what it holds is nothing but blanks.
    BlankApiKey,
    /// The API key header is there, and its value is above [`MAX_API_KEY`] bytes.
    LongApiKey { bytes: usize },
    /// The peer is not in `TRUSTED_PROXIES`. Its address, if it has one.
    Untrusted(Option<IpAddr>),
    /// The peer is trusted because of this network.
    TrustedPeer(IpAddr, IpNet),
    /// The peer has no address, and such are trusted.
    TrustedUnix,
    /// An entry of the forwarding header that is trusted because of this network.
    Proxy { entry: &'a str, address: IpAddr, network: IpNet },
    /// The entry of the forwarding header that is the client.
    Client { entry: &'a str, address: IpAddr },
    /// The entry of the forwarding header at which the walk stops without a client.
    Malformed { entry: &'a str },
}

/// Who is counted for a request from `peer` with these header lines.
///
/// Allocates nothing, and for an untrusted peer only looks for names among the lines.
pub(crate) fn identify(trust: &Trust, peer: Option<IpAddr>, headers: &[(&str, &str)]) -> Client {
    walk(trust, peer, headers, |_| {})
}

/// [`identify`], which tells each step.
pub(crate) fn walk<'a>(
    trust: &Trust,
    peer: Option<IpAddr>,
    headers: &[(&'a str, &'a str)],
    mut tell: impl FnMut(Step<'a>),
) -> Client {
    if let Some(key) = api_key(trust, headers, &mut tell) {
        return Client { key, found: Found::ApiKey };
    }
    let by_address = |address| ClientKey::network(address, trust.ipv6_prefix.bits());
    let peer = peer.map(|peer| peer.to_canonical());
    let by_peer = peer.map_or_else(|| ClientKey::from(NO_ADDRESS), by_address);
    match peer.map(|peer| (peer, trust.proxies.network_of(peer))) {
        Some((peer, Some(network))) => tell(Step::TrustedPeer(peer, network)),
        None if trust.proxies.unix() => tell(Step::TrustedUnix),
        _ => {
            tell(Step::Untrusted(peer));
            let sent_header = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(trust.header.name()));
            return Client { key: by_peer, found: Found::Peer { sent_header } };
        }
    }
    match named(trust, headers, tell) {
        Ok(address) => Client { key: by_address(address), found: Found::Header },
        Err(fallback) => Client { key: by_peer, found: Found::Fallback(fallback) },
    }
}

/// The key of the first line of the API key header, by which a check in front would go as well.
fn api_key<'a>(trust: &Trust, headers: &[(&'a str, &'a str)], tell: &mut impl FnMut(Step<'a>)) -> Option<ClientKey> {
    let header = trust.api_key_header.as_ref()?;
    let (_, value) = headers.iter().find(|(name, _)| header.is(name))?;
    match value.trim_matches(entry::BLANKS) {
        "" => tell(Step::BlankApiKey),
        long if long.len() > MAX_API_KEY => tell(Step::LongApiKey { bytes: long.len() }),
        key => {
            tell(Step::ApiKey);
            return Some(ClientKey::api_key(key.as_bytes()));
        }
    }
    None
}

/// The client that the forwarding header of a trusted peer names.
fn named<'a>(
    trust: &Trust,
    headers: &[(&'a str, &'a str)],
    mut tell: impl FnMut(Step<'a>),
) -> Result<IpAddr, Fallback> {
    let mut end = Fallback::NoHeader;
    for (looked_at, entry) in entries(&trust.header, headers).enumerate() {
        if looked_at == MAX_ENTRIES {
            return Err(Fallback::TooManyEntries);
        }
        let Some(address) = trust.header.address(entry) else {
            tell(Step::Malformed { entry });
            return Err(Fallback::Malformed);
        };
        let Some(network) = trust.proxies.network_of(address) else {
            tell(Step::Client { entry, address });
            return Ok(address);
        };
        tell(Step::Proxy { entry, address, network });
        end = Fallback::OnlyProxies;
    }
    Err(end)
}

/// The entries of every line of the header, from the right: of a list, as if the lines were one; of a single-address
/// header, the last line.
pub(crate) fn entries<'a>(header: &ForwardingHeader, headers: &[(&'a str, &'a str)]) -> impl Iterator<Item = &'a str> {
    let (name, list) = (header.name(), header.is_list());
    let lines = headers.iter().rev().filter(move |(line, _)| line.eq_ignore_ascii_case(name)).map(|(_, value)| *value);
    let lines = lines.take(if list { usize::MAX } else { 1 });
    lines.flat_map(move |line| line.rsplitn(if list { usize::MAX } else { 1 }, ','))
}
