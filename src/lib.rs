//! A rate limiter to embed, to run on a laptop, or to put in front of a service.

pub(crate) mod algorithm;
mod client;
mod clock;
#[cfg(feature = "server")]
pub mod config;
mod decision;
#[cfg(feature = "server")]
pub mod http;
mod limiter;
mod policy;
pub(crate) mod store;

pub use client::ClientKey;
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use decision::{Decision, Outcome, Verdict};
pub use limiter::{Builder, Clients, RateLimiter};
pub use policy::{Algorithm, MAX_LOG_LIMIT, MAX_POLICIES, MAX_SPAN, Policies, Policy, PolicyError};
