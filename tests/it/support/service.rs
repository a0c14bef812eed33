//! The real program, on a free port, private to one test.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::{Connection, Reply};

/// How long a process may take to start or to end before the test has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running `tollgate serve`. Dropping it kills it; on a panic its log is printed.
pub(crate) struct Service {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Service {
    /// Starts the program with these settings and nothing else in its environment, and waits until it is ready.
    pub(crate) fn start(settings: &[(&str, &str)]) -> Self {
        Self::spawn(command(settings))
    }

    /// Starts a command that ends up as the program, for tests that wrap it, and waits until it is ready.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let log = Arc::new(Mutex::new(String::new()));
        let mut stderr = child.stderr.take().expect("a piped standard error");
        let sink = Arc::clone(&log);
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = stderr.read(&mut chunk) {
                sink.lock().unwrap().push_str(&String::from_utf8_lossy(&chunk[..length]));
            }
        });
        let mut ready = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("a piped standard output"));
        stdout.read_line(&mut ready).expect("a line on standard output");
        let address = ready.trim_end().strip_prefix("listening on http://");
        let address = address.unwrap_or_else(|| panic!("not ready: {ready:?}, log: {}", log.lock().unwrap()));
        Self { address: address.parse().expect("an address and port"), child, log }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What was written to standard error so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// What was written to standard error, once it holds this: a line may still be on its way when its cause is answered.
    pub(crate) fn log_with(&self, text: &str) -> String {
        let begun = Instant::now();
        loop {
            let log = self.log();
            if log.contains(text) {
                return log;
            }
            assert!(begun.elapsed() < PATIENCE, "{text:?} was not logged within {PATIENCE:?}: {log}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::to(self.address)
    }

    /// `GET path` on a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Reply {
        self.connect().get(path)
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([&format!("-{signal}"), &self.pid().to_string()]).status();
        assert!(status.expect("kill runs").success(), "the process is there to be signalled");
    }

    /// Waits for the end of the process.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the process can be waited for") {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "the process has not ended within {PATIENCE:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- log of the service ---\n{}", self.log());
        }
    }
}

/// The program with these settings, and nothing else in its environment but a free port.
pub(crate) fn command(settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.env_clear().env("PORT", "0").envs(settings.iter().copied()).stdin(Stdio::null());
    command
}
