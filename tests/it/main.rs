//! Everything that tollgate promises, as tests of its public face. One binary: it links once.

/// The real program and a real Redis as processes, and a raw HTTP client.
mod support;

/// Who is kept, for how long, and how many.
mod clients;
/// Faults that real limiters had.
mod known_faults;
/// The two laws and the bounds, on random histories.
mod laws;
/// Shared mode, on real servers.
mod redis;
/// The service over sockets: routes, methods, and what an answer carries.
mod service;
/// Many threads on one limiter.
mod threads;
/// The rules of the house that a compiler does not check.
mod tidy;
/// Exact histories that an independent model made.
mod vectors;
