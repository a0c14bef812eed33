//! Every fault of a server in every mode: what is answered and how soon, and that nobody pays twice.

use std::time::Duration;

use redis::{Connection, cmd};
use tollgate::{OnStoreError, Outcome, Policy, RateLimiter, StoreState};

use super::{YEAR, build, settings};
use crate::support::redis::{Server, eventually, timed};

const TIMEOUT: Duration = Duration::from_millis(200);

/// What a decision may take beyond the timeout: the rounding of the system's timers.
const MARGIN: Duration = Duration::from_millis(50);

/// More than any test asks for.
const QUOTA: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Dead,
    Frozen,
    RestartedEmpty,
    ReadOnlyReplica,
    Locked,
    Full,
}

impl Fault {
    const ALL: [Self; 6] =
        [Self::Dead, Self::Frozen, Self::RestartedEmpty, Self::ReadOnlyReplica, Self::Locked, Self::Full];

    /// `console` is a connection that is logged in already, whatever password is set.
    fn strike(self, server: &mut Server, console: &mut Connection) {
        match self {
            Self::Dead => server.kill(),
            Self::Frozen => server.signal("STOP"),
            Self::RestartedEmpty => {
                server.kill();
                server.restart();
            }
            Self::ReadOnlyReplica => server.ask("REPLICAOF 127.0.0.1 1"),
            Self::Locked => {
                let set = cmd("CONFIG").arg("SET").arg("requirepass").arg("secret").exec(console);
                // Whoever is logged in stays so: only new connections are asked.
                let cut = cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").exec(console);
                set.and(cut).expect("the console is served");
            }
            Self::Full => {
                server.ask::<()>("CONFIG SET maxmemory-policy noeviction");
                server.ask::<()>("SETRANGE filler 1000000 x");
                server.ask::<()>("CONFIG SET maxmemory 1mb");
            }
        }
    }

    fn lift(self, server: &mut Server, console: &mut Connection) {
        match self {
            Self::Dead => server.restart(),
            Self::Frozen => server.signal("CONT"),
            Self::RestartedEmpty => {}
            Self::ReadOnlyReplica => server.ask("REPLICAOF NO ONE"),
            Self::Locked => {
                cmd("CONFIG").arg("SET").arg("requirepass").arg("").exec(console).expect("the console is served");
            }
            Self::Full => {
                server.ask::<()>("DEL filler");
                server.ask::<()>("CONFIG SET maxmemory 0");
            }
        }
    }

    fn loses_everything(self) -> bool {
        matches!(self, Self::Dead | Self::RestartedEmpty)
    }
}

/// One instance, its one client, and what became of the client's requests.
struct Instance {
    fault: Fault,
    mode: OnStoreError,
    limiter: RateLimiter,
    /// Decided by the store, as far as it has not lost them since.
    in_store: u64,
    in_memory: u64,
    /// Given up at the timeout: the store may have decided, or may yet.
    lost: u64,
}

impl Instance {
    fn start(server: &Server, fault: Fault, mode: OnStoreError) -> Self {
        let redis = settings(server).timeout(TIMEOUT).and_then(|redis| redis.key_prefix(mode.name()));
        let policy = Policy::fixed_window(QUOTA, YEAR).expect("within the bounds");
        let limiter = build(RateLimiter::builder(policy), redis.expect("a prefix").on_error(mode));
        Self { fault, mode, limiter, in_store: 0, in_memory: 0, lost: 0 }
    }

    /// Asks once; true when the store decided.
    fn ask(&mut self) -> bool {
        let name = format!("{:?}, {}", self.fault, self.mode.name());
        let answered = self.limiter.store_calls().answered;
        let (decision, took) = timed(|| self.limiter.check("c"));
        assert!(took.own < TIMEOUT + MARGIN, "{name}: {:?} of {:?}", took.own, took.all);
        let by_store = self.limiter.store_calls().answered > answered;
        self.in_store += u64::from(by_store);
        self.lost += u64::from(!by_store && took.all >= TIMEOUT);
        let outcome = decision.outcome();
        match self.mode {
            _ if by_store => assert_eq!((outcome, decision.verdicts().len()), (Outcome::Allowed, 1), "{name}"),
            OnStoreError::Local => {
                self.in_memory += 1;
                assert_eq!(outcome, Outcome::Allowed, "{name}");
                assert_eq!(decision.verdicts()[0].remaining(), QUOTA - self.in_memory, "{name}");
            }
            OnStoreError::Open => {
                assert_eq!((outcome, decision.verdicts().len()), (Outcome::Allowed, 0), "{name}");
            }
            OnStoreError::Closed => assert!(matches!(outcome, Outcome::Unavailable { .. }), "{name}: {outcome:?}"),
        }
        by_store
    }

    /// What the store has charged the client.
    fn charged(&self, server: &Server) -> u64 {
        let mut keys = server.keys();
        keys.retain(|key| key.starts_with(&format!("{}:", self.mode.name())) && key.contains(":default:"));
        let [key] = &keys[..] else { panic!("{:?}: one client has one key: {keys:?}", self.fault) };
        let state: String = server.ask(&format!("GET {key}"));
        state.split(' ').nth(1).and_then(|count| count.parse().ok()).expect("a start and a count")
    }
}

#[test]
fn whatever_befalls_the_server_each_mode_answers_in_time_and_nobody_pays_twice() {
    for fault in Fault::ALL {
        let mut server = Server::start();
        let mut console = server.connect();
        let mut instances = OnStoreError::ALL.map(|mode| Instance::start(&server, fault, mode));
        for instance in &mut instances {
            eventually("the store decides", || instance.ask());
        }

        fault.strike(&mut server, &mut console);
        for instance in &mut instances {
            if fault.loses_everything() {
                (instance.in_store, instance.lost) = (0, 0);
            }
            for _ in 0..20 {
                let by_store = instance.ask();
                assert!(!by_store || fault == Fault::RestartedEmpty, "{fault:?}: the store decided");
            }
        }

        fault.lift(&mut server, &mut console);
        for instance in &mut instances {
            eventually(&format!("{fault:?}: the store decides again"), || instance.ask());
            assert_eq!(instance.limiter.store_state(), StoreState::Up, "{fault:?}");
            let (charged, known) = (instance.charged(&server), instance.in_store);
            let most = known + instance.lost;
            assert!((known..=most).contains(&charged), "{fault:?}: {charged} charged, of {known} to {most}");
        }
    }
}
