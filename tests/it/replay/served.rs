//! What a service let in and refused over HTTP, its traffic replayed with the same settings decides again: from times in
//! microseconds, and from an access log, whose times are whole seconds.
//!
//! When exactly the service decided, its client does not know: it notes when it sent the request and when the answer was
//! there. Outcomes and what remains must not hang on that, so nothing is refilled in the time of a test and no window ends
//! in it; the waits do, and are held to the bounds that the noted times give.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde_json::Value;

use super::{printed, run};
use crate::support::Service;

/// Longer than one service of these tests is asked.
const TEST: Duration = Duration::from_secs(300);

/// In the order of the requests: the address that the proxy tells, and the client that it belongs to.
const CLIENTS: [(&str, &str); 4] = [
    ("203.0.113.7", "203.0.113.7"),
    ("2001:db8::1", "2001:db8::/64"),
    ("198.51.100.20", "198.51.100.20"),
    ("2001:db8::ffff:2", "2001:db8::/64"),
];

/// A request that was answered.
struct Served {
    address: &'static str,
    client: &'static str,
    /// Microseconds since the epoch.
    sent: u64,
    answered: u64,
    status: u16,
    remaining: u64,
    /// Microseconds, rounded up to whole milliseconds.
    wait: Option<u64>,
}

/// A line of `--decisions`.
struct Replayed {
    outcome: String,
    remaining: u64,
    wait: Option<u64>,
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock behind 1970")
}

fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().expect("a time of this age")
}

/// About a day, such that no window of this length ends while the test runs.
fn window() -> String {
    let hours = (24..).find(|hours| {
        let window = hours * 3_600;
        now().as_secs() % window + TEST.as_secs() < window
    });
    format!("{}h", hours.expect("a length without a border"))
}

/// Asks a service with these settings, in turn as each of the clients.
fn serve(settings: &[(&str, &str)]) -> Vec<Served> {
    let service = Service::start(&[settings, &[("TRUSTED_PROXIES", "127.0.0.1")]].concat());
    let mut connection = service.connect();
    let ask = |&(address, client): &(&'static str, &'static str)| {
        let sent = micros(now());
        let reply = connection.request("GET", "/limited", &[("X-Forwarded-For", address)]);
        let answered = micros(now());
        let policies = reply.header("RateLimit").expect("what remains").split(", ");
        let remaining = policies.map(|policy| {
            let remaining = policy.split(';').find_map(|parameter| parameter.strip_prefix("r="));
            remaining.and_then(|remaining| remaining.parse::<u64>().ok()).expect("a number")
        });
        let remaining = remaining.min().expect("a policy");
        let wait = (reply.status == 429).then(|| {
            let body: Value = serde_json::from_str(&reply.body).expect("JSON");
            body["retry_after_ms"].as_u64().expect("a number") * 1_000
        });
        Served { address, client, sent, answered, status: reply.status, remaining, wait }
    };
    CLIENTS.iter().cycle().take(8 * CLIENTS.len()).map(ask).collect()
}

/// The line that a proxy in front of the service writes, east of Greenwich.
fn log_line(served: &Served) -> String {
    const HOURS_EAST: i64 = 2;
    let seconds = i64::try_from(served.sent / 1_000_000).expect("a time of this age");
    let local = Timestamp::from_second(seconds + HOURS_EAST * 3_600).expect("a time of this age");
    let time = local.strftime("%d/%b/%Y:%H:%M:%S");
    let Served { address, status, .. } = served;
    format!("{address} - - [{time} +0{HOURS_EAST}00] \"GET /limited HTTP/1.1\" {status} 3\n")
}

fn replayed(settings: &[(&str, &str)], input: &str) -> Vec<Replayed> {
    let output = run(settings, &["--decisions", "--strict"], input.as_bytes());
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let remaining = fields[4].parse().expect("a number");
        Replayed { outcome: fields[3].to_owned(), remaining, wait: fields[5].parse().ok() }
    };
    printed(&output).lines().skip(1).map(line).collect()
}

#[test]
fn what_was_served_is_decided_again_from_its_trace_and_from_its_access_log() {
    let window = window();
    let several = format!("burst=token-bucket:3:1/1d;day=sliding-window-counter:5/{window}");
    for settings in [
        &[("ALGORITHM", "token-bucket"), ("CAPACITY", "5"), ("REFILL_RATE", "1/1d")][..],
        &[("ALGORITHM", "fixed-window"), ("LIMIT", "5"), ("WINDOW", &window)],
        &[("ALGORITHM", "sliding-window-log"), ("LIMIT", "5"), ("WINDOW", &window)],
        &[("ALGORITHM", "sliding-window-counter"), ("LIMIT", "5"), ("WINDOW", &window)],
        &[("POLICIES", &several)],
    ] {
        let served = serve(settings);
        let (mut trace, mut log) = (String::new(), String::new());
        for request in &served {
            writeln!(trace, "{},{}", request.sent, request.client).expect("memory takes it");
            log += &log_line(request);
        }
        let (by_trace, by_log) = (replayed(settings, &trace), replayed(settings, &log));
        assert_eq!((by_trace.len(), by_log.len()), (served.len(), served.len()), "{settings:?}");
        for (number, request) in served.iter().enumerate() {
            let outcome = match request.status {
                200 => "allowed",
                429 => "refused",
                status => panic!("{status} is no decision"),
            };
            let decided = (outcome, request.remaining);
            for (source, replayed) in [("trace", &by_trace[number]), ("log", &by_log[number])] {
                let replayed = (&*replayed.outcome, replayed.remaining);
                assert_eq!(replayed, decided, "request {number} from the {source} with {settings:?}");
            }
            // The service was asked after the time in the trace, and a state may have begun after its time there.
            let first = served.iter().find(|first| first.client == request.client).expect("the client has come");
            let wait = by_trace[number].wait;
            let least = wait.map(|wait| wait - (request.answered - request.sent));
            let most = wait.map(|wait| (wait + first.answered - first.sent).next_multiple_of(1_000));
            assert!(least <= request.wait && request.wait <= most, "{least:?} {:?} {most:?}", request.wait);
        }
        // One IPv6 network came twice as often as the others.
        let refused = served.iter().filter(|request| request.status == 429).count();
        let limit = if settings[0].0 == "POLICIES" { 3 } else { 5 };
        assert_eq!(refused, (8 - limit) * 2 + 16 - limit, "{settings:?}");
    }
}
