//! The program `tollgate`. It wires the rooms, owns their threads, stops them in order, and alone ends the process.

use std::fs::{self, File};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::{env, io, process, thread};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tollgate::config::{self, ConfigError, Explain, Replay, Serve, Source, Task};
use tollgate::http::explain;
use tollgate::http::metrics::Counters;
use tollgate::http::routes::Service;
use tollgate::http::server::{self, Server};
use tollgate::replay;

/// What is wrong with the settings can be mended by whoever typed them.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let task = match config::read(env::args_os(), |variable| env::var_os(variable)) {
        Ok(task) => task,
        Err(ConfigError::Clap(error)) => error.exit(),
        Err(error) => {
            eprintln!("tollgate: {error}");
            return ExitCode::from(USAGE);
        }
    };
    let done = match task {
        Task::Serve(settings) => serve(*settings),
        Task::Explain(request) => explain(&request),
        Task::Replay(settings) => replay(&settings),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tollgate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn replay(settings: &Replay) -> Result<(), Box<dyn std::error::Error>> {
    let input = match &settings.source {
        Source::Generated(traffic) => replay::unpacked(io::Cursor::new(traffic.trace())),
        Source::File(file) if file.as_os_str() == "-" => replay::unpacked(io::stdin().lock()),
        Source::File(file) => File::open(file)
            .and_then(replay::unpacked)
            .map_err(|error| io::Error::new(error.kind(), format!("'{}' cannot be read: {error}", file.display()))),
    }?;
    let Some(path) = &settings.output else {
        let (mut out, mut err) = (io::stdout().lock(), io::stderr().lock());
        return match replay::run(&settings.task, settings.reading, input, &mut out, &mut err) {
            Err(error) if error.is_broken_pipe() => Ok(()),
            done => Ok(done?),
        };
    };
    // A file is written whole or not at all.
    let mut out = Vec::new();
    replay::run(&settings.task, settings.reading, input, &mut out, &mut io::stderr().lock())?;
    fs::write(path, out).map_err(|error| format!("'{}' cannot be written: {error}", path.display()))?;
    Ok(())
}

fn serve(settings: Serve) -> Result<(), Box<dyn std::error::Error>> {
    let quiet = log::LevelFilter::Off;
    env_logger::Builder::new().filter_module(server::CRATE_LOG, quiet).parse_filters(&settings.log).init();
    for warning in &settings.advice {
        log::warn!("{warning}");
    }
    // Before anything is promised on standard output: whoever waits for it may send a signal at once.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let limiter = settings.limiter.build();
    let counters = Arc::new(Counters::default());
    let service = Arc::new(Service::new(limiter, settings.service, Arc::clone(&counters)));
    server::quiet_panics(Arc::clone(&counters));
    let server = Server::start(settings.listen, service, counters)?;
    let mut stdout = io::stdout();
    writeln!(stdout, "listening on http://{}", server.address())?;
    stdout.flush()?;

    let (first, signalled) = crossbeam_channel::bounded(1);
    thread::spawn(move || {
        let mut signals = signals.forever();
        signals.next();
        // It has ended by itself meanwhile, or it hears this.
        let _ = first.send(());
        if let Some(signal) = signals.next() {
            process::exit(128 + signal);
        }
    });
    let exhausted = crossbeam_channel::select! {
        recv(signalled) -> _ => false,
        recv(server.exhausted()) -> _ => true,
    };
    log::info!("stopping: a second signal ends the process at once");
    server.stop();
    if exhausted {
        return Err("half of all connections hang for good: start it again, behind a reverse proxy".into());
    }
    Ok(())
}

fn explain(request: &Explain) -> Result<(), Box<dyn std::error::Error>> {
    io::stdout().write_all(explain::explain(&request.trust, request.peer, &request.headers).as_bytes())?;
    Ok(())
}
