//! Where the shared store is and how long to wait for it, checked when it is written down and not when it is needed.
//!
//! No message and no `Debug` of this room shows a password.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, cmd, parse_redis_url};

use super::script::MAX_EXACT;
use crate::clock::Clock;
use crate::store::OnStoreError;

/// How long one decision waits for the store, unless told otherwise.
const TIMEOUT: Duration = Duration::from_millis(100);

/// The longest that it may be told to wait: whoever asked has gone by then, and threads wait with it.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest first part of the keys, which every key pays for.
const MAX_PREFIX: usize = 64;

/// The most nodes that may be named; a cluster makes the others known.
const MAX_URLS: usize = 64;

/// A Redis, or a cluster of them, that keeps one limit for many instances.
///
/// Every instance with the same servers, prefix and policies enforces one limit together. The clock is the server's. While
/// it does not answer, each instance does what [`OnStoreError`] says.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{OnStoreError, Redis};
///
/// let redis = Redis::new("redis://:pass%2Fword@127.0.0.1:6379/0")?
///     .timeout(Duration::from_millis(50))?
///     .key_prefix("shop")?
///     .on_error(OnStoreError::Closed);
/// # Ok::<(), tollgate::RedisError>(())
/// ```
#[derive(Clone)]
pub struct Redis {
    pub(super) servers: Vec<Address>,
    pub(super) access: Access,
    pub(super) timeout: Duration,
    pub(super) prefix: String,
    pub(super) on_error: OnStoreError,
    pub(super) clock: Option<Arc<dyn Clock>>,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// What every connection starts with.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) tls: bool,
    user: Option<String>,
    password: Option<String>,
    database: i64,
}

impl Access {
    /// The commands that log in and choose the database.
    pub(super) fn greeting(&self) -> Vec<Vec<u8>> {
        let mut commands = Vec::new();
        if let Some(password) = &self.password {
            let mut auth = cmd("AUTH");
            if let Some(user) = &self.user {
                auth.arg(user);
            }
            commands.push(auth.arg(password).get_packed_command());
        }
        if self.database != 0 {
            commands.push(cmd("SELECT").arg(self.database).get_packed_command());
        }
        commands
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("servers", &self.servers)
            .field("timeout", &self.timeout)
            .field("key_prefix", &self.prefix)
            .field("on_error", &self.on_error)
            .finish_non_exhaustive()
    }
}

impl Redis {
    /// The store at this URL: `redis://[USER][:PASSWORD]@HOST[:PORT][/DATABASE]`, `rediss://` for TLS, or
    /// `unix:///PATH[?db=DATABASE&user=USER&pass=PASSWORD]`. Several, with commas between them, name nodes of a cluster.
    ///
    /// Does not connect. In a user or password, `% # / ? @ : ,` are percent-encoded.
    ///
    /// # Errors
    /// When a URL is none of these, when `rediss://` is asked for and the feature `tls` is off, or when the nodes of a
    /// cluster differ in scheme, user or password.
    pub fn new(urls: &str) -> Result<Self, RedisError> {
        let urls: Vec<&str> = urls.split(',').map(str::trim).collect();
        if urls.len() > MAX_URLS {
            return Err(RedisError(Kind::TooManyUrls));
        }
        let (mut servers, mut access): (Vec<Address>, Option<Access>) = (Vec::new(), None);
        for url in &urls {
            let (server, its_access) = parse(url)?;
            if access.get_or_insert_with(|| its_access.clone()) != &its_access {
                return Err(RedisError(Kind::NodesDiffer));
            }
            if urls.len() > 1 && (its_access.database != 0 || matches!(server, Address::Unix(_))) {
                return Err(RedisError(Kind::NoNode(masked(url))));
            }
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
        // Two names of one node still mean a cluster.
        if urls.len() > 1 && servers.len() == 1 {
            servers.push(servers[0].clone());
        }
        Ok(Self {
            servers,
            access: access.expect("splitting a text gives at least one part"),
            timeout: TIMEOUT,
            prefix: "tollgate".into(),
            on_error: OnStoreError::default(),
            clock: None,
        })
    }

    /// Waits for the store so long at most in one decision, connecting included. Without this, 100 ms.
    ///
    /// # Errors
    /// When it is 0 or longer than a minute.
    pub fn timeout(mut self, timeout: Duration) -> Result<Self, RedisError> {
        if timeout.is_zero() || timeout > MAX_TIMEOUT {
            return Err(RedisError(Kind::Timeout));
        }
        self.timeout = timeout;
        Ok(self)
    }

    /// Starts every key with this text: 1 to 64 printable ASCII characters, no blank, no brace. Without this, `tollgate`.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn key_prefix(mut self, prefix: &str) -> Result<Self, RedisError> {
        // A brace would become the part of the key that chooses the node of a cluster.
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
        if prefix.is_empty() || prefix.len() > MAX_PREFIX || !prefix.bytes().all(plain) {
            return Err(RedisError(Kind::Prefix));
        }
        prefix.clone_into(&mut self.prefix);
        Ok(self)
    }

    /// Does this while the store does not answer. Without this, [`OnStoreError::Local`].
    #[must_use]
    pub fn on_error(mut self, on_error: OnStoreError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Counts by the wall time of this clock instead of the server's, and asks the server for every decision.
    ///
    /// For tests that set the time by hand. Keys still expire by the server's clock. Instances that pass their own time
    /// make every difference between their clocks part of the limit.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }
}

fn parse(text: &str) -> Result<(Address, Access), RedisError> {
    let unreadable = || RedisError(Kind::Url(masked(text)));
    let url = parse_redis_url(text).ok_or_else(unreadable)?;
    let tls = matches!(url.scheme(), "rediss" | "valkeys");
    let unix = matches!(url.scheme(), "unix" | "redis+unix" | "valkey+unix");
    // A password with one of `# ? /` that is not encoded shows as a fragment, a query or a path.
    if url.fragment().is_some() || (!unix && url.query().is_some()) {
        return Err(unreadable());
    }
    if tls && cfg!(not(feature = "tls")) {
        return Err(RedisError(Kind::NoTls));
    }
    // TLS is ours; the crate reads the rest of the URL.
    let plain = if tls { text.replacen("s://", "://", 1) } else { text.to_owned() };
    let info: ConnectionInfo = plain.as_str().into_connection_info().map_err(|_| unreadable())?;
    let login = info.redis_settings();
    let access = Access {
        tls,
        user: login.username().map(str::to_owned),
        password: login.password().map(str::to_owned),
        database: login.db(),
    };
    if access.database < 0 || (access.user.is_some() && access.password.is_none()) {
        return Err(unreadable());
    }
    let address = match info.addr() {
        ConnectionAddr::Tcp(host, port) => Address::Tcp { host: host.clone(), port: *port },
        ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
        _ => return Err(unreadable()),
    };
    Ok((address, access))
}

/// A URL as far as it may be shown: whatever stands before the last `@`, and every query, may be a secret.
fn masked(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let shown = match rest.rsplit_once('@') {
        Some((_, host)) => format!("***@{host}"),
        None => rest.to_owned(),
    };
    let shown = match shown.split_once(['?', '#']) {
        Some((start, _)) => format!("{start}?***"),
        None => shown,
    };
    if scheme.is_empty() { shown } else { format!("{scheme}://{shown}") }
}

/// Why a shared store cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisError(pub(super) Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Url(String),
    NoNode(String),
    NodesDiffer,
    TooManyUrls,
    NoTls,
    #[cfg(feature = "tls")]
    NoCertificates(String),
    Timeout,
    Prefix,
    Inexact(String),
}

impl fmt::Display for RedisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Url(url) => write!(
                f,
                "`{url}` is no URL of a Redis: accepted are redis://[USER][:PASSWORD]@HOST[:PORT][/DATABASE], the same with \
                 rediss:// for TLS, and unix:///PATH[?db=DATABASE&user=USER&pass=PASSWORD]; in a user or password, write \
                 % # / ? @ : , percent-encoded, such as %23 for #"
            ),
            Kind::NoNode(url) => write!(
                f,
                "`{url}` is no node of a cluster, which several URLs name: accepted are redis:// and rediss:// without a \
                 database other than 0"
            ),
            Kind::NodesDiffer => f.write_str("the nodes of a cluster have one scheme, one user and one password"),
            Kind::TooManyUrls => write!(f, "at most {MAX_URLS} URLs; a cluster makes its other nodes known"),
            Kind::NoTls => f.write_str(
                "rediss:// is TLS, and this build has none: build with the feature `tls`, or write redis:// for a \
                 connection that anybody on the way can read",
            ),
            #[cfg(feature = "tls")]
            Kind::NoCertificates(reason) => write!(
                f,
                "rediss:// needs the certificates that this machine trusts, and there are none ({reason}): install them, or \
                 name a file of them in SSL_CERT_FILE"
            ),
            Kind::Timeout => {
                write!(f, "the wait for the store is longer than 0 and at most {}s", MAX_TIMEOUT.as_secs())
            }
            Kind::Prefix => {
                write!(f, "a key prefix is 1 to {MAX_PREFIX} printable ASCII characters, without blanks and braces")
            }
            Kind::Inexact(policy) => write!(
                f,
                "a shared store counts exactly up to {MAX_EXACT}, and policy `{policy}` has a quota, or a number of tokens \
                 per period, above it: choose a smaller one"
            ),
        }
    }
}

impl std::error::Error for RedisError {}
