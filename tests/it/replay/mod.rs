//! `tollgate replay` as a process: what it prints.

/// What it says about bad input, and how it ends.
mod errors;
/// `--plot`.
mod pictures;
/// What was served comes out again.
mod served;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::Value;

/// The program with these settings, and nothing else in its environment.
fn replay(settings: &[(&str, &str)], arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.env_clear().envs(settings.iter().copied()).arg("replay").args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it over an input and waits for its end.
fn run(settings: &[(&str, &str)], arguments: &[&str], input: &[u8]) -> Output {
    let mut child = replay(settings, arguments).arg("-").spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a piped standard input");
    thread::scope(|scope| {
        scope.spawn(move || {
            // It may end before it has read all.
            let _ = stdin.write_all(input);
        });
        child.wait_with_output().expect("the program ends")
    })
}

/// What it printed, if all went well and nothing was to be said.
fn printed(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said(output), "");
    str::from_utf8(&output.stdout).expect("text")
}

fn said(output: &Output) -> &str {
    str::from_utf8(&output.stderr).expect("text")
}

fn vectors() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    fs::read_dir(folder).expect("the histories are there").map(|file| file.expect("a directory entry").path()).collect()
}

/// The settings in a line like `# policy: fixed-window limit=10 window_us=60000000`.
fn settings(policy: &str) -> Vec<(&str, String)> {
    let (algorithm, numbers) = policy.strip_prefix("# policy: ").expect("a policy").split_once(' ').expect("numbers");
    let number = |name: &str| -> u64 {
        let number = numbers.split(' ').find_map(|number| number.strip_prefix(name)?.strip_prefix('='));
        number.expect("a setting").parse().expect("a number")
    };
    let ms = |name| format!("{}ms", number(name) / 1_000);
    let mut settings = vec![("ALGORITHM", algorithm.to_owned())];
    if algorithm == "token-bucket" {
        settings.push(("CAPACITY", number("capacity").to_string()));
        settings.push(("REFILL_RATE", format!("{}/{}", number("tokens"), ms("period_us"))));
    } else {
        settings.push(("LIMIT", number("limit").to_string()));
        settings.push(("WINDOW", ms("window_us")));
    }
    settings
}

#[test]
fn every_history_comes_out_byte_for_byte() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 12, "a history is missing");
    for path in vectors {
        let text = fs::read_to_string(&path).expect("a history is text");
        let (policy, history) = text.split_once('\n').expect("two lines");
        let settings = settings(policy);
        let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let first_three = |line: &str| -> String {
            let fields: Vec<&str> = line.split(',').take(3).collect();
            fields.join(",") + "\n"
        };
        let requests: String = history.lines().skip(1).map(first_three).collect();
        // The columns that a request has, and the whole file with the names above its columns.
        for input in [&requests, &text] {
            let output = run(&settings, &["--decisions", "--strict"], input.as_bytes());
            // Some have a clock that goes back, which is told.
            assert!(output.status.success(), "{}", said(&output));
            assert!(output.stdout == history.as_bytes(), "{} with {settings:?}", path.display());
        }
    }
}

/// A log of one second: one client comes 12 times from one IPv6 network, another once.
fn access_log() -> String {
    let line =
        |client: String| format!("{client} - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n");
    let mut log: String = (1..=12).map(|host| line(format!("2001:db8::{host}"))).collect();
    log += &line("203.0.113.7".into());
    log
}

#[test]
fn an_access_log_is_told_by_its_content_packed_or_not() {
    let log = access_log();
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(log.as_bytes()).expect("memory takes it");
    let packed = packer.finish().expect("memory takes it");
    let plain = run(&[("LIMIT", "10")], &["--decisions", "--algorithm", "fixed-window"], log.as_bytes());
    let lines: Vec<&str> = printed(&plain).lines().collect();
    assert_eq!(lines.len(), 14);
    assert_eq!(lines[10], "971211336000000,2001:db8::10,1,allowed,0,,24000000");
    assert_eq!(lines[11], "971211336000000,2001:db8::11,1,refused,0,24000000,24000000");
    assert_eq!(lines[13], "971211336000000,203.0.113.7,1,allowed,9,,24000000");
    let unpacked = run(&[("LIMIT", "10")], &["--decisions", "--algorithm", "fixed-window"], &packed);
    assert_eq!(printed(&unpacked), printed(&plain));
    let apart = run(&[("IPV6_PREFIX", "128")], &["--decisions", "--algorithm", "fixed-window"], log.as_bytes());
    assert!(!printed(&apart).contains("refused"), "each address is a client of its own");
    let cut = run(&[], &["--decisions"], &packed[..packed.len() - 9]);
    assert_eq!(cut.status.code(), Some(1));
    assert!(said(&cut).contains("cannot be read on"), "{}", said(&cut));
}

#[test]
fn the_table_has_a_row_for_each_algorithm_and_names_who_was_refused_most() {
    let log = access_log();
    let output = run(&[("LIMIT", "10"), ("CAPACITY", "11")], &[], log.as_bytes());
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<Vec<String>> = printed(&output).lines().map(fields).collect();
    assert_eq!(lines[2][..10], ["token-bucket", "11:1/1s", "13", "12", "1", "2", "1", "11", "7.692%", "0.000%"]);
    assert_eq!(lines[3], ["fixed-window", "10/60s", "13", "11", "2", "2", "1", "10", "0.000%", "0.000%", "32"]);
    assert_eq!(lines[4], ["sliding-window-log", "10/60s", "13", "11", "2", "2", "1", "10", "0.000%", "0.000%", "88"]);
    assert_eq!(lines[5][0], "sliding-window-counter");
    assert_eq!(lines[9], ["2001:db8::/64", "12", "1", "2", "2", "2"]);
    assert_eq!(lines.len(), 10);
}

#[test]
fn several_policies_are_a_row_each_and_one_together() {
    let policies = "burst=token-bucket:3:1/1s;minute=sliding-window-counter:5/1m";
    let input: String = (0..8).map(|n| format!("{},a\n", n * 500_000)).collect();
    let output = run(&[("POLICIES", policies)], &["--json"], input.as_bytes());
    let report: Value = serde_json::from_str(printed(&output)).expect("JSON");
    let rows: Vec<(&str, u64)> = report["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| (row["name"].as_str().expect("a name"), row["allowed"].as_u64().expect("a number")))
        .collect();
    // 3 at once and one a second; 5 a minute; both.
    assert_eq!(rows, [("burst", 6), ("minute", 5), ("all together", 5)]);
    assert!(report["rows"][0]["wrongly_let_in"].is_null(), "no log stands for a bucket");
    assert_eq!(report["rows"][1]["wrongly_let_in"], 0);
    let output = run(&[("POLICIES", policies)], &["--decisions"], b"0,a,2\n0,a,2\n0,a,6\n");
    let lines: Vec<&str> = printed(&output).lines().skip(1).collect();
    assert_eq!(lines[0], "0,a,2,allowed,1,,120000000");
    assert_eq!(lines[1], "0,a,2,refused,1,1000000,120000000");
    assert_eq!(lines[2], "0,a,6,never,1,,120000000");
}

/// name → (requests, allowed, most in a window) of a report in JSON.
fn figures(output: &Output) -> Vec<(String, u64, u64, u64)> {
    let report: Value = serde_json::from_str(printed(output)).expect("JSON");
    let rows = report["rows"].as_array().expect("rows").iter();
    let number = |row: &Value, name: &str| row[name].as_u64().expect("a number");
    rows.map(|row| {
        let name = format!("{} {}", row["name"].as_str().expect("a name"), row["settings"].as_str().expect("settings"));
        (name, number(row, "requests"), number(row, "allowed"), number(row, "most_in_window"))
    })
    .collect()
}

fn generated(arguments: &[&str]) -> Output {
    replay(&[("LIMIT", "10"), ("WINDOW", "10s")], arguments).output().expect("the program runs")
}

#[test]
fn twenty_requests_round_a_border_and_twice_the_rate_for_two_windows_come_out_as_the_readme_says() {
    let row = |name: &str, requests, allowed, most| (name.to_owned(), requests, allowed, most);
    assert_eq!(
        figures(&generated(&["--json", "--generate", "boundary"])),
        [
            row("token-bucket 10:1/1s", 20, 11, 11),
            row("fixed-window 10/10s", 20, 20, 20),
            row("sliding-window-log 10/10s", 20, 10, 10),
            row("sliding-window-counter 10/10s", 20, 10, 10),
        ]
    );
    assert_eq!(figures(&generated(&["--json", "--generate", "steady"]))[0], row("token-bucket 10:1/1s", 40, 29, 19));
}

#[test]
fn the_same_seed_makes_the_same_traffic_and_all_of_it_is_in_order() {
    for pattern in ["boundary", "burst", "steady", "poisson", "herd"] {
        let made =
            |seed| generated(&["--decisions", "--algorithm", "fixed-window", "--generate", pattern, "--seed", seed]);
        let (one, again, two) = (made("1"), made("1"), made("2"));
        let lines = printed(&one);
        assert!(lines == printed(&again), "{pattern}");
        let random = !matches!(pattern, "boundary" | "steady");
        assert_eq!(lines != printed(&two), random, "{pattern}");
        let times = lines.lines().skip(1).map(|line| line.split(',').next().and_then(|time| time.parse::<u64>().ok()));
        let times: Vec<u64> = times.collect::<Option<_>>().expect("times");
        assert!(times.is_sorted(), "{pattern}");
        assert!((20..1_500_000).contains(&times.len()), "{pattern}: {}", times.len());
    }
    let output = replay(&[("LIMIT", "100001")], &["--generate", "herd"]).output().expect("the program runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("LIMIT is '100001'"), "{}", said(&output));
}

#[test]
fn a_sweep_has_a_row_for_each_value_and_each_algorithm_that_the_setting_is_one_of() {
    let names = |sweep: &str| -> Vec<String> {
        let output = run(&[], &["--json", "--sweep", sweep], b"0,a\n1,a\n2,a\n");
        figures(&output).into_iter().map(|(name, ..)| name).collect()
    };
    assert_eq!(names("CAPACITY=1,2"), ["token-bucket 1:1/1s", "token-bucket 2:1/1s"]);
    assert_eq!(names("refill-rate=100/1m"), ["token-bucket 10:1/600ms"]);
    assert_eq!(names("window= 1s"), ["fixed-window 10/1s", "sliding-window-log 10/1s", "sliding-window-counter 10/1s"]);
    assert_eq!(names("LIMIT=1,2").len(), 6);
    let output = run(&[], &["--json", "--sweep", "LIMIT=2,3"], b"0,a\n1,a\n2,a\n");
    let allowed: Vec<u64> = figures(&output).into_iter().map(|(_, _, allowed, _)| allowed).collect();
    assert_eq!(allowed, [2, 2, 2, 3, 3, 3]);
    for (sweep, named) in [
        ("LIMIT=5,x", "--sweep LIMIT is 'x'"),
        ("LIMIT=", "--sweep LIMIT is ''"),
        ("LIMIT=0", "--sweep LIMIT is '0'"),
        ("PORT=1", "--sweep is 'PORT=1'"),
        ("LIMIT", "--sweep is 'LIMIT'"),
    ] {
        let output = run(&[], &["--sweep", sweep], b"");
        assert_eq!(output.status.code(), Some(2), "{sweep}");
        assert!(said(&output).contains(named), "{}", said(&output));
    }
}

#[test]
fn a_suggestion_is_the_smallest_limit_and_names_the_setting() {
    // Ten clients, of which the nth comes n times at once.
    let input: String = (1..=10).map(|n| format!("0,c{n}\n").repeat(n)).collect();
    let output = run(&[], &["--suggest", "90"], input.as_bytes());
    let lines: Vec<Vec<&str>> =
        printed(&output).lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["token-bucket", "9:1/1s", "9", "90.000%", "10"]);
    assert_eq!(lines[3], ["sliding-window-counter", "9/60s", "9", "90.000%", "10"]);
    let output = run(&[], &["--suggest", "101"], b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("--suggest is '101'"), "{}", said(&output));
    // A cost that no log holds.
    let output = run(&[], &["--suggest", "100"], b"0,a,10000001\n");
    let lines: Vec<&str> = printed(&output).lines().collect();
    assert!(lines[4].starts_with("sliding-window-log") && lines[4].contains("none"), "{lines:?}");
}
