//! Everything that tollgate promises, as tests of its public face. One binary: it links once.

/// The real program as a process, and a raw HTTP client.
mod support;

/// The two laws and the bounds, on random histories.
mod laws;
/// The service over sockets: routes, methods, and what an answer carries.
mod service;
/// Exact histories that an independent model made.
mod vectors;
