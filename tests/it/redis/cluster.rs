//! Three nodes on the loopback.

use std::time::Duration;

use tollgate::{OnStoreError, Outcome, Policy, RateLimiter, Redis, StoreState};

use super::{YEAR, build};
use crate::support::redis::{Server, eventually};

const SLOTS: u16 = 16_384;

struct Cluster {
    nodes: Vec<Server>,
}

fn node() -> Server {
    let bus = crate::support::redis::free_port().to_string();
    let options = [
        ["--cluster-enabled", "yes"],
        ["--cluster-require-full-coverage", "no"],
        ["--cluster-node-timeout", "2000"],
        ["--cluster-port", &bus],
        // A replica is sent its copy at once.
        ["--repl-diskless-sync-delay", "0"],
    ];
    Server::on_tcp(&options.concat())
}

fn meet(node: &Server, other: &Server) {
    let bus: Vec<String> = other.ask("CONFIG GET cluster-port");
    node.ask::<()>(&format!("CLUSTER MEET 127.0.0.1 {} {}", other.port(), bus[1]));
}

impl Cluster {
    fn start() -> Self {
        let nodes: Vec<_> = (0..3).map(|_| node()).collect();
        for (index, node) in (0..).zip(&nodes) {
            let share = |index: u16| u16::try_from(u32::from(SLOTS) * u32::from(index) / 3).expect("a slot");
            node.ask::<()>(&format!("CLUSTER ADDSLOTSRANGE {} {}", share(index), share(index + 1) - 1));
            // Each with each: that one tells of another takes seconds.
            nodes.iter().filter(|other| other.url() < node.url()).for_each(|other| meet(node, other));
        }
        for node in &nodes {
            eventually("the cluster is formed", || {
                let info: String = node.ask("CLUSTER INFO");
                info.contains("cluster_state:ok") && info.contains("cluster_slots_assigned:16384")
            });
        }
        Self { nodes }
    }

    /// One more node, which copies this one and has caught up.
    fn add_replica_of(&self, primary: usize) -> Server {
        let (primary, replica) = (&self.nodes[primary], node());
        self.nodes.iter().for_each(|node| meet(&replica, node));
        let id: String = primary.ask("CLUSTER MYID");
        eventually("the nodes know each other", || {
            replica.ask::<String>("CLUSTER NODES").contains(&id)
                && replica.ask::<String>("CLUSTER INFO").contains(":ok")
        });
        replica.ask::<()>(&format!("CLUSTER REPLICATE {id}"));
        eventually("the replica has caught up", || {
            replica.ask::<String>("INFO replication").contains("master_link_status:up")
        });
        // Those that vote for it have to know whom it copies.
        eventually("every node knows the replica", || {
            self.nodes.iter().all(|node| {
                let nodes: String = node.ask("CLUSTER NODES");
                nodes.lines().any(|line| line.contains(" slave ") && line.contains(&id))
            })
        });
        replica
    }

    fn urls(&self) -> String {
        self.nodes.iter().map(Server::url).collect::<Vec<_>>().join(",")
    }

    fn limiter(&self, urls: &str) -> RateLimiter {
        assert!(self.nodes.len() == 3);
        let policies = ["a", "b"].map(|name| {
            Policy::fixed_window(10, YEAR).and_then(|policy| policy.named(name)).expect("within the bounds")
        });
        let policies = tollgate::Policies::new(policies.into()).expect("two names");
        // A busy machine does not reach the timeout, and a dead node says no at once.
        let redis = Redis::new(urls).and_then(|redis| redis.timeout(Duration::from_secs(5)));
        build(RateLimiter::builder(policies), redis.expect("URLs").on_error(OnStoreError::Closed))
    }

    /// The node that keeps this client's keys.
    fn home(&self, client: &str) -> usize {
        let holds = |node: &Server| node.keys().iter().any(|key| key.contains(&tag(client)));
        self.nodes.iter().position(holds).expect("the client is somewhere")
    }
}

/// As the keys name it.
fn tag(client: &str) -> String {
    let address: std::net::Ipv4Addr = client.parse().expect("clients of these tests are addresses");
    format!("{{{address}}}")
}

fn clients() -> Vec<String> {
    (0..60).map(|number| format!("192.0.2.{number}")).collect()
}

fn remaining(limiter: &RateLimiter, client: &str) -> Option<u64> {
    let address: std::net::IpAddr = client.parse().expect("an address");
    let decision = limiter.check(address);
    decision.is_allowed().then(|| decision.verdicts()[0].remaining())
}

#[test]
fn every_client_is_counted_on_its_node_and_a_slot_that_moves_takes_its_count_along() {
    let cluster = Cluster::start();
    let limiters = [cluster.limiter(&cluster.urls()), cluster.limiter(&format!("{0},{0}", cluster.nodes[1].url()))];
    for client in clients() {
        assert_eq!(remaining(&limiters[0], &client), Some(9), "{client}");
        assert_eq!(remaining(&limiters[1], &client), Some(8), "{client}");
    }
    assert!((0..3).all(|node| clients().iter().any(|client| cluster.home(client) == node)), "all nodes are used");

    let client = &clients()[0];
    let from = cluster.home(client);
    let to = (from + 1) % 3;
    let [from, to] = [&cluster.nodes[from], &cluster.nodes[to]];
    let ids: [String; 2] = [from, to].map(|node| node.ask("CLUSTER MYID"));
    let slot: u16 = from.ask(&format!("CLUSTER KEYSLOT {}", tag(client)));
    to.ask::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    from.ask::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
    // In the midst of the move: the keys are still there.
    assert_eq!(remaining(&limiters[0], client), Some(7));
    let port = to.port();
    for key in from.keys().iter().filter(|key| key.contains(&tag(client))) {
        from.ask::<()>(&format!("MIGRATE 127.0.0.1 {port} {key} 0 1000"));
    }
    // The node that has them no longer says ASK.
    assert_eq!(remaining(&limiters[0], client), Some(6));
    for node in [to, from] {
        node.ask::<()>(&format!("CLUSTER SETSLOT {slot} NODE {}", ids[1]));
    }
    assert_eq!(remaining(&limiters[0], client), Some(5));
    assert_eq!(remaining(&limiters[1], client), Some(4));
    for limiter in &limiters {
        assert_eq!((limiter.store_state(), limiter.store_calls().failed), (StoreState::Up, 0));
    }
}

#[test]
fn a_dead_node_costs_its_own_clients_alone() {
    let mut cluster = Cluster::start();
    let limiter = cluster.limiter(&cluster.urls());
    for client in clients() {
        assert_eq!(remaining(&limiter, &client), Some(9));
    }
    let homes: Vec<_> = clients().iter().map(|client| cluster.home(client)).collect();
    cluster.nodes[1].kill();
    for _ in 0..2 {
        for (client, home) in clients().iter().zip(&homes) {
            assert_eq!(remaining(&limiter, client).is_some(), *home != 1, "{client} on node {home}");
        }
    }
    assert_eq!(limiter.store_state(), StoreState::Down(OnStoreError::Closed));
}

#[test]
fn one_url_of_a_node_that_does_not_keep_the_client_is_an_outage_and_no_false_refusal() {
    let cluster = Cluster::start();
    let all = cluster.limiter(&cluster.urls());
    let limiter = cluster.limiter(cluster.nodes[0].url());
    let elsewhere = clients().into_iter().find(|client| {
        remaining(&all, client);
        cluster.home(client) != 0
    });
    let address: std::net::IpAddr = elsewhere.expect("a client of another node").parse().expect("an address");
    for _ in 0..3 {
        assert!(matches!(limiter.check(address).outcome(), Outcome::Unavailable { .. }));
    }
    assert_eq!(limiter.store_state(), StoreState::Down(OnStoreError::Closed));
}

#[test]
fn a_replica_that_is_promoted_serves_the_clients_of_its_node_within_seconds() {
    let cluster = Cluster::start();
    let limiter = cluster.limiter(&cluster.urls());
    for client in clients() {
        assert_eq!(remaining(&limiter, &client), Some(9));
    }
    let homes: Vec<_> = clients().iter().map(|client| cluster.home(client)).collect();
    let mut replica = cluster.add_replica_of(1);

    // In good order: the two swap their parts, and no count is lost.
    replica.ask::<()>("CLUSTER FAILOVER");
    eventually("the replica is promoted", || is_primary(&replica));
    for client in clients() {
        assert_eq!(remaining(&limiter, &client), Some(8), "{client}");
    }
    assert_eq!((limiter.store_state(), limiter.store_calls().failed), (StoreState::Up, 0));

    // In an emergency.
    eventually("the old primary copies the new one", || {
        cluster.nodes[1].ask::<String>("INFO replication").contains("master_link_status:up")
    });
    replica.kill();
    cluster.nodes[1].ask::<()>("CLUSTER FAILOVER TAKEOVER");
    for (client, home) in clients().iter().zip(&homes) {
        let mut left = None;
        eventually("the client is counted", || {
            left = remaining(&limiter, client);
            left.is_some()
        });
        assert!(left == Some(7) || *home == 1, "{client} on node {home}: {left:?}");
    }
    eventually("the dead node is forgotten", || limiter.store_state() == StoreState::Up);
}

fn is_primary(node: &Server) -> bool {
    node.ask::<String>("INFO replication").contains("role:master")
}
