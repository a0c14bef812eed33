//! Which server keeps which client: one for all, or the nodes of a cluster by slot.
//!
//! Routed by hand, since the crate's blocking cluster client sleeps on the caller's thread for seconds and sends a charge
//! again after a timeout. A redirection is followed once, in the time that is left; a node that only now becomes known has
//! its breaker and connections like any other. The map is learnt by the keeper: at the start, after a redirection, while a
//! node is down, and now and then.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use log::debug;
use parking_lot::RwLock;
use redis::{Value, cmd};

use super::connection::{Connection, Dialer, Failure};
use super::keeper::Bell;
use super::node::Node;
use super::settings::{Address, Redis};

/// The slots of a cluster, by its specification.
const SLOTS: u16 = 16_384;

/// The most nodes that are kept: the specification's most, so that a server cannot fill the memory with redirections.
const MAX_NODES: usize = 1_000;

/// Between two looks at the map when nothing happens.
const REFRESH_EVERY: Duration = Duration::from_secs(30);

pub(super) struct Servers {
    dialer: Dialer,
    bell: Arc<Bell>,
    /// As named in the settings.
    seeds: Vec<Arc<Node>>,
    /// `None` for a single server.
    cluster: Option<Cluster>,
}

struct Cluster {
    map: RwLock<Arc<Map>>,
    outdated: AtomicBool,
    refreshed_at: RwLock<Option<Instant>>,
}

#[derive(Default)]
struct Map {
    nodes: HashMap<Address, Arc<Node>>,
    /// First and last slot, sorted, and who keeps them.
    ranges: Vec<(u16, u16, Arc<Node>)>,
}

impl Map {
    fn keeper_of(&self, slot: u16) -> Option<&Arc<Node>> {
        let index = self.ranges.partition_point(|&(first, ..)| first <= slot).checked_sub(1)?;
        let (_, last, node) = &self.ranges[index];
        (slot <= *last).then_some(node)
    }
}

impl Servers {
    pub(super) fn new(settings: &Redis, dialer: Dialer, bell: &Arc<Bell>) -> Self {
        let node = |address: &Address| Arc::new(Node::new(address.clone(), dialer.clone(), Arc::clone(bell)));
        let seeds: Vec<_> = settings.servers.iter().map(node).collect();
        let cluster = (seeds.len() > 1).then(|| Cluster {
            map: RwLock::default(),
            outdated: AtomicBool::new(true),
            refreshed_at: RwLock::new(None),
        });
        Self { dialer, bell: Arc::clone(bell), seeds, cluster }
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// Runs `talk` with the server that keeps this client.
    pub(super) fn talk<T>(
        &self,
        tag: &str,
        deadline: Instant,
        talk: impl Fn(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(cluster) = &self.cluster else { return self.seeds[0].talk(tag, deadline, false, &talk) };
        let map = Arc::clone(&cluster.map.read());
        let node = map.keeper_of(slot(tag)).ok_or(Failure::NoNode)?;
        let result = node.talk(tag, deadline, true, &talk);
        let Some((address, asking)) = result.as_ref().err().and_then(|failure| redirection(failure, &node.address))
        else {
            return result;
        };
        if !asking {
            cluster.outdated.store(true, Ordering::Release);
            self.bell.ring();
        }
        let node = self.node(cluster, address).ok_or(Failure::NoNode)?;
        node.talk(tag, deadline, true, |connection| {
            if asking {
                connection.call(&cmd("ASKING").get_packed_command(), deadline)?;
            }
            talk(connection)
        })
    }

    /// The node at an address, made known if need be.
    fn node(&self, cluster: &Cluster, address: Address) -> Option<Arc<Node>> {
        if let Some(node) = cluster.map.read().nodes.get(&address) {
            return Some(Arc::clone(node));
        }
        let mut map = cluster.map.write();
        if map.nodes.len() >= MAX_NODES {
            return None;
        }
        let made = || Arc::new(Node::new(address.clone(), self.dialer.clone(), Arc::clone(&self.bell)));
        let mut nodes = map.nodes.clone();
        let node = Arc::clone(nodes.entry(address.clone()).or_insert_with(made));
        *map = Arc::new(Map { nodes, ranges: map.ranges.clone() });
        Some(node)
    }

    /// The servers that keep clients.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        match &self.cluster {
            None => self.seeds.clone(),
            Some(cluster) => cluster.map.read().nodes.values().cloned().collect(),
        }
    }

    /// Whether every client's server answers, as far as is known.
    pub(super) fn all_up(&self) -> bool {
        let known = self.cluster.as_ref().is_none_or(|cluster| !cluster.map.read().ranges.is_empty());
        known && self.nodes().iter().all(|node| !node.is_down())
    }

    /// Looks names up, the first time. For the keeper.
    pub(super) fn resolve(&self) {
        for seed in &self.seeds {
            seed.resolve();
        }
    }

    /// Learns the map anew if that is due, from the first node that tells it. For the keeper; false when nobody did.
    pub(super) fn refresh_if_due(&self, timeout: Duration) -> bool {
        let Some(cluster) = &self.cluster else { return true };
        let recent = |at: Instant| at.elapsed() < REFRESH_EVERY;
        let down = self.nodes().iter().any(|node| node.is_down());
        if !down && !cluster.outdated.load(Ordering::Acquire) && cluster.refreshed_at.read().is_some_and(recent) {
            return true;
        }
        // Before asking: a redirection that comes meanwhile is a reason to ask again.
        cluster.outdated.store(false, Ordering::Release);
        let question = cmd("CLUSTER").arg("SLOTS").get_packed_command();
        // Those that are well first; a seed that has a new address may be the way back.
        let mut nodes = self.nodes();
        nodes.sort_by_key(|node| node.is_down());
        for node in nodes.iter().chain(&self.seeds) {
            match node.ask(&question, timeout).and_then(|reply| ranges(&reply, &node.address).ok_or(Failure::Reply)) {
                Ok(ranges) => {
                    self.learn(cluster, ranges);
                    return true;
                }
                Err(failure) => debug!("{} does not tell the map of the cluster: {failure}", node.address),
            }
        }
        self.resolve();
        cluster.outdated.store(true, Ordering::Release);
        false
    }

    fn learn(&self, cluster: &Cluster, ranges: Vec<(u16, u16, Address)>) {
        let old = Arc::clone(&cluster.map.read());
        let mut map = Map::default();
        for (first, last, address) in ranges {
            if map.nodes.len() >= MAX_NODES {
                break;
            }
            let known = || {
                let node = old.nodes.get(&address).cloned().unwrap_or_else(|| {
                    let node = Node::new(address.clone(), self.dialer.clone(), Arc::clone(&self.bell));
                    node.resolve();
                    Arc::new(node)
                });
                (address.clone(), node)
            };
            let node = match map.nodes.get(&address) {
                Some(node) => Arc::clone(node),
                None => {
                    let (address, node) = known();
                    map.nodes.insert(address, Arc::clone(&node));
                    node
                }
            };
            map.ranges.push((first, last, node));
        }
        map.ranges.sort_by_key(|&(first, ..)| first);
        *cluster.map.write() = Arc::new(map);
        *cluster.refreshed_at.write() = Some(Instant::now());
    }
}

/// Where a server says that the client is, and whether it has to be told that we were sent.
fn redirection(failure: &Failure, from: &Address) -> Option<(Address, bool)> {
    let Failure::Server { code, detail } = failure else { return None };
    let asking = match code.as_str() {
        "MOVED" => false,
        "ASK" => true,
        _ => return None,
    };
    let (host, port) = detail.split_whitespace().nth(1)?.rsplit_once(':')?;
    Some((at(host, port.parse().ok()?, from)?, asking))
}

/// The address that a node tells. Without a host it is on the host that was asked.
fn at(host: &str, port: u16, from: &Address) -> Option<Address> {
    let host = match (host.trim_matches(['[', ']']), from) {
        ("" | "?", Address::Tcp { host, .. }) => host.clone(),
        ("" | "?", Address::Unix(_)) => return None,
        (host, _) => host.to_owned(),
    };
    Some(Address::Tcp { host, port })
}

/// The reply to CLUSTER SLOTS: for each range its first and last slot, then its nodes, the primary first.
fn ranges(reply: &Value, from: &Address) -> Option<Vec<(u16, u16, Address)>> {
    let Value::Array(entries) = reply else { return None };
    let number = |value: &Value| match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    let range = |entry: &Value| {
        let Value::Array(entry) = entry else { return None };
        let [first, last, Value::Array(primary), ..] = &entry[..] else { return None };
        let host = match primary.first()? {
            Value::BulkString(host) => str::from_utf8(host).ok()?,
            Value::Nil => "",
            _ => return None,
        };
        Some((number(first)?, number(last)?, at(host, number(primary.get(1)?)?, from)?))
    };
    entries.iter().map(range).collect()
}

/// The slot of a client: CRC16 (XMODEM) of what stands in the braces of its keys.
fn slot(tag: &str) -> u16 {
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    });
    crc % SLOTS
}
