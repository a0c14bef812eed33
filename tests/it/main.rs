//! Everything that tollgate promises, as tests of its public face. One binary: it links once.

/// Exact histories that an independent model made.
mod vectors;
