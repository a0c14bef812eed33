//! Who is counted: the settings of trust, and the command that explains them.

use std::net::IpAddr;

use clap::{Arg, ArgAction, Command};

use super::{ConfigError, Given, Raw, Setting, Task, setting};
use crate::http::identity::{FieldName, Proxies, Trust};

/// Who is counted.
pub(super) const IDENTITY: &[Setting] = &[
    setting(
        "TRUSTED_PROXIES",
        None,
        "Addresses and networks whose forwarding header is believed (10.0.0.0/8,::1), and unix for peers without an address",
    ),
    setting(
        "CLIENT_IP_HEADER",
        Some("X-Forwarded-For"),
        "The one header that trusted proxies write: X-Forwarded-For, Forwarded, or one of a single address, such as X-Real-IP",
    ),
    setting(
        "API_KEY_HEADER",
        None,
        "A request that carries this header is limited by its value, any other by its address; keys are not checked",
    ),
    setting("IPV6_PREFIX", Some("64"), "IPv6 clients that share this many leading bits are one client"),
];

/// A request whose client is asked for.
pub struct Explain {
    /// Whom to believe.
    pub trust: Trust,
    /// The other end of the connection; `None` when it has no address.
    pub peer: Option<IpAddr>,
    /// Name and value of each header line, in order.
    pub headers: Vec<(String, String)>,
}

/// The command `explain`.
pub(super) fn command() -> Command {
    Command::new("explain")
        .about("Say who the client of a given request would be, and why")
        .after_help("The settings are those of serve. An API key is never printed, only its hash.")
        .arg(request_arg("peer", "ADDRESS", "The other end of the connection: an address, or unix").required(true))
        .arg(
            request_arg("header", "NAME: VALUE", "A header line; several times for several lines, in order")
                .action(ArgAction::Append),
        )
        .args(IDENTITY.iter().map(Setting::arg))
}

/// A part of the request that `explain` is asked about: no setting, so it has no variable.
fn request_arg(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).allow_hyphen_values(true).help(help)
}

/// Reads what `explain` is asked.
///
/// # Errors
/// When a part of the request or a setting of trust is not accepted.
pub(super) fn explain(raw: &Raw<'_>) -> Result<Task, ConfigError> {
    let one = |name: &str, text: &str| Given { name: name.to_owned(), text: text.trim().to_owned() };
    let peer = raw.matches.get_one::<String>("peer").map_or("", String::as_str);
    let peer = one("--peer", peer).parse(|text| match text {
        "unix" => Ok(None),
        address => address.parse().map(Some).map_err(|_| "an IPv4 or IPv6 address, or unix".into()),
    })?;
    let lines = raw.matches.get_many::<String>("header").into_iter().flatten();
    let headers = lines.map(|line| match line.split_once(':') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => one("--header", line).parse(|_| Err("a name and a value with a colon between them".into())),
    });
    Ok(Task::Explain(Explain { trust: trust(raw)?, peer, headers: headers.collect::<Result<_, _>>()? }))
}

/// Whom to believe about who the client is.
///
/// # Errors
/// When a setting is not accepted, or one header is to be both the address and the key.
pub(super) fn trust(raw: &Raw<'_>) -> Result<Trust, ConfigError> {
    let api_key_header = match raw.given("API_KEY_HEADER")? {
        None => None,
        Some(given) => Some(given.parsed::<FieldName>()?),
    };
    let header = raw.in_force(IDENTITY, "CLIENT_IP_HEADER")?;
    let trust = Trust {
        proxies: match raw.given("TRUSTED_PROXIES")? {
            None => Proxies::default(),
            Some(given) => given.parsed()?,
        },
        header: header.parsed()?,
        api_key_header,
        ipv6_prefix: raw.in_force(IDENTITY, "IPV6_PREFIX")?.parsed()?,
    };
    match &trust.api_key_header {
        Some(name) if name.is(trust.header.name()) => {
            Err(header.problem("API_KEY_HEADER names the same header, which cannot be both"))
        }
        _ => Ok(trust),
    }
}
