//! A rate limiter to embed, to run on a laptop, or to put in front of a service.
//!
//! A [`RateLimiter`] is made from a [`Policy`], or several, and asked for every request of a [`ClientKey`]. Its
//! [`Decision`] tells whether the request may pass, what remains, and the exact wait of a refusal: after that wait the same
//! request is let in, a microsecond sooner it is not.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{Policy, RateLimiter};
//!
//! let limiter = RateLimiter::new(Policy::sliding_window_log(2, Duration::from_secs(60))?);
//! assert!(limiter.check("ada").is_allowed());
//! assert!(limiter.check("ada").is_allowed());
//! let refusal = limiter.check("ada");
//! assert!(!refusal.is_allowed());
//! assert!(refusal.retry_after() <= Some(Duration::from_secs(60)));
//! assert!(limiter.check("bob").is_allowed());
//! # Ok::<(), tollgate::PolicyError>(())
//! ```
//!
//! # The four algorithms
//!
//! | | lets in, for any traffic | state of a client |
//! |---|---|---|
//! | [token bucket](Policy::token_bucket) | at most C + N·T/P in any time T | level, time |
//! | [fixed window](Policy::fixed_window) | at most L in each window, 2L round a border | window, count |
//! | [sliding window log](Policy::sliding_window_log) | at most L in any stretch as long as the window | a time for each request |
//! | [sliding window counter](Policy::sliding_window_counter) | about L; 2L in the worst case | window, two counts |
//!
//! # Two laws
//!
//! They hold for every algorithm and for several policies at once, and are tested on random histories.
//!
//! 1. *The promise.* Refused at t with wait d: the same request is let in at t + d and refused at t + d − 1 µs, if nothing
//!    else was let in between.
//! 2. *Forgetting is invisible.* When the whole quota is back, a client decides exactly like one that was never seen. Then,
//!    and only then, its state is dropped. The one exception is the bound on the number of clients.
//!
//! # Code map
//!
//! Each room uses only those above it. A test holds the code to this list.
//!
//! | room | job |
//! |---|---|
//! | `clock` | time in whole microseconds |
//! | `policy` | an algorithm with its settings, validated once |
//! | `decision` | what a limiter answers |
//! | `client` | who is counted |
//! | `algorithm` | one file each: pure arithmetic over settings, state, time and cost |
//! | `store` | the striped map of clients, the reaper that sweeps it, and the Redis that instances share |
//! | `limiter` | [`RateLimiter`], which puts these together |
//! | `http` | the service: routes and headers as plain values, and the one room that knows tiny_http |
//! | `replay` | recorded traffic on a virtual clock: input, run, report |
//! | `config` | flags and environment |
//!
//! Words: a *policy* is an algorithm and its settings; the *quota* is how much it allows; a *cost* is what a request spends;
//! *remaining*, *retry_after* and *reset_after* are what is left, the wait of a refusal, and the wait until the whole quota
//! is back.

pub(crate) mod algorithm;
mod client;
mod clock;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod config;
mod decision;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod http;
mod limiter;
mod policy;
#[cfg(feature = "server")]
pub mod replay;
pub(crate) mod store;

pub use client::ClientKey;
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use decision::{Decision, Outcome, Verdict};
#[cfg(feature = "server")]
pub use http::server::Guard;
pub use limiter::{Builder, Clients, RateLimiter};
pub use policy::{Algorithm, MAX_LOG_LIMIT, MAX_POLICIES, MAX_SPAN, Policies, Policy, PolicyError};
#[cfg(feature = "redis")]
pub use store::redis::{Redis, RedisError};
pub use store::{Latencies, OnStoreError, StoreCalls, StoreState};
