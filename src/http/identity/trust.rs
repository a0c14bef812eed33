//! The settings that say whom to believe, read from text once. Impossible values do not exist behind this file.
//!
//! An error quotes the part that is wrong and says what is accepted; which setting it was, the caller knows.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// The most trusted networks: each entry of a header is held against every one of them. The longest public list of a
/// content delivery network has some two hundred.
const MAX_NETWORKS: usize = 1_024;

/// The bits of an IPv6 address in front of the IPv4 address that it maps.
const MAPPED_PREFIX: u8 = 96;

/// Whom to believe about where a request comes from.
#[derive(Clone, Debug)]
pub struct Trust {
    /// Whose forwarding header is believed.
    pub proxies: Proxies,
    /// The one header that they write.
    pub header: ForwardingHeader,
    /// A request that carries this header is counted under its value.
    pub api_key_header: Option<FieldName>,
    /// IPv6 clients that share so many leading bits are one client.
    pub ipv6_prefix: Ipv6Prefix,
}

/// The peers whose forwarding header is believed: networks, and peers without an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    networks: Vec<IpNet>,
    unix: bool,
}

/// A header in which a proxy says for whom it asks.
#[derive(Clone, Debug)]
pub enum ForwardingHeader {
    /// A list to which each proxy appends the address of its peer.
    XForwardedFor,
    /// The same in the syntax of RFC 7239.
    Forwarded,
    /// A single address that the proxy overwrites, such as `X-Real-IP`.
    Single(FieldName),
}

/// The name of a header: a token of RFC 9110. Case does not matter.
#[derive(Clone, Debug)]
pub struct FieldName(String);

/// How many leading bits make an IPv6 network one client: 1 to 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Prefix(u8);

/// Why a setting of trust is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub struct TrustError(Kind);

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// Neither an address nor a network.
    NoNetwork(String),
    /// Bits behind the prefix; the network that was meant, perhaps.
    HostBits(String, IpNet),
    /// `0.0.0.0` or `::` by itself.
    Nobody(String),
    TooMany(usize),
    Field(String),
    Prefix(String),
}

impl Proxies {
    /// The network that makes a peer or an entry trusted, the first in the order given. `address` is canonical: IPv4 in
    /// IPv6 clothing is in no network.
    pub(crate) fn network_of(&self, address: IpAddr) -> Option<IpNet> {
        self.networks.iter().find(|network| network.contains(&address)).copied()
    }

    /// Whether a peer without an address is believed.
    pub(crate) fn unix(&self) -> bool {
        self.unix
    }

    /// The networks that hold every address of their family: whoever reaches the service then chooses who it is.
    pub fn everybody(&self) -> impl Iterator<Item = IpNet> {
        self.networks.iter().copied().filter(|network| network.prefix_len() == 0)
    }
}

impl FromStr for Proxies {
    type Err = TrustError;

    /// Reads addresses, networks and `unix`, with a comma between them.
    fn from_str(text: &str) -> Result<Self, TrustError> {
        let mut proxies = Self::default();
        for part in text.split(',').map(str::trim) {
            if part.eq_ignore_ascii_case("unix") {
                proxies.unix = true;
            } else {
                proxies.networks.push(network(part)?);
            }
        }
        match proxies.networks.len() {
            0..=MAX_NETWORKS => Ok(proxies),
            more => Err(TrustError(Kind::TooMany(more))),
        }
    }
}

/// An address or a network. One of IPv4-mapped IPv6 is the IPv4 network that it maps.
fn network(text: &str) -> Result<IpNet, TrustError> {
    let no_network = || TrustError(Kind::NoNetwork(text.to_owned()));
    // std refuses zones, leading zeros, blanks and brackets.
    let (address, prefix) = match text.split_once('/') {
        None => (text.parse().map_err(|_| no_network())?, None),
        Some((address, prefix)) => {
            let prefix = digits(prefix).ok_or_else(no_network)?;
            (address.parse().map_err(|_| no_network())?, Some(prefix))
        }
    };
    let network = match prefix {
        Some(prefix) => IpNet::new(address, prefix).map_err(|_| no_network())?,
        None if address.to_canonical().is_unspecified() => return Err(TrustError(Kind::Nobody(text.to_owned()))),
        None => IpNet::from(address),
    };
    if network != network.trunc() {
        return Err(TrustError(Kind::HostBits(text.to_owned(), network.trunc())));
    }
    // Without host bits, a mapped network keeps the whole of its first 96 bits.
    Ok(match (address.to_canonical(), network.prefix_len().checked_sub(MAPPED_PREFIX)) {
        (IpAddr::V4(mapped), Some(prefix)) if address.is_ipv6() => IpNet::new_assert(mapped.into(), prefix),
        _ => network,
    })
}

impl FromStr for ForwardingHeader {
    type Err = TrustError;

    fn from_str(text: &str) -> Result<Self, TrustError> {
        let name: FieldName = text.parse()?;
        Ok(if name.is("X-Forwarded-For") {
            Self::XForwardedFor
        } else if name.is("Forwarded") {
            Self::Forwarded
        } else {
            Self::Single(name)
        })
    }
}

impl ForwardingHeader {
    /// The name of the header.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::XForwardedFor => "X-Forwarded-For",
            Self::Forwarded => "Forwarded",
            Self::Single(name) => name.name(),
        }
    }
}

impl FieldName {
    /// The name, as it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Whether a header line of this name is the header. A name that begins with a blank is a folded line, not the header:
    /// here, at least. The HTTP crate trims lines, so one that a proxy has let through arrives as a header.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.0.eq_ignore_ascii_case(name)
    }
}

impl FromStr for FieldName {
    type Err = TrustError;

    fn from_str(text: &str) -> Result<Self, TrustError> {
        // RFC 9110, section 5.6.2.
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if !text.is_empty() && text.bytes().all(token) {
            Ok(Self(text.to_owned()))
        } else {
            Err(TrustError(Kind::Field(text.to_owned())))
        }
    }
}

impl Ipv6Prefix {
    /// In bits, 1 to 128.
    pub(crate) fn bits(self) -> u8 {
        self.0
    }
}

impl FromStr for Ipv6Prefix {
    type Err = TrustError;

    fn from_str(text: &str) -> Result<Self, TrustError> {
        let bits = digits(text).filter(|bits| (1..=128).contains(bits));
        bits.map(Self).ok_or_else(|| TrustError(Kind::Prefix(text.to_owned())))
    }
}

/// A number without a sign. That it has no leading zero either keeps `010` from meaning two things.
fn digits(text: &str) -> Option<u8> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !(text.len() > 1 && text.starts_with('0'));
    plain.then(|| text.parse().ok())?
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NETWORKS: &str = "addresses and networks with a comma between them, such as 10.0.0.0/8,::1, and unix";
        match &self.0 {
            Kind::NoNetwork(text) => {
                write!(f, "'{}' is neither an address nor a network; accepted are {NETWORKS}", text.escape_debug())
            }
            Kind::HostBits(text, network) => {
                write!(f, "'{text}' has bits set behind its prefix; the network around it is {network}")
            }
            Kind::Nobody(text) => {
                write!(f, "'{text}' is nobody's address; everybody is {text}/0, and that is seldom meant")
            }
            Kind::TooMany(given) => write!(f, "{given} networks are more than {MAX_NETWORKS}"),
            Kind::Field(text) => write!(
                f,
                "'{}' is no header name; accepted are letters, digits and !#$%&'*+-.^_`|~",
                text.escape_debug()
            ),
            Kind::Prefix(text) => {
                write!(
                    f,
                    "'{}' is no length of a prefix; accepted is a whole number from 1 to 128",
                    text.escape_debug()
                )
            }
        }
    }
}

impl std::error::Error for TrustError {}
