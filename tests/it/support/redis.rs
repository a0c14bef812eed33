//! A real redis-server, private to one test: on a Unix socket or a free port, nothing on disk but the socket.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis::{Client, Connection, FromRedisValue, cmd};

/// How long a server may take to start, and a store to be noticed, before the test has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

static SERVERS: AtomicU32 = AtomicU32::new(0);

/// A running server. Dropping it kills it.
pub(crate) struct Server {
    child: Child,
    folder: PathBuf,
    url: String,
    options: Vec<String>,
}

impl Server {
    /// A server on a Unix socket.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// A server on a Unix socket with more options, as on its command line.
    pub(crate) fn with(options: &[&str]) -> Self {
        let folder = folder();
        let socket = folder.join("redis.sock");
        let mut all = vec!["--port".into(), "0".into(), "--unixsocket".into(), socket.display().to_string()];
        all.extend(options.iter().map(ToString::to_string));
        Self::launch(folder, format!("unix://{}", socket.display()), all)
    }

    /// A server on a TCP port of the loopback.
    pub(crate) fn on_tcp(options: &[&str]) -> Self {
        let port = free_port();
        let mut all = vec!["--port".into(), port.to_string(), "--bind".into(), "127.0.0.1".into()];
        all.extend(options.iter().map(ToString::to_string));
        Self::launch(folder(), format!("redis://127.0.0.1:{port}"), all)
    }

    fn launch(folder: PathBuf, url: String, options: Vec<String>) -> Self {
        let child = spawn(&folder, &options);
        let server = Self { child, folder, url, options };
        server.wait_until_it_answers();
        server
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn connect(&self) -> Connection {
        Client::open(self.url()).and_then(|client| client.get_connection()).expect("a connection of the test's own")
    }

    /// Sends a command of words without blanks.
    pub(crate) fn ask<T: FromRedisValue>(&self, command: &str) -> T {
        let mut words = command.split(' ');
        let mut command = cmd(words.next().expect("a command"));
        for word in words {
            command.arg(word);
        }
        command.query(&mut self.connect()).expect("an answer to the test's own command")
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.ask("KEYS *");
        keys.sort();
        keys
    }

    /// How often this command was called, by INFO.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.counted("commandstats", &format!("cmdstat_{command}:"), "calls")
    }

    /// How often it was refused before it ran, as to a user who may not.
    pub(crate) fn rejected(&self, command: &str) -> u64 {
        self.counted("commandstats", &format!("cmdstat_{command}:"), "rejected_calls")
    }

    /// How often an error of this code was answered.
    pub(crate) fn errors(&self, code: &str) -> u64 {
        self.counted("errorstats", &format!("errorstat_{code}:"), "count")
    }

    /// A number of INFO: section, start of the line, and name before the equals sign.
    fn counted(&self, section: &str, line: &str, name: &str) -> u64 {
        let stats: String = self.ask(&format!("INFO {section}"));
        let Some(fields) = stats.lines().find_map(|text| text.strip_prefix(line)) else { return 0 };
        let value = fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        value.expect("a number of this name").parse().expect("a number")
    }

    /// The port of a server on TCP.
    pub(crate) fn port(&self) -> u16 {
        self.url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Starts it again, empty.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(&self.folder, &self.options);
        self.wait_until_it_answers();
    }

    fn wait_until_it_answers(&self) {
        let client = Client::open(self.url()).expect("a URL");
        eventually("the server answers", || {
            // A server that wants a password answers too.
            client.get_connection().is_ok_and(|mut connection| match cmd("PING").exec(&mut connection) {
                Ok(()) => true,
                Err(error) => !error.is_io_error() && error.code() != Some("LOADING"),
            })
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Either may have happened already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn spawn(folder: &PathBuf, options: &[String]) -> Child {
    let log = fs::File::create(folder.join("log")).expect("a log");
    let mut command = Command::new(program());
    command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(folder).args(options);
    command.stdin(Stdio::null()).stdout(log).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| {
        panic!("these tests need a redis-server on the PATH ({error}): run scripts/need-redis, which installs one")
    })
}

/// What scripts/need-redis takes for a server, in the same order.
pub(crate) fn program() -> &'static str {
    static FOUND: OnceLock<&str> = OnceLock::new();
    FOUND.get_or_init(|| {
        let runs = |name: &&str| Command::new(name).arg("--version").output().is_ok();
        ["redis-server", "valkey-server"].into_iter().find(runs).unwrap_or("redis-server")
    })
}

/// A new folder; whoever asks for it removes it.
pub(crate) fn folder() -> PathBuf {
    let name = format!("tollgate-{}-{}", std::process::id(), SERVERS.fetch_add(1, Ordering::Relaxed));
    let folder = std::env::temp_dir().join(name);
    fs::create_dir_all(&folder).expect("a folder for the socket");
    folder
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

/// How long something took.
pub(crate) struct Took {
    pub(crate) all: Duration,
    /// Without the time in which this thread was ready and the machine had no core for it.
    pub(crate) own: Duration,
}

pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Took) {
    let (begun, queued) = (Instant::now(), queued());
    let result = work();
    let all = begun.elapsed();
    (result, Took { all, own: all.saturating_sub(self::queued().saturating_sub(queued)) })
}

/// The time that this thread has waited for a core so far; nothing where the system does not tell.
fn queued() -> Duration {
    let stats = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stats.split(' ').nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

/// Waits for an event, with a bound.
pub(crate) fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !happens() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
