//! The settings of `tollgate replay`. The limits are read like those of the service, from flags or environment; what the
//! replay makes of the traffic is asked each time anew, by flags alone.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command, value_parser};

use super::identity::IDENTITY;
use super::{ConfigError, Given, POLICY, Raw, Setting, Single, Task, parse, several};
use crate::http::identity::Ipv6Prefix;
use crate::policy::Algorithm;
use crate::replay::{self, Form, Format, Pattern, Plot, Reading, Report, Row, Share, Suggest, Traffic};

/// The settings of a replay.
pub struct Replay {
    /// Where the traffic comes from.
    pub source: Source,
    /// How it is read.
    pub reading: Reading,
    /// What is made of it.
    pub task: replay::Task,
    /// The file for what comes out; standard output when there is none.
    pub output: Option<PathBuf>,
}

/// Where traffic comes from.
pub enum Source {
    /// A file; `-` for standard input.
    File(PathBuf),
    /// It is made.
    Generated(Traffic),
}

/// Of the settings of trust, the one that still matters when the client is already known.
const IPV6_PREFIX: &str = "IPV6_PREFIX";

pub(super) fn command() -> Command {
    let flag = |name, help| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    let value = |name, of, help: String| Arg::new(name).long(name).value_name(of).allow_hyphen_values(true).help(help);
    Command::new("replay")
        .about("Run recorded traffic through the algorithms, on a clock of its own")
        .arg(
            Arg::new("FILE")
                .required_unless_present("generate")
                .value_parser(value_parser!(PathBuf))
                .help("Lines of time,client[,cost], or an access log; may be gzipped; - is standard input"),
        )
        .arg(value("format", "VALUE", format!("{}; told by the content when not given", Format::ACCEPTED)))
        .arg(
            value("generate", "PATTERN", format!("Make traffic instead of reading it: {}", Pattern::ACCEPTED))
                .conflicts_with("FILE"),
        )
        .arg(
            value("seed", "NUMBER", "Choose among all traffic of a pattern [default: 1]".into()).conflicts_with("FILE"),
        )
        .arg(flag("decisions", "Print a line of CSV for each request, as ALGORITHM decides it"))
        .arg(
            value(
                "sweep",
                "SETTING=VALUES",
                "Report a row a value: LIMIT=5,10,20; also WINDOW, CAPACITY, REFILL_RATE".into(),
            )
            .conflicts_with("decisions"),
        )
        .arg(
            value("suggest", "PERCENT", "Find the smallest limits that never refuse so many of the clients".into())
                .conflicts_with_all(["decisions", "sweep"]),
        )
        .arg(
            value(
                "plot",
                "FILE.svg",
                "Draw one client's traffic under the four algorithms into a file; `-` for standard output".into(),
            )
            .value_parser(value_parser!(PathBuf))
            .conflicts_with_all(["decisions", "sweep", "suggest", "json"]),
        )
        .arg(
            value("client", "NAME", "Whose traffic --plot draws; the busiest client's when not given".into())
                .requires("plot"),
        )
        .arg(flag("json", "Print the report as JSON").conflicts_with("decisions"))
        .arg(flag("strict", "Stop at the first line that is no request, with exit status 1"))
        .args(POLICY.iter().map(Setting::arg))
        .args(IDENTITY.iter().filter(|setting| setting.variable == IPV6_PREFIX).map(Setting::arg))
}

pub(super) fn read(raw: &Raw<'_>) -> Result<Task, ConfigError> {
    let set = |name| raw.matches.get_flag(name);
    let form = if set("json") { Form::Json } else { Form::Table };
    let format = option(raw, "format", |text| text.parse().map_err(|()| Format::ACCEPTED.into()))?;
    let plot = raw.matches.get_one::<PathBuf>("plot");
    let task = if set("decisions") {
        replay::Task::Decisions(super::policies(raw)?)
    } else if let Some(share) = option(raw, "suggest", |text| text.parse().map_err(|()| Share::ACCEPTED.into()))? {
        replay::Task::Suggest(suggest(raw, share, form)?)
    } else if let Some(sweep) = option(raw, "sweep", |text| sweep(text).ok_or_else(|| SWEEP_ACCEPTED.into()))? {
        replay::Task::Report(Report { rows: swept(raw, &sweep)?, names_clients: false, form })
    } else if plot.is_some() {
        none_of_several(raw, "--plot")?;
        let Report { rows, .. } = report(raw, form)?;
        let client = raw.matches.get_one::<String>("client").cloned();
        replay::Task::Plot(Plot { rows, window: Single::read(raw)?.window, client })
    } else {
        replay::Task::Report(report(raw, form)?)
    };
    let source = match option(raw, "generate", |text| text.parse().map_err(|()| Pattern::ACCEPTED.into()))? {
        Some(pattern) => Source::Generated(traffic(raw, pattern)?),
        None => Source::File(raw.matches.get_one::<PathBuf>("FILE").cloned().unwrap_or_default()),
    };
    let ipv6_prefix = raw.in_force(IDENTITY, IPV6_PREFIX)?.parsed::<Ipv6Prefix>()?.bits();
    // Decisions are written while the input is read: on the same terminal they are the progress.
    let progress = io::stderr().is_terminal() && !(set("decisions") && io::stdout().is_terminal());
    let reading = Reading { format, strict: set("strict"), ipv6_prefix, progress };
    let output = plot.filter(|file| file.as_os_str() != "-").cloned();
    Ok(Task::Replay(Box::new(Replay { source, reading, task, output })))
}

/// An option of the replay alone, parsed; the parser's error says what is accepted.
fn option<T>(
    raw: &Raw<'_>,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, ConfigError> {
    let Some(text) = raw.matches.get_one::<String>(name) else { return Ok(None) };
    Given { name: format!("--{name}"), text: text.trim().to_owned() }.parse(parse).map(Some)
}

/// A row for each of several limits, or one for each algorithm with the same settings.
fn report(raw: &Raw<'_>, form: Form) -> Result<Report, ConfigError> {
    let single = Single::read(raw)?;
    if let Some(policies) = several(raw)? {
        let rows = Row::each_and_all(&policies);
        return Ok(Report { rows, names_clients: true, form });
    }
    let judge = single.policy(raw, Algorithm::SlidingWindowLog)?;
    let rows = Algorithm::ALL.map(|algorithm| {
        let policy = single.policy(raw, algorithm)?;
        Ok(Row::of(algorithm.name(), policy, Some(judge.clone())))
    });
    Ok(Report { rows: rows.into_iter().collect::<Result<_, _>>()?, names_clients: true, form })
}

/// A row takes time for each request, and nobody reads more of them.
const MAX_SWEPT: usize = 100;

const SWEEP_ACCEPTED: &str = "LIMIT, WINDOW, CAPACITY or REFILL_RATE with up to 100 values, such as LIMIT=5,10,20";

/// The setting that takes several values, and the values.
fn sweep(text: &str) -> Option<(&'static str, Vec<String>)> {
    let (name, values) = text.split_once('=')?;
    let name = name.trim().to_ascii_uppercase().replace('-', "_");
    let name = ["LIMIT", "WINDOW", "CAPACITY", "REFILL_RATE"].into_iter().find(|known| *known == name)?;
    let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
    (values.len() <= MAX_SWEPT).then_some((name, values))
}

/// A row for each value and each algorithm that the setting is one of.
fn swept(raw: &Raw<'_>, (name, values): &(&str, Vec<String>)) -> Result<Vec<Row>, ConfigError> {
    none_of_several(raw, "--sweep")?;
    let algorithms = match *name {
        "CAPACITY" | "REFILL_RATE" => &Algorithm::ALL[..1],
        _ => &Algorithm::ALL[1..],
    };
    let mut rows = Vec::new();
    for value in values {
        let mut single = Single::read(raw)?;
        let given = Given { name: format!("--sweep {name}"), text: value.clone() };
        match *name {
            "CAPACITY" => single.capacity = given.parse(parse::quota)?,
            "REFILL_RATE" => single.refill = given.parse(parse::rate)?,
            "LIMIT" => single.limit = given.parse(parse::quota)?,
            _ => single.window = given.parse(parse::window)?,
        }
        let judge = single.policy(raw, Algorithm::SlidingWindowLog)?;
        for &algorithm in algorithms {
            rows.push(Row::of(algorithm.name(), single.policy(raw, algorithm)?, Some(judge.clone())));
        }
    }
    Ok(rows)
}

fn suggest(raw: &Raw<'_>, share: Share, form: Form) -> Result<Suggest, ConfigError> {
    none_of_several(raw, "--suggest")?;
    let Single { refill, window, .. } = Single::read(raw)?;
    Suggest::new(share, refill, window, form).map_err(|error| {
        let (rate, window) = (raw.shown(POLICY, "REFILL_RATE"), raw.shown(POLICY, "WINDOW"));
        ConfigError::Setting(format!(
            "nothing can be suggested for REFILL_RATE '{rate}' and WINDOW '{window}': {error}"
        ))
    })
}

fn traffic(raw: &Raw<'_>, pattern: Pattern) -> Result<Traffic, ConfigError> {
    let seed = option(raw, "seed", |text| {
        parse::digits(text).ok_or_else(|| format!("a whole number from 0 to {}", u64::MAX))
    })?;
    none_of_several(raw, "--generate")?;
    let Single { limit, window, .. } = Single::read(raw)?;
    if limit > Traffic::MAX_LIMIT {
        let (shown, most) = (raw.shown(POLICY, "LIMIT"), Traffic::MAX_LIMIT);
        return Err(ConfigError::Setting(format!(
            "LIMIT is '{shown}'; accepted with --generate is a whole number from 1 to {most}"
        )));
    }
    Ok(Traffic { pattern, seed: seed.unwrap_or(1), limit, window })
}

/// Some options ask about a single limit, or measure by it.
fn none_of_several(raw: &Raw<'_>, asked: &str) -> Result<(), ConfigError> {
    match raw.given("POLICIES")? {
        None => Ok(()),
        Some(given) => Err(ConfigError::Setting(format!(
            "{asked} goes by one limit, but {} is '{}': drop one of the two",
            given.name,
            given.shown()
        ))),
    }
}
