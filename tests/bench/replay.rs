//! `tollgate replay` over access logs of a million lines and more from ten thousand clients: lines for each second of CPU,
//! and the most memory, which is set by the clients and not by the lines. A log is read by the released program, as it is
//! by people, and what comes out goes nowhere.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use nix::sys::resource::{UsageWho, getrusage};
use report::{Report, median};

mod report;

const ROUNDS: usize = 3;
const CLIENTS: u32 = 10_000;
const MILLION: u32 = 1_000_000;

/// Lines for each second of CPU that one algorithm is to reach.
const TARGET: f64 = 1e6;

/// What is decided, and the arguments for it.
const TASKS: [(&str, &[&str]); 5] = [
    ("token-bucket", &["--decisions", "--algorithm", "token-bucket"]),
    ("fixed-window", &["--decisions", "--algorithm", "fixed-window"]),
    ("sliding-window-log", &["--decisions", "--algorithm", "sliding-window-log"]),
    ("sliding-window-counter", &["--decisions", "--algorithm", "sliding-window-counter"]),
    ("report of all four", &[]),
];

/// A log of this bench alone, removed when dropped.
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn main() -> io::Result<()> {
    let caption = format!("replay of access logs from {CLIENTS} clients, median of {ROUNDS} rounds");
    let columns = ["task", "lines a second of CPU", "peak memory", "peak memory at 3 million lines"];
    let mut report = Report::begin("replay", &caption, &columns);
    let (short, long) = (log(MILLION)?, log(3 * MILLION)?);
    for (name, arguments) in TASKS {
        let runs = (0..ROUNDS).map(|_| run(arguments, &short.0)).collect::<io::Result<Vec<_>>>()?;
        let rate = f64::from(MILLION) / median(runs.iter().map(|run| run.cpu.as_secs_f64()).collect());
        let peak = median(runs.iter().map(|run| run.peak_mib).collect());
        let longer = run(arguments, &long.0)?.peak_mib;
        report.row(&[name.to_owned(), format!("{rate:.0}"), format!("{peak:.1} MiB"), format!("{longer:.1} MiB")]);
        report.bar(format!("{name}, of a million lines a second"), rate / TARGET);
    }
    report.end();
    Ok(())
}

/// Traffic in the combined format, an hour for each million lines: the same for the same number of them.
fn log(lines: u32) -> io::Result<Log> {
    let log = Log(std::env::temp_dir().join(format!("tollgate-bench-{}-{lines}.log", std::process::id())));
    let mut out = BufWriter::new(File::create(&log.0)?);
    let mut rng = Rng::with_seed(1);
    for line in 0..lines {
        let client = rng.u32(0..CLIENTS);
        let (high, low) = (client / 250, client % 250 + 1);
        let second = u64::from(line) * 3_600 / u64::from(MILLION);
        let (hour, minute, second) = (second / 3_600 + 13, second / 60 % 60, second % 60);
        writeln!(
            out,
            "198.18.{high}.{low} - - [10/Oct/2025:{hour}:{minute:02}:{second:02} +0200] \
             \"GET /articles/{}?page=2 HTTP/1.1\" 200 {} \"https://example.com/\" \
             \"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\"",
            line % 977,
            rng.u32(200..60_000)
        )?;
    }
    out.flush()?;
    Ok(log)
}

struct Run {
    cpu: Duration,
    peak_mib: f64,
}

fn run(arguments: &[&str], log: &Path) -> io::Result<Run> {
    let before = cpu_of_children()?;
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .env_clear()
        .arg("replay")
        .args(arguments)
        .arg(log)
        .stdout(Stdio::null())
        .spawn()?;
    // The system forgets the mark when the process ends, and what it tells of children holds that of their parent.
    let mut peak_kib: u32 = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        peak_kib = peak_kib.max(high_water_kib(child.id()).unwrap_or(0));
        thread::sleep(Duration::from_millis(2));
    };
    assert!(status.success(), "replay {arguments:?}: {status}");
    Ok(Run { cpu: cpu_of_children()? - before, peak_mib: f64::from(peak_kib) / 1024.0 })
}

/// User and system time of the children that have ended.
fn cpu_of_children() -> io::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = |time: nix::sys::time::TimeVal| (time.tv_sec() * 1_000_000 + time.tv_usec()).unsigned_abs();
    Ok(Duration::from_micros(micros(usage.user_time()) + micros(usage.system_time())))
}

/// The most memory that a process has had so far.
fn high_water_kib(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}
