//! Where the state of the clients is kept, and the one question that a store answers.
//!
//! *May this client spend this much now, under these policies?* Asked and, if so, spent in one step that no thread and no
//! other instance can come between. Not get, compare and set.

pub(crate) mod latency;
pub(crate) mod memory;
pub(crate) mod reaper;
#[cfg(feature = "redis")]
pub(crate) mod redis;

pub use latency::Latencies;

/// What a limiter with a shared store does while that store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreError {
    /// Enforces the same policies by itself, in memory: n instances let in n times the quota at most.
    #[default]
    Local,
    /// Lets everybody in.
    Open,
    /// Lets nobody in.
    Closed,
}

impl OnStoreError {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 3] = [Self::Local, Self::Open, Self::Closed];

    /// The name in settings and reports, such as `local`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

/// Where the decisions come from just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreState {
    /// The memory of this process: no store is shared.
    Memory,
    /// The shared store, all of it.
    Up,
    /// The shared store, or for a cluster at least one of its nodes, does not answer. Those whose state it keeps are
    /// decided like this.
    Down(OnStoreError),
}

/// What the shared store was asked since the start. All zero without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCalls {
    /// Decisions that the store made.
    pub answered: u64,
    /// Decisions that it should have made and did not, as it was down or too slow.
    pub failed: u64,
    /// Refusals repeated from memory, until the wait that the store told was over.
    pub repeated: u64,
    /// How long requests waited for it, answered or not.
    pub latencies: Latencies,
}
