//! Who is counted: an address, a name, or an API key.
//!
//! A key has a fixed size, so that nobody's long text costs memory, and it is the same in every process, so that instances
//! that share a store agree. The four kinds never meet: a name `203.0.113.7` and that address are two clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};

/// One client of a limiter.
///
/// From an address: IPv4-mapped IPv6 is IPv4; other IPv6 is taken whole, see [`ClientKey::network`] for grouping.
/// From text or bytes: any, of any length; 128 bits of SHA-256 stand for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientKey(pub(crate) Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    V4(u32),
    V6([u8; 16]),
    Name([u8; 16]),
    ApiKey([u8; 16]),
}

impl ClientKey {
    /// The client behind an address, where IPv6 addresses that share their first `ipv6_prefix` bits are one client.
    ///
    /// More than 128 bits count as 128. IPv4 is never grouped.
    #[must_use]
    pub fn network(address: IpAddr, ipv6_prefix: u8) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self(Kind::V4(v4.to_bits())),
            IpAddr::V6(v6) => {
                let dropped = 128 - u32::from(ipv6_prefix.min(128));
                let mask = u128::MAX.checked_shl(dropped).unwrap_or(0);
                Self(Kind::V6((v6.to_bits() & mask).to_be_bytes()))
            }
        }
    }

    /// The client that shows this API key. The key itself is not kept.
    #[must_use]
    pub fn api_key(key: &[u8]) -> Self {
        Self(Kind::ApiKey(digest(key)))
    }

    /// The address, or the first address of the network; `None` for names and API keys.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        match self.0 {
            Kind::V4(bits) => Some(Ipv4Addr::from_bits(bits).into()),
            Kind::V6(octets) => Some(Ipv6Addr::from(octets).into()),
            Kind::Name(_) | Kind::ApiKey(_) => None,
        }
    }
}

impl From<IpAddr> for ClientKey {
    fn from(address: IpAddr) -> Self {
        Self::network(address, 128)
    }
}

impl From<Ipv4Addr> for ClientKey {
    fn from(address: Ipv4Addr) -> Self {
        Self::network(address.into(), 128)
    }
}

impl From<Ipv6Addr> for ClientKey {
    fn from(address: Ipv6Addr) -> Self {
        Self::network(address.into(), 128)
    }
}

impl From<&str> for ClientKey {
    fn from(name: &str) -> Self {
        Self::from(name.as_bytes())
    }
}

impl From<&[u8]> for ClientKey {
    fn from(name: &[u8]) -> Self {
        Self(Kind::Name(digest(name)))
    }
}

fn digest(text: &[u8]) -> [u8; 16] {
    let whole: [u8; 32] = Sha256::digest(text).into();
    let (half, _) = whole.split_at(16);
    half.try_into().expect("the first half of 32 bytes is 16 bytes")
}
