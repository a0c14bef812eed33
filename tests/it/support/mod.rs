//! What the tests stand on: the real program as a process, and a raw HTTP client.

pub(crate) mod client;
pub(crate) mod service;

pub(crate) use client::{Connection, Reply};
pub(crate) use service::Service;
