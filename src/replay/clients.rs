//! The clients of an input: each gets a number, counted from 0 in the order of their first requests.
//!
//! The limiters of a replay know clients by number, so that a name is hashed once for each line, however many limiters ask.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hashbrown::HashTable;

use crate::client::ClientKey;

/// All names, end to end.
pub(super) struct Clients {
    numbers: HashTable<u32>,
    names: Vec<u8>,
    ends: Vec<usize>,
    hasher: RandomState,
    /// Names that are IPv6 addresses are one client when they share so many leading bits.
    ipv6_prefix: u8,
    network: Vec<u8>,
}

impl Clients {
    /// Nobody yet. Addresses in access logs are grouped like those of connections; see [`Clients::of_address`].
    pub(super) fn new(ipv6_prefix: u8) -> Self {
        Self {
            numbers: HashTable::new(),
            names: Vec::new(),
            ends: Vec::new(),
            hasher: RandomState::new(),
            ipv6_prefix,
            network: Vec::new(),
        }
    }

    /// The number of a client whose name may be an address, or `None` beyond the 32 bits of a number.
    pub(super) fn of_address(&mut self, name: &[u8]) -> Option<u32> {
        let mut network = std::mem::take(&mut self.network);
        let grouped = write_network(name, self.ipv6_prefix, &mut network);
        let number = self.of(if grouped { &network } else { name });
        self.network = network;
        number
    }

    /// The number of a client, or `None` beyond the 32 bits of a number.
    pub(super) fn of(&mut self, name: &[u8]) -> Option<u32> {
        let Self { numbers, names, ends, hasher, .. } = self;
        let hash = hasher.hash_one(name);
        if let Some(&number) = numbers.find(hash, |&number| named(names, ends, number) == name) {
            return Some(number);
        }
        let number = u32::try_from(ends.len()).ok()?;
        names.extend_from_slice(name);
        ends.push(names.len());
        numbers.insert_unique(hash, number, |&number| hasher.hash_one(named(names, ends, number)));
        Some(number)
    }

    /// The number of a client that has come, by the name that [`Clients::name`] tells or by an address of its network.
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        let mut network = Vec::new();
        write_network(name.as_bytes(), self.ipv6_prefix, &mut network);
        let is = |number: u32| [name.as_bytes(), &network].contains(&named(&self.names, &self.ends, number));
        (0..).zip(&self.ends).map(|(number, _)| number).find(|&number| is(number))
    }

    /// The name of a client, as text.
    pub(super) fn name(&self, number: u32) -> String {
        String::from_utf8_lossy(named(&self.names, &self.ends, number)).into_owned()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }
}

/// Writes the network of a name that is an IPv6 address, or the IPv4 address that is mapped into it; false for other names.
fn write_network(name: &[u8], ipv6_prefix: u8, network: &mut Vec<u8>) -> bool {
    network.clear();
    let colon = memchr::memchr(b':', name).is_some();
    let address = colon.then(|| str::from_utf8(name).ok()?.parse::<Ipv6Addr>().ok()).flatten();
    let Some(address) = address else { return false };
    // Writing to memory does not fail.
    let _ = match ClientKey::network(address.into(), ipv6_prefix).address() {
        Some(IpAddr::V6(first)) if ipv6_prefix < 128 => write!(network, "{first}/{ipv6_prefix}"),
        Some(whole) => write!(network, "{whole}"),
        None => unreachable!("a key made from an address has one"),
    };
    true
}

/// A number as the key that limiters take: four bytes, for which their map has a table of its own.
pub(super) fn key(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(number)
}

fn named<'a>(names: &'a [u8], ends: &[usize], number: u32) -> &'a [u8] {
    let index = number as usize;
    let start = if index == 0 { 0 } else { ends[index - 1] };
    &names[start..ends[index]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number_and_two_names_never_share_one() {
        let mut clients = Clients::new(64);
        let names: Vec<String> = (0..1_000).map(|index| format!("client {}", index * index)).collect();
        for _ in 0..2 {
            for (number, name) in (0..).zip(&names) {
                assert_eq!(clients.of(name.as_bytes()), Some(number));
                assert_eq!(&clients.name(number), name);
            }
        }
        assert_eq!(clients.len(), names.len());
    }

    #[test]
    fn addresses_are_grouped_as_the_service_groups_them() {
        let mut clients = Clients::new(64);
        let one_client = ["2001:db8::1", "2001:0DB8:0:0:ffff::", "2001:db8:0:0:1:2:3:4"];
        for address in one_client {
            assert_eq!(clients.of_address(address.as_bytes()), Some(0), "{address}");
        }
        assert_eq!(clients.name(0), "2001:db8::/64");
        assert_eq!(clients.of_address(b"2001:db8:0:1::1"), Some(1));
        assert_eq!(clients.of_address(b"203.0.113.7"), Some(2));
        assert_eq!(clients.of_address(b"::ffff:203.0.113.7"), Some(2));
        assert_eq!(clients.of_address(b"host:8080"), Some(3));
        for name in ["2001:db8::/64", "2001:db8::99"] {
            assert_eq!(clients.find(name), Some(0), "{name}");
        }
        assert_eq!(clients.find("2001:db8:0:2::1"), None);
        assert_eq!(Clients::new(128).of_address(b"2001:db8::1"), Some(0));
    }
}
