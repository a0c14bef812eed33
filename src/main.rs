//! The program `tollgate`. It wires the rooms, owns their threads, stops them in order, and alone ends the process.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::{env, io, process, thread};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tollgate::RateLimiter;
use tollgate::config::{self, ConfigError, Explain, Serve, Task};
use tollgate::http::explain;
use tollgate::http::routes::Service;
use tollgate::http::server::{self, Counters, Server};

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
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tollgate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(settings: Serve) -> Result<(), Box<dyn std::error::Error>> {
    env_logger::Builder::new().parse_filters(&settings.log).init();
    for warning in &settings.advice {
        log::warn!("{warning}");
    }
    // Before anything is promised on standard output: whoever waits for it may send a signal at once.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let limiter = RateLimiter::builder(settings.policies).max_clients(settings.max_clients).build();
    let service = Arc::new(Service::new(limiter, settings.service));
    let counters = Arc::new(Counters::default());
    server::quiet_panics(Arc::clone(&counters));
    let server = Server::start(settings.listen, service, counters)?;
    let mut stdout = io::stdout();
    writeln!(stdout, "listening on http://{}", server.address())?;
    stdout.flush()?;

    signals.forever().next();
    log::info!("stopping: a second signal ends the process at once");
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            process::exit(128 + signal);
        }
    });
    server.stop();
    Ok(())
}

fn explain(request: &Explain) -> Result<(), Box<dyn std::error::Error>> {
    io::stdout().write_all(explain::explain(&request.trust, request.peer, &request.headers).as_bytes())?;
    Ok(())
}
