//! Settings that are legal and surely not what was meant: one warning for each, when the service starts.

use super::{POLICY, Raw};
use crate::http::identity::Trust;
use crate::policy::Algorithm;

/// What to say about these settings. Each line names the setting as it was given.
pub(super) fn advice(raw: &Raw<'_>, algorithm: Algorithm, trust: &Trust) -> Vec<String> {
    let mut advice = Vec::new();
    let given = |variable| raw.given(variable).ok().flatten();

    let (used, not_used) = match algorithm {
        Algorithm::TokenBucket => (["CAPACITY", "REFILL_RATE"], ["LIMIT", "WINDOW"]),
        Algorithm::FixedWindow | Algorithm::SlidingWindowLog | Algorithm::SlidingWindowCounter => {
            (["LIMIT", "WINDOW"], ["CAPACITY", "REFILL_RATE"])
        }
    };
    for given in not_used.into_iter().filter_map(given) {
        let [one, other] = used.map(|variable| format!("{variable} ('{}')", raw.shown(POLICY, variable)));
        advice.push(format!(
            "{} is '{}', which {algorithm} does not use: its settings are {one} and {other}",
            given.name,
            given.shown()
        ));
    }

    let proxies = given("TRUSTED_PROXIES");
    for (network, given) in trust.proxies.everybody().zip(proxies.iter().cycle()) {
        advice.push(format!(
            "{} holds {network}: everybody is trusted, so everybody can be any client by writing {}",
            given.name,
            trust.header.name()
        ));
    }
    if let (Some(header), None) = (given("CLIENT_IP_HEADER"), proxies) {
        advice.push(format!(
            "{} is '{}', but TRUSTED_PROXIES is not set: nobody is trusted, so the header is never read",
            header.name,
            header.shown()
        ));
    }

    if given("REDIS_URL").is_none() {
        for given in ["REDIS_TIMEOUT", "ON_STORE_ERROR", "KEY_PREFIX"].into_iter().filter_map(given) {
            advice.push(format!(
                "{} is '{}', but REDIS_URL is not set: no limit is shared, it is kept in memory alone",
                given.name,
                given.shown()
            ));
        }
    }
    advice
}
