//! Settings: text from flags and environment, parsed once into the types of the rooms that use them.
//!
//! Two steps. First every setting keeps its raw text and where it came from: a flag wins over its variable, and an empty
//! variable is not set. Then each room's settings are read from that, and the first text that does not parse is an error
//! that names the setting, quotes the text and says what is accepted. Nothing falls back in silence.

mod advice;
mod identity;
mod parse;
mod replay;
mod store;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};

use crate::http::headers::{FAMILIES_ACCEPTED, Families};
use crate::http::routes::{self, DENY_STATUS_ACCEPTED, DenyStatus};
use crate::http::server::Listen;
use crate::limiter::{Builder, RateLimiter};
use crate::policy::{Algorithm, Policies, Policy, PolicyError};

pub use identity::Explain;

/// One setting: `PORT` is also the flag `--port`.
struct Setting {
    variable: &'static str,
    /// What is taken when it is not set; for some settings that is nothing.
    default: Option<&'static str>,
    help: &'static str,
}

const fn setting(variable: &'static str, default: Option<&'static str>, help: &'static str) -> Setting {
    Setting { variable, default, help }
}

/// Where to listen.
const LISTEN: &[Setting] = &[
    setting("PORT", Some("8080"), "TCP port; 0 takes a free one"),
    setting("HOST", Some("127.0.0.1"), "Address to listen on, IPv4 or IPv6"),
];

/// What is limited, and how.
const POLICY: &[Setting] = &[
    setting(
        "ALGORITHM",
        Some("token-bucket"),
        "token-bucket, fixed-window, sliding-window-log or sliding-window-counter",
    ),
    setting("CAPACITY", Some("10"), "Token bucket: most tokens a bucket holds"),
    setting("REFILL_RATE", Some("1"), "Token bucket: tokens per second (2, 0.5), or an amount per duration (100/1m)"),
    setting("LIMIT", Some("10"), "Windows: requests allowed per window"),
    setting("WINDOW", Some("60s"), "Windows: length, such as 250ms, 10s, 1m, 2h, 1d; a bare number is seconds"),
    setting(
        "POLICIES",
        None,
        "Several limits at once, instead of the settings above: NAME=token-bucket:CAPACITY:REFILL_RATE \
         or NAME=ALGORITHM:LIMIT/WINDOW, with ; between them",
    ),
];

/// How the service works and what it says.
const SERVICE: &[Setting] = &[
    setting("MAX_CLIENTS", Some("1000000"), "Most clients whose state is kept in memory"),
    setting("WORKERS", None, "Threads that answer requests; chosen from the cores when not set"),
    setting("IDLE_TIMEOUT", Some("30s"), "A connection that sends no whole request for this long is closed"),
    setting("WRITE_TIMEOUT", Some("5s"), "A connection that does not take its answer for this long is closed"),
    setting(
        "DENY_STATUS",
        Some("429"),
        "Status of a refusal on /check: 429, or 403 for proxies that understand no other",
    ),
    setting("RATE_LIMIT_HEADERS", Some("ietf,legacy"), "Header families sent: ietf, legacy, both, or none"),
    setting("RUST_LOG", Some("info"), "Log filter, as env_logger reads it; logs go to standard error"),
];

impl Setting {
    fn flag(&self) -> String {
        self.variable.to_ascii_lowercase().replace('_', "-")
    }

    fn arg(&self) -> Arg {
        let default = self.default.map(|default| format!(" [default: {default}]")).unwrap_or_default();
        Arg::new(self.variable)
            .long(self.flag())
            .value_name("VALUE")
            .allow_hyphen_values(true)
            .help(format!("{} [env: {}]{default}", self.help, self.variable))
    }
}

/// What the program is asked to do.
pub enum Task {
    /// Run the HTTP service.
    Serve(Box<Serve>),
    /// Say who the client of a request would be.
    Explain(Explain),
    /// Run recorded traffic through the algorithms.
    Replay(Box<Replay>),
}

pub use replay::{Replay, Source};

/// The settings of the service, each room's apart.
pub struct Serve {
    /// Where to listen.
    pub listen: Listen,
    /// What is limited, in how much memory, and by which store.
    pub limiter: Builder,
    /// How clients are told apart, and what they are told.
    pub service: routes::Settings,
    /// The log filter.
    pub log: String,
    /// Warnings about what is accepted and surely not meant.
    pub advice: Vec<String>,
}

/// Why the program does not start.
#[derive(Debug)]
pub enum ConfigError {
    /// Not an error: `--help` or `--version`, or one that clap has told already with its usage.
    Clap(clap::Error),
    /// A setting that does not parse, or settings that make no sense together.
    Setting(String),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clap(error) => error.fmt(f),
            Self::Setting(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Reads the command line and the environment.
///
/// # Errors
/// When a flag is unknown or a setting is not accepted; also for `--help` and `--version`, whose text clap brings.
pub fn read(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Task, ConfigError> {
    let matches = command().try_get_matches_from(arguments).map_err(ConfigError::Clap)?;
    match matches.subcommand() {
        None => serve(&Raw { matches: &matches, environment: &environment }),
        Some(("serve", matches)) => serve(&Raw { matches, environment: &environment }),
        Some(("explain", matches)) => identity::explain(&Raw { matches, environment: &environment }),
        Some(("replay", matches)) => replay::read(&Raw { matches, environment: &environment }),
        Some((other, _)) => unreachable!("{other} is not a subcommand of command()"),
    }
}

fn command() -> Command {
    let serve = || [LISTEN, POLICY, store::STORE, identity::IDENTITY, SERVICE].into_iter().flatten().map(Setting::arg);
    Command::new("tollgate")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A rate limiter to embed, to run on a laptop, or to put in front of a service")
        .after_help("A flag wins over its variable; an empty variable is not set.")
        .args_conflicts_with_subcommands(true)
        .disable_help_subcommand(true)
        .args(serve())
        .subcommand(Command::new("serve").about("Run the HTTP service (the default)").args(serve()))
        .subcommand(identity::command())
        .subcommand(replay::command())
}

fn serve(raw: &Raw<'_>) -> Result<Task, ConfigError> {
    let port = raw.read(LISTEN, "PORT", parse::port)?;
    let host = raw.read(LISTEN, "HOST", |text| text.parse::<IpAddr>().map_err(|_| "an IPv4 or IPv6 address".into()))?;
    let workers = match raw.given("WORKERS")? {
        None => default_workers(),
        Some(given) => given.parse(|text| parse::count(text, MAX_WORKERS))?,
    };
    let log = raw.read(SERVICE, "RUST_LOG", |text| match env_filter::Builder::new().try_parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("a filter of env_logger, such as info or tollgate=debug ({error})")),
    })?;
    let (policies, trust) = (policies(raw)?, identity::trust(raw)?);
    let advice = advice::advice(raw, raw.read(POLICY, "ALGORITHM", parse::algorithm)?, &trust);
    let max_clients = raw.read(SERVICE, "MAX_CLIENTS", |text| parse::count(text, MAX_CLIENTS))?;
    let mut limiter = RateLimiter::builder(policies).max_clients(max_clients);
    if let Some(redis) = store::read(raw)? {
        limiter = limiter.shared(redis).map_err(|error| ConfigError::Setting(error.to_string()))?;
    }
    Ok(Task::Serve(Box::new(Serve {
        listen: Listen {
            address: SocketAddr::new(host, port),
            workers,
            idle_timeout: raw.read(SERVICE, "IDLE_TIMEOUT", parse::timeout)?,
            write_timeout: raw.read(SERVICE, "WRITE_TIMEOUT", parse::timeout)?,
        },
        limiter,
        service: routes::Settings {
            trust,
            headers: raw.read(SERVICE, "RATE_LIMIT_HEADERS", |text| {
                text.parse::<Families>().map_err(|_| FAMILIES_ACCEPTED.into())
            })?,
            deny: raw.read(SERVICE, "DENY_STATUS", |text| {
                text.parse::<DenyStatus>().map_err(|_| DENY_STATUS_ACCEPTED.into())
            })?,
        },
        log,
        advice,
    })))
}

/// More threads than this only wait for each other.
const MAX_WORKERS: usize = 1_024;

/// More clients than this have never been tried, and would need tens of gigabytes.
const MAX_CLIENTS: usize = 1_000_000_000;

/// Two threads a core, since a decision may wait for the shared store; a few even on one core.
fn default_workers() -> usize {
    (2 * thread::available_parallelism().map_or(1, usize::from)).clamp(4, 64)
}

/// The limits: those of `POLICIES`, or the one of the single settings.
fn policies(raw: &Raw<'_>) -> Result<Policies, ConfigError> {
    let single = Single::read(raw)?;
    match several(raw)? {
        Some(policies) => Ok(policies),
        None => single.policy(raw, single.algorithm).map(Policies::from),
    }
}

/// The limits of `POLICIES`, if it is set. Then none of the single settings may be.
fn several(raw: &Raw<'_>) -> Result<Option<Policies>, ConfigError> {
    let Some(given) = raw.given("POLICIES")? else { return Ok(None) };
    for single in &POLICY[..POLICY.len() - 1] {
        if let Some(other) = raw.given(single.variable)? {
            return Err(ConfigError::Setting(format!(
                "{} is '{}', but {} names the limits: drop one of the two",
                other.name,
                other.shown(),
                given.name
            )));
        }
    }
    parse::policies(&given.text).map(Some).map_err(|problem| given.problem(&problem))
}

/// The settings of a single limit.
struct Single {
    algorithm: Algorithm,
    capacity: u64,
    refill: (u64, Duration),
    limit: u64,
    window: Duration,
}

impl Single {
    fn read(raw: &Raw<'_>) -> Result<Self, ConfigError> {
        Ok(Self {
            algorithm: raw.read(POLICY, "ALGORITHM", parse::algorithm)?,
            capacity: raw.read(POLICY, "CAPACITY", parse::quota)?,
            refill: raw.read(POLICY, "REFILL_RATE", parse::rate)?,
            limit: raw.read(POLICY, "LIMIT", parse::quota)?,
            window: raw.read(POLICY, "WINDOW", parse::window)?,
        })
    }

    /// The limit that these settings make with an algorithm.
    fn policy(&self, raw: &Raw<'_>, algorithm: Algorithm) -> Result<Policy, ConfigError> {
        let Self { capacity, refill: (tokens, period), limit, window, .. } = *self;
        let policy = match algorithm {
            Algorithm::TokenBucket => Policy::token_bucket(capacity, tokens, period),
            Algorithm::FixedWindow => Policy::fixed_window(limit, window),
            Algorithm::SlidingWindowLog => Policy::sliding_window_log(limit, window),
            Algorithm::SlidingWindowCounter => Policy::sliding_window_counter(limit, window),
        };
        let pair = if algorithm == Algorithm::TokenBucket { ["CAPACITY", "REFILL_RATE"] } else { ["LIMIT", "WINDOW"] };
        policy.map_err(|error: PolicyError| {
            let shown = |variable| raw.shown(POLICY, variable);
            ConfigError::Setting(format!(
                "{} '{}' and {} '{}' do not go together for {algorithm}: {error}",
                pair[0],
                shown(pair[0]),
                pair[1],
                shown(pair[1])
            ))
        })
    }
}

/// The raw settings of one command.
struct Raw<'a> {
    matches: &'a ArgMatches,
    environment: &'a dyn Fn(&str) -> Option<OsString>,
}

/// The raw text of a setting that was given.
struct Given {
    /// As it was given: the flag or the variable.
    name: String,
    text: String,
}

impl Raw<'_> {
    /// The text of a setting, if it was given. Blanks around it do not count, and a variable of nothing else is not set.
    fn given(&self, variable: &str) -> Result<Option<Given>, ConfigError> {
        let flag = self.matches.get_one::<String>(variable);
        if let Some(text) = flag {
            let name = format!("--{}", variable.to_ascii_lowercase().replace('_', "-"));
            return Ok(Some(Given { name, text: text.trim().to_owned() }));
        }
        let Some(text) = (self.environment)(variable) else { return Ok(None) };
        let text = text.into_string().map_err(|text| {
            ConfigError::Setting(format!("{variable} is '{}', which is not UTF-8", text.to_string_lossy()))
        })?;
        let text = text.trim();
        Ok((!text.is_empty()).then(|| Given { name: variable.to_owned(), text: text.to_owned() }))
    }

    /// A setting that has a default, parsed.
    fn read<T>(
        &self,
        group: &[Setting],
        variable: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        self.in_force(group, variable)?.parse(parse)
    }

    /// The text of a setting that has a default.
    fn in_force(&self, group: &[Setting], variable: &str) -> Result<Given, ConfigError> {
        let default = || Given { name: variable.to_owned(), text: default_of(group, variable).to_owned() };
        Ok(self.given(variable)?.unwrap_or_else(default))
    }

    /// The text that is in force, for a message.
    fn shown(&self, group: &[Setting], variable: &str) -> String {
        match self.given(variable) {
            Ok(Some(given)) => given.shown(),
            _ => default_of(group, variable).to_owned(),
        }
    }
}

fn default_of(group: &[Setting], variable: &str) -> &'static str {
    let setting = group.iter().find(|setting| setting.variable == variable);
    setting.and_then(|setting| setting.default).unwrap_or_default()
}

impl Given {
    /// Parses the text; the parser's error says what is accepted.
    fn parse<T>(&self, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, ConfigError> {
        parse(&self.text).map_err(|accepted| {
            ConfigError::Setting(format!("{} is '{}'; accepted is {accepted}", self.name, self.shown()))
        })
    }

    /// Parses text whose error tells the whole problem.
    fn parsed<T: FromStr<Err: fmt::Display>>(&self) -> Result<T, ConfigError> {
        self.text.parse().map_err(|error: T::Err| self.problem(&error.to_string()))
    }

    fn problem(&self, problem: &str) -> ConfigError {
        ConfigError::Setting(format!("{} is '{}': {problem}", self.name, self.shown()))
    }

    /// The text for a message: cut, and without control characters that would garble a terminal.
    fn shown(&self) -> String {
        /// Long enough for any value that makes sense.
        const MAX: usize = 200;
        let shown: String = self.text.chars().take(MAX).flat_map(char::escape_debug).collect();
        if self.text.chars().nth(MAX).is_some() { shown + "..." } else { shown }
    }
}
