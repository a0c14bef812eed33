//! Load over HTTP, by wrk.

use std::process::Command;

/// How long one run takes, in seconds.
pub(crate) const SECONDS: &str = "2";

/// What one run saw.
pub(crate) struct Load {
    pub(crate) requests_a_second: f64,
    pub(crate) p99_micros: f64,
}

/// Whether there is a wrk; says how to get it if not.
pub(crate) fn is_installed() -> bool {
    let found = Command::new("wrk").arg("--version").output().is_ok();
    if !found {
        println!("skipped: wrk is not installed (apt-get install wrk)\n");
    }
    found
}

/// Asks for one URL as fast as the answers come.
pub(crate) fn load(url: &str, connections: usize) -> Load {
    let output = Command::new("wrk")
        .args(["-t", "1", "-c", &connections.to_string(), "-d", SECONDS, "--latency", url])
        .output()
        .expect("wrk runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
    };
    let p99 = value("99%");
    let number: f64 = p99.trim_end_matches(char::is_alphabetic).parse().expect("a time");
    let unit = match p99.trim_start_matches(|c: char| !c.is_alphabetic()) {
        "us" => 1.0,
        "ms" => 1e3,
        _ => 1e6,
    };
    Load { requests_a_second: value("Requests/sec:").parse().expect("a rate"), p99_micros: number * unit }
}
