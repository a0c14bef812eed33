//! The histories under `tests/vectors`, field by field: three clients, costs from 0 to above the quota, instants one
//! microsecond either side of each border, clocks that go back.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tollgate::{Builder, ManualClock, Outcome, Policy, RateLimiter, Timestamp};

#[test]
fn every_row_of_every_history_is_decided_as_the_model_did() {
    follow_all(|builder, clock| builder.clock(clock.clone()).build());
}

/// Follows each history with the limiter that `build` makes of its policy, at the times of the clock.
pub(crate) fn follow_all(build: impl Fn(Builder, &ManualClock) -> RateLimiter) {
    let mut rows = 0;
    for file in
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")).expect("the histories are there")
    {
        let path = file.expect("a directory entry").path();
        let text = fs::read_to_string(&path).expect("a history is text");
        let clock = ManualClock::default();
        let mut lines = text.lines();
        let limiter = build(RateLimiter::builder(policy(lines.next().expect("a policy line"))), &clock);
        assert_eq!(lines.next(), Some("time,client,cost,outcome,remaining,retry_after_us,reset_after_us"));
        for (number, line) in lines.enumerate() {
            let fields: Vec<&str> = line.split(',').collect();
            clock.set(Timestamp::from_micros(fields[0].parse().expect("a time")));
            let decision = limiter.check_n(fields[1], fields[2].parse().expect("a cost"));
            let verdict = decision.verdicts()[0];
            let (outcome, retry_after) = match decision.outcome() {
                Outcome::Allowed => ("allowed", String::new()),
                Outcome::Refused { retry_after } => ("refused", retry_after.as_micros().to_string()),
                Outcome::Never => ("never", String::new()),
                Outcome::Unavailable { .. } => panic!("the store does not answer"),
            };
            let got = format!(
                "{},{},{},{outcome},{},{retry_after},{}",
                fields[0],
                fields[1],
                fields[2],
                verdict.remaining(),
                verdict.reset_after().as_micros()
            );
            assert_eq!(got, line, "{}, row {}", path.display(), number + 3);
            rows += 1;
        }
    }
    assert_eq!(rows, 12 * 400, "a history is missing or cut");
}

/// Reads `# policy: fixed-window limit=10 window_us=60000000`.
fn policy(line: &str) -> Policy {
    let line = line.strip_prefix("# policy: ").expect("a policy line");
    let (algorithm, settings) = line.split_once(' ').expect("settings");
    let value = |name: &str| -> u64 {
        let setting = settings.split(' ').find_map(|setting| setting.strip_prefix(name)?.strip_prefix('='));
        setting.unwrap_or_else(|| panic!("{line} has {name}")).parse().expect("a number")
    };
    let window = || Duration::from_micros(value("window_us"));
    match algorithm {
        "token-bucket" => {
            Policy::token_bucket(value("capacity"), value("tokens"), Duration::from_micros(value("period_us")))
        }
        "fixed-window" => Policy::fixed_window(value("limit"), window()),
        "sliding-window-log" => Policy::sliding_window_log(value("limit"), window()),
        "sliding-window-counter" => Policy::sliding_window_counter(value("limit"), window()),
        other => panic!("{other} is no algorithm"),
    }
    .expect("a valid policy")
}
