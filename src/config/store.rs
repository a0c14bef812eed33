//! The settings of shared mode.

use super::{ConfigError, Raw, Setting, parse, setting};
use crate::store::OnStoreError;
use crate::store::redis::Redis;

pub(super) const STORE: &[Setting] = &[
    setting(
        "REDIS_URL",
        None,
        "Share the limit with every instance of the same URL, prefix and policies: redis://, rediss:// or unix://; \
         several with commas between them name the nodes of a Redis Cluster",
    ),
    setting("REDIS_TIMEOUT", Some("100ms"), "The longest that one decision waits for the store, connecting included"),
    setting(
        "ON_STORE_ERROR",
        Some("local"),
        "While the store does not answer: local (limit in this instance's memory), open (let through) or closed (503)",
    ),
    setting("KEY_PREFIX", Some("tollgate"), "First part of every key in the store"),
];

/// The store, if one is shared. Its other settings must be right even when it is not.
pub(super) fn read(raw: &Raw<'_>) -> Result<Option<Redis>, ConfigError> {
    let url = raw.given("REDIS_URL")?;
    // The value is not quoted here: the error shows it with the password masked.
    let redis = match &url {
        Some(given) => {
            Redis::new(&given.text).map_err(|error| ConfigError::Setting(format!("{}: {error}", given.name)))
        }
        None => Ok(Redis::new("redis://127.0.0.1").expect("a URL")),
    }?;
    let on_error = raw.read(STORE, "ON_STORE_ERROR", |text| {
        let found = OnStoreError::ALL.into_iter().find(|mode| mode.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| "local, open or closed".into())
    })?;
    let timeout = raw.in_force(STORE, "REDIS_TIMEOUT")?;
    let redis = redis.timeout(timeout.parse(parse::window)?).map_err(|error| timeout.problem(&error.to_string()))?;
    let prefix = raw.in_force(STORE, "KEY_PREFIX")?;
    let redis = redis.key_prefix(&prefix.text).map_err(|error| prefix.problem(&error.to_string()))?;
    Ok(url.map(|_| redis.on_error(on_error)))
}
