//! Everything that tollgate promises, as tests of its public face. One binary: it links once.

/// The real program and a real Redis as processes, and a raw HTTP client.
mod support;

/// `/check`, for a proxy that asks before it forwards.
mod check;
/// Who is kept, for how long, and how many.
mod clients;
/// What no honest client sends, line by line.
mod hostile;
/// Who is counted, through the service, and `tollgate explain`.
mod identity;
/// Faults that real limiters had.
mod known_faults;
/// The two laws and the bounds, on random histories.
mod laws;
/// What `/metrics` tells.
mod metrics;
/// Floods, slow clients, and connections without number.
mod overload;
/// Shared mode, on real servers.
mod redis;
/// Recorded traffic: the program as a process.
mod replay;
/// What a replay counts, against a naive count.
mod replay_report;
/// The service over sockets: routes, methods, and what an answer carries.
mod service;
/// The end of the process.
mod shutdown;
/// Many threads on one limiter.
mod threads;
/// The rules of the house that a compiler does not check.
mod tidy;
/// Exact histories that an independent model made.
mod vectors;
