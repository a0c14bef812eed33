//! The settings of `tollgate replay`. The limits are read like those of the service, from flags or environment; what the
//! replay makes of the traffic is asked each time anew, by flags alone.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command, value_parser};

use super::{ConfigError, POLICY, Raw, Setting, Single, Task, several};
use crate::policy::Algorithm;
use crate::replay::{self, Form, Format, Reading, Report, Row};

/// As in the service, IPv6 clients that share so many leading bits are one.
const IPV6_PREFIX: u8 = 64;

/// The settings of a replay.
pub struct Replay {
    /// Where the traffic is; `-` for standard input.
    pub file: PathBuf,
    /// How it is read.
    pub reading: Reading,
    /// What is made of it.
    pub task: replay::Task,
}

pub(super) fn command() -> Command {
    let flag = |name, help| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    Command::new("replay")
        .about("Run recorded traffic through the algorithms, on a clock of its own")
        .arg(
            Arg::new("FILE")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("Lines of time,client[,cost], or an access log; may be gzipped; - is standard input"),
        )
        .arg(
            Arg::new("format")
                .long("format")
                .value_name("VALUE")
                .help(format!("{}; told by the content when not given", Format::ACCEPTED)),
        )
        .arg(flag("decisions", "Print a line of CSV for each request, as ALGORITHM decides it"))
        .arg(flag("json", "Print the report as JSON").conflicts_with("decisions"))
        .arg(flag("strict", "Stop at the first line that is no request, with exit status 1"))
        .args(POLICY.iter().map(Setting::arg))
}

pub(super) fn read(raw: &Raw<'_>) -> Result<Task, ConfigError> {
    let set = |name| raw.matches.get_flag(name);
    let format = match raw.matches.get_one::<String>("format") {
        None => None,
        Some(text) => Some(text.parse().map_err(|()| {
            let shown = text.escape_debug();
            ConfigError::Setting(format!("--format is '{shown}'; accepted is {}", Format::ACCEPTED))
        })?),
    };
    let task = if set("decisions") {
        replay::Task::Decisions(super::policies(raw)?)
    } else {
        let form = if set("json") { Form::Json } else { Form::Table };
        replay::Task::Report(report(raw, form)?)
    };
    let file = raw.matches.get_one::<PathBuf>("FILE").cloned().unwrap_or_default();
    let reading =
        Reading { format, strict: set("strict"), ipv6_prefix: IPV6_PREFIX, progress: io::stderr().is_terminal() };
    Ok(Task::Replay(Box::new(Replay { file, reading, task })))
}

/// A row for each of several limits, or one for each algorithm with the same settings.
fn report(raw: &Raw<'_>, form: Form) -> Result<Report, ConfigError> {
    let single = Single::read(raw)?;
    if let Some(policies) = several(raw)? {
        let rows = Row::each_and_all(&policies);
        return Ok(Report { refused_most_by: rows.len().checked_sub(1), rows, form });
    }
    let judge = single.policy(raw, Algorithm::SlidingWindowLog)?;
    let rows = Algorithm::ALL.map(|algorithm| {
        let policy = single.policy(raw, algorithm)?;
        Ok(Row::of(algorithm.name(), policy, Some(judge.clone())))
    });
    Ok(Report {
        rows: rows.into_iter().collect::<Result<_, _>>()?,
        refused_most_by: Algorithm::ALL.iter().position(|&algorithm| algorithm == single.algorithm),
        form,
    })
}
