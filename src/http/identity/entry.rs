//! One entry of a forwarding header, and the address that is in it.
//!
//! The forms are those that proxies write: with a port, in brackets, with a zone. Everything else is malformed, and none
//! of it is guessed at: `2001:db8::1:443` is an address of eight groups, whatever its writer meant.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ForwardingHeader;

/// The blanks that HTTP allows around a value (RFC 9110, section 5.6.3). A line end is none.
pub(super) const BLANKS: [char; 2] = [' ', '\t'];

impl ForwardingHeader {
    /// Whether one line may hold several entries, with a comma between them.
    pub(super) fn is_list(&self) -> bool {
        !matches!(self, Self::Single(_))
    }

    /// The address in one entry, canonical; `None` when the entry is malformed.
    pub(super) fn address(&self, entry: &str) -> Option<IpAddr> {
        let node = if matches!(self, Self::Forwarded) { forwarded_for(entry)? } else { entry };
        let address = address(node.trim_matches(BLANKS))?.to_canonical();
        // Nobody has it, and it must not become a client that many can choose to be.
        (!address.is_unspecified()).then_some(address)
    }
}

/// The value of `for` in one element of `Forwarded`, RFC 7239 section 4.
///
/// The header was split at every comma, quoted or not: a quote that a client leaves open must not swallow what a proxy
/// appends. An element that such a comma cut in two is malformed, and so is one with an escape: no address needs it, and
/// with it a client's text that a proxy quotes could look like an element of its own.
fn forwarded_for(element: &str) -> Option<&str> {
    if element.contains('\\') {
        return None;
    }
    let mut found = None;
    let mut quoted = false;
    let outside = |c| {
        quoted ^= c == '"';
        c == ';' && !quoted
    };
    for pair in element.split(outside) {
        if let Some((name, value)) = pair.split_once('=')
            && name.trim_matches(BLANKS).eq_ignore_ascii_case("for")
            // Twice is forbidden, and nobody could say which one the proxy meant.
            && found.replace(value.trim_matches(BLANKS)).is_some()
        {
            return None;
        }
    }
    if quoted {
        return None;
    }
    let value: &str = found?;
    match value.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"'),
        None => Some(value),
    }
}

/// `1.2.3.4`, `1.2.3.4:567`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:567`; IPv6 with a zone, which is dropped.
fn address(text: &str) -> Option<IpAddr> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, behind) = rest.split_once(']')?;
        return (behind.is_empty() || is_port(behind)).then(|| ipv6(inside))?.map(IpAddr::V6);
    }
    // An address of IPv4 has no colon, so the first one is that of a port; one of IPv6 is not IPv4 up to there.
    let (before, behind) = text.split_at(text.find(':').unwrap_or(text.len()));
    match before.parse::<Ipv4Addr>() {
        Ok(address) => (behind.is_empty() || is_port(behind)).then_some(IpAddr::V4(address)),
        Err(_) => ipv6(text).map(IpAddr::V6),
    }
}

fn ipv6(text: &str) -> Option<Ipv6Addr> {
    match text.split_once('%') {
        None => text.parse().ok(),
        // A zone is an interface of the proxy's: it says nothing about who the client is.
        Some((address, zone)) => {
            let strange = |c: char| matches!(c, ':' | '/' | '[' | ']' | '%') || c.is_whitespace() || c.is_control();
            (!zone.is_empty() && !zone.contains(strange)).then(|| address.parse().ok())?
        }
    }
}

/// A colon and a number that a port can have.
fn is_port(text: &str) -> bool {
    let number = text.strip_prefix(':').unwrap_or_default();
    number.bytes().all(|byte| byte.is_ascii_digit()) && number.parse::<u16>().is_ok()
}
