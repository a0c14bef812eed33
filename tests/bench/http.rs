//! The service beside a bare tiny_http program with as many workers and answers of as many bytes, which is the floor: what
//! is above it is ours. Load comes from wrk, on the same machine; the contenders take turns.

use std::io::{BufRead, BufReader, Cursor};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

const ROUNDS: usize = 5;
const SECONDS: &str = "2";
const WORKERS: usize = 4;

/// A running service, killed when dropped.
struct Service(Child, String);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    if Command::new("wrk").arg("--version").output().is_err() {
        println!("skipped: wrk is not installed (apt-get install wrk)");
        return;
    }
    let open = tollgate(&[("CAPACITY", "900000000"), ("REFILL_RATE", "900000000")]);
    let shut = tollgate(&[("CAPACITY", "1"), ("REFILL_RATE", "1/1d")]);
    // The bytes of each answer, taken from the service itself.
    let allowed = answer(&format!("{}/limited", open.1));
    answer(&format!("{}/limited", shut.1));
    let refused = answer(&format!("{}/limited", shut.1));
    let plain = answer(&format!("{}/unlimited", open.1));
    let contenders = [
        ("bare, as /unlimited", bare(plain)),
        ("/unlimited", format!("{}/unlimited", open.1)),
        ("bare, as /limited, allowed", bare(allowed)),
        ("/limited, allowed", format!("{}/limited", open.1)),
        ("bare, as /limited, refused", bare(refused)),
        ("/limited, refused", format!("{}/limited", shut.1)),
    ];
    println!("requests a second, median of {ROUNDS} rounds of {SECONDS} s, {WORKERS} workers\n");
    println!("| connections | answer | bare | p99 | tollgate | p99 | ratio |");
    println!("|---|---|---|---|---|---|---|");
    for connections in [16, 64] {
        let mut runs = vec![Vec::new(); contenders.len()];
        for _ in 0..ROUNDS {
            for ((_, url), runs) in contenders.iter().zip(&mut runs) {
                runs.push(wrk(url, connections));
            }
        }
        let medians: Vec<(f64, String)> = runs.into_iter().map(median).collect();
        for (pair, (name, _)) in medians.chunks(2).zip(contenders.iter().skip(1).step_by(2)) {
            let [(bare, bare_p99), (ours, our_p99)] = pair else { unreachable!("contenders come in pairs") };
            println!(
                "| {connections} | {name} | {bare:.0} | {bare_p99} | {ours:.0} | {our_p99} | {:.2} |",
                ours / bare
            );
        }
    }
}

/// Starts the program on a free port, and gives its address.
fn tollgate(settings: &[(&str, &str)]) -> Service {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .env_clear()
        .envs([("PORT", "0"), ("WORKERS", &*WORKERS.to_string())])
        .envs(settings.iter().copied())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut ready = String::new();
    let stdout = child.stdout.take().expect("a piped standard output");
    BufReader::new(stdout).read_line(&mut ready).expect("a line on standard output");
    let address = ready.trim().strip_prefix("listening on ").expect("ready").to_owned();
    Service(child, address)
}

/// The head and body of one answer, as curl shows them.
fn answer(url: &str) -> (Vec<(String, String)>, u16, String) {
    let output = Command::new("curl").args(["-si", url]).output().expect("curl runs");
    let text = String::from_utf8(output.stdout).expect("an answer is text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
    let fields =
        lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.to_owned(), value.to_owned()));
    (fields.filter(|(name, _)| name != "Date" && name != "Content-Length").collect(), status, body.to_owned())
}

/// A tiny_http program of a receive and a respond, in this process, that sends the same bytes.
fn bare((fields, status, body): (Vec<(String, String)>, u16, String)) -> String {
    let server = Arc::new(tiny_http::Server::http("127.0.0.1:0").expect("a free port"));
    let address = server.server_addr().to_ip().expect("TCP").to_string();
    let fields: Arc<Vec<tiny_http::Header>> = Arc::new(
        fields.iter().map(|(name, value)| tiny_http::Header::from_bytes(&**name, &**value).expect("ASCII")).collect(),
    );
    for _ in 0..WORKERS {
        let (server, fields, body) = (Arc::clone(&server), Arc::clone(&fields), body.clone());
        thread::spawn(move || {
            while let Ok(request) = server.recv() {
                let (length, body) = (body.len(), Cursor::new(body.clone().into_bytes()));
                let _ =
                    request.respond(tiny_http::Response::new(status.into(), fields.to_vec(), body, Some(length), None));
            }
        });
    }
    format!("http://{address}/")
}

/// Requests a second, and the 99th percentile of latency in microseconds with its text.
fn wrk(url: &str, connections: u32) -> (f64, f64, String) {
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
    let number = p99.trim_end_matches(char::is_alphabetic).parse::<f64>().expect("a time");
    let micros = number
        * if p99.ends_with("us") {
            1.0
        } else if p99.ends_with("ms") {
            1e3
        } else {
            1e6
        };
    (value("Requests/sec:").parse().expect("a rate"), micros, p99)
}

/// The median rate, and the median latency's text.
fn median(mut runs: Vec<(f64, f64, String)>) -> (f64, String) {
    runs.sort_by(|a, b| a.1.total_cmp(&b.1));
    let p99 = runs[runs.len() / 2].2.clone();
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    (runs[runs.len() / 2].0, p99)
}
