//! Panics as lines of the log, a few for each place.
//!
//! The HTTP crate panics on each connection that was reset before it was looked at; the standard hook would print each.

use std::collections::HashMap;
use std::panic;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::http::metrics::Counters;

/// Places that are told apart. There are fewer in the program; past this the rest counts as one.
const MAX_PLACES: usize = 256;

/// From here on every panic is one line of the log: the first of each place, and then each time its count has grown
/// tenfold. Those of the HTTP crate are counted. Call it once, before the server starts.
pub fn quiet_panics(counters: Arc<Counters>) {
    let seen: Mutex<HashMap<String, u64>> = Mutex::default();
    panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        if place.contains("tiny_http") {
            counters.crate_panics.add(1);
        }
        let count = {
            let mut seen = seen.lock();
            let place = if seen.len() < MAX_PLACES { place.as_str() } else { "" };
            let count = seen.entry(place.to_owned()).or_default();
            *count += 1;
            *count
        };
        if is_power_of_ten(count) {
            let payload = panic.payload();
            let text = payload.downcast_ref::<&str>().copied();
            let message = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
            let thread = std::thread::current();
            log::error!("panic number {count} at {place}, thread {:?}: {message}", thread.name().unwrap_or("unnamed"));
        }
    }));
}

fn is_power_of_ten(count: u64) -> bool {
    10_u64.checked_pow(count.ilog10()) == Some(count)
}
