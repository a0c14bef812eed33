//! The service beside a bare tiny_http program with as many workers and answers of as many bytes, which is the floor: what
//! is above it is ours. The contenders take turns.

mod report;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, reason = "what the tests need is more than what a bench needs")]
mod support;
mod wrk;

use std::io::Cursor;
use std::sync::Arc;
use std::thread;

use report::{Report, median};
use support::{Reply, Service};

const ROUNDS: usize = 5;
const WORKERS: usize = 4;

fn main() {
    if !wrk::is_installed() {
        return;
    }
    let workers = WORKERS.to_string();
    let open = Service::start(&[("WORKERS", &workers), ("CAPACITY", "900000000"), ("REFILL_RATE", "900000000")]);
    let shut = Service::start(&[("WORKERS", &workers), ("CAPACITY", "1"), ("REFILL_RATE", "1/1d")]);
    shut.get("/limited");
    // The floor sends the bytes of each answer, taken from the service itself.
    let pairs = [
        ("/unlimited", &open, "/unlimited"),
        ("/limited, allowed", &open, "/limited"),
        ("/limited, refused", &shut, "/limited"),
    ]
    .map(|(name, service, path)| (name, bare(service.get(path)), format!("http://{}{path}", service.address())));
    let caption =
        format!("requests a second, medians of {ROUNDS} alternating runs of {} s, {WORKERS} workers", wrk::SECONDS);
    let columns = ["connections", "answer", "bare tiny_http", "p99", "tollgate", "p99", "ratio", "ratio of p99"];
    let mut report = Report::begin("http", &caption, &columns);
    for connections in [16, 64] {
        for (name, floor, ours) in &pairs {
            let mut runs: [Vec<wrk::Load>; 2] = Default::default();
            for _ in 0..ROUNDS {
                for (url, runs) in [floor, ours].into_iter().zip(&mut runs) {
                    runs.push(wrk::load(url, connections));
                }
            }
            let [floor, ours] = runs.map(|runs| {
                let rate = median(runs.iter().map(|run| run.requests_a_second).collect());
                (rate, median(runs.iter().map(|run| run.p99_micros).collect()))
            });
            report.row(&[
                connections.to_string(),
                (*name).to_owned(),
                format!("{:.0}", floor.0),
                format!("{:.0} µs", floor.1),
                format!("{:.0}", ours.0),
                format!("{:.0} µs", ours.1),
                format!("{:.2}", ours.0 / floor.0),
                format!("{:.2}", ours.1 / floor.1),
            ]);
            report.bar(format!("{name}, {connections} connections"), ours.0 / floor.0);
        }
    }
    report.end();
}

/// A tiny_http program of a receive and a respond, in this process, that sends the same bytes. Gives its URL.
fn bare(Reply { status, headers, body }: Reply) -> String {
    let server = Arc::new(tiny_http::Server::http("127.0.0.1:0").expect("a free port"));
    let address = server.server_addr().to_ip().expect("TCP");
    let own = |name: &str| name == "Date" || name == "Content-Length";
    let fields: Arc<Vec<tiny_http::Header>> = Arc::new(
        headers
            .iter()
            .filter(|(name, _)| !own(name))
            .map(|(name, value)| tiny_http::Header::from_bytes(&**name, &**value).expect("ASCII"))
            .collect(),
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
