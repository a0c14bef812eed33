//! Where the state of the clients is kept, and the one question that a store answers.
//!
//! *May this client spend this much now, under these policies?* Asked and, if so, spent in one step that no thread and no
//! other instance can come between. Not get, compare and set.

pub(crate) mod memory;
pub(crate) mod reaper;
