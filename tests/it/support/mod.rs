//! What the tests stand on: the real program and a real Redis as processes, and a raw HTTP client.

pub(crate) mod client;
pub(crate) mod redis;
pub(crate) mod service;

pub(crate) use client::{Connection, Reply};
pub(crate) use service::Service;
