//! What the tests stand on: the real program as a process, and a raw HTTP client.

pub mod client;
pub mod service;

pub use client::{Connection, Reply};
pub use service::Service;
