//! Bad input, bad settings and readers that go: what is said on standard error, and the exit status.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::thread;
use std::time::Duration;

use tollgate::Policy;
use tollgate::replay::{self as library, Reading, Task};

use super::{replay, run, said};

/// Lines whose amounts are below zero, no number, and beyond 32 bits.
const ODD_COSTS: &str = "0,a\n1,a,-1\n2,a,abc\n3,a,4294967296\n4,a,0\n5,a\n";

#[test]
fn odd_costs_are_no_requests_and_a_cost_above_the_limit_never_passes() {
    let settings = [("LIMIT", "10"), ("WINDOW", "60s")];
    let output = run(&settings, &["--decisions", "--algorithm", "fixed-window"], ODD_COSTS.as_bytes());
    assert!(output.status.success());
    assert_eq!(
        str::from_utf8(&output.stdout).expect("text"),
        "time,client,cost,outcome,remaining,retry_after_us,reset_after_us\n\
         0,a,1,allowed,9,,60000000\n\
         3,a,4294967296,never,9,,59999997\n\
         4,a,0,allowed,9,,59999996\n\
         5,a,1,allowed,8,,59999995\n"
    );
    assert_eq!(
        said(&output),
        "tollgate: line 2: cost is '-1'; accepted is a whole number from 0\n\
         tollgate: line 3: cost is 'abc'; accepted is a whole number from 0\n\
         tollgate: 2 lines are no requests and were skipped\n"
    );
}

#[test]
fn strict_stops_at_the_first_line_that_is_no_request() {
    let output = run(&[], &["--decisions", "--strict"], ODD_COSTS.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output), "tollgate: line 2: cost is '-1'; accepted is a whole number from 0\n");
    let lines = str::from_utf8(&output.stdout).expect("text").lines().count();
    assert_eq!(lines, 2, "the names and what was decided before");
    let output = run(&[], &["--strict"], ODD_COSTS.as_bytes());
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "no report of half the input");
}

#[test]
fn of_many_lines_that_are_no_requests_the_first_few_are_shown_and_all_are_counted() {
    let input = "0,a\n".to_owned() + &"x\n".repeat(1_000);
    let output = run(&[], &["--decisions"], input.as_bytes());
    assert!(output.status.success());
    let said: Vec<&str> = said(&output).lines().collect();
    assert_eq!(said.len(), 6);
    assert!(said[4].starts_with("tollgate: line 6: "), "{said:?}");
    assert_eq!(said[5], "tollgate: 1000 lines are no requests and were skipped");
}

#[test]
fn an_input_without_requests_is_an_error_only_when_it_has_lines() {
    for empty in ["", "\n\n", "# nothing today\n", "time,client\n"] {
        let output = run(&[], &["--decisions"], empty.as_bytes());
        assert!(output.status.success());
        assert_eq!(said(&output), "tollgate: the input has no requests\n");
        assert!(run(&[], &[], empty.as_bytes()).status.success());
    }
    let noise: Vec<u8> = (0..100_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for arguments in [&["--decisions"][..], &[], &["--json"], &["--format", "trace"], &["--format", "access-log"]] {
        let output = run(&[], arguments, &noise);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = said(&output);
        assert!(said.lines().last().is_some_and(|last| last.contains("is a request")), "{said}");
        assert!(said.lines().all(|line| line.len() < 1_000), "lines for people");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_told_by_its_name() {
    let missing = "/nowhere/access.log";
    for (path, status) in [(missing, 1), (env!("CARGO_MANIFEST_DIR"), 1)] {
        let output = replay(&[], &[path]).output().expect("the program runs");
        assert_eq!(output.status.code(), Some(status));
        assert!(said(&output).contains(path), "{}", said(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn what_was_read_before_an_input_breaks_is_reported_and_the_break_is_an_error() {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(b"0,a\n1,a\n2,b\n").expect("memory takes it");
    let packed = packer.finish().expect("memory takes it");
    let whole = run(&[], &["--json"], &packed);
    assert!(whole.status.success());
    let broken = run(&[], &["--json"], &[&packed[..], b"no gzip"].concat());
    assert_eq!(broken.status.code(), Some(1));
    assert_eq!(broken.stdout, whole.stdout);
    assert!(said(&broken).contains("cannot be read on after line 3: "), "{}", said(&broken));
    let nothing = run(&[], &["--json"], &packed[..12]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(nothing.stdout.is_empty());
    assert!(said(&nothing).contains("the input cannot be read: "), "{}", said(&nothing));
}

#[test]
fn times_that_go_back_are_told() {
    for (input, expected) in [
        ("5,a\n5,a\n6,b\n", ""),
        ("5000000,a\n3000000,a\n", "1 request is 2s before one above it"),
        ("90,a\n50,a\n60,b\n90,a\n85,a\n", "3 requests are before one above them, by 40µs at most"),
    ] {
        let output = run(&[], &[], input.as_bytes());
        assert!(output.status.success(), "{input:?}");
        assert_eq!(said(&output).lines().count(), usize::from(!expected.is_empty()), "{}", said(&output));
        assert!(said(&output).contains(expected), "{}", said(&output));
    }
}

#[test]
fn settings_that_make_no_sense_stop_it_before_it_reads() {
    for (settings, arguments, named) in [
        (&[("LIMIT", "0")][..], &["-"][..], "LIMIT is '0'"),
        (&[], &["--window", "1w", "-"], "--window is '1w'"),
        (&[], &["--format", "json", "-"], "--format is 'json'"),
        (&[], &["--limit", "20000000", "-"], "sliding-window-log"),
        (&[], &["--decisions", "--json", "-"], "--json"),
        (&[], &[], "<FILE>"),
        (&[], &["--nonsense", "-"], "--nonsense"),
        (&[], &["--ipv6-prefix", "129", "-"], "--ipv6-prefix is '129'"),
        (&[], &["--generate", "noise"], "--generate is 'noise'"),
        (&[], &["--seed", "1", "-"], "--seed"),
        (&[], &["--generate", "herd", "--seed", "+1"], "--seed is '+1'"),
        (&[], &["--client", "a", "-"], "--plot"),
        (&[("POLICIES", "a=fixed-window:1/1s")], &["--sweep", "LIMIT=1", "-"], "POLICIES"),
        (&[("POLICIES", "a=fixed-window:1/1s")], &["--suggest", "99", "-"], "POLICIES"),
        (&[("POLICIES", "a=fixed-window:1/1s")], &["--plot", "x.svg", "-"], "POLICIES"),
        (&[("POLICIES", "a=fixed-window:1/1s"), ("LIMIT", "5")], &["-"], "POLICIES"),
    ] {
        let output = replay(settings, arguments).output().expect("the program runs");
        assert_eq!(output.status.code(), Some(2), "{settings:?} {arguments:?}");
        assert!(said(&output).contains(named), "{}", said(&output));
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_it_quietly() {
    let input: String = (0..200_000).map(|time| format!("{time},a\n")).collect();
    let mut child = replay(&[], &["--decisions", "-"]).spawn().expect("the program starts");
    let (mut stdin, stdout) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    thread::scope(|scope| {
        scope.spawn(move || {
            let _ = stdin.write_all(input.as_bytes());
        });
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert!(line.starts_with("time,"));
    });
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert_eq!(said, "");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

/// Gives its bytes after longer than no progress is told, and then cannot be read on.
struct Broken<'a>(&'a [u8]);

impl Read for Broken<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        const LONG: Duration = Duration::from_millis(1_100);
        match self.0.len() {
            0 => return Err(io::Error::other("gone")),
            length if length == LINES * LINE.len() => thread::sleep(LONG),
            _ => {}
        }
        self.0.read(buffer)
    }
}

/// More than are read between two words about the progress.
const LINES: usize = 100_000;
const LINE: &str = "0,a\n";

#[test]
fn the_progress_gives_its_line_back_however_the_reading_ends() {
    let policy = Policy::fixed_window(10, Duration::from_secs(60)).expect("within the bounds");
    for progress in [true, false] {
        let reading = Reading { format: None, strict: true, ipv6_prefix: 64, progress };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let input = LINE.repeat(LINES);
        let task = Task::Decisions(policy.clone().into());
        let done = library::run(&task, reading, Broken(input.as_bytes()), &mut out, &mut err);
        assert!(matches!(done, Err(library::ReplayError::Read { lines: 100_000, .. })), "{done:?}");
        let said = String::from_utf8(err).expect("text");
        if progress {
            assert!(said.starts_with("\r65536 lines in ") && said.ends_with(" s\r\u{1b}[K"), "{said:?}");
        } else {
            assert_eq!(said, "");
        }
    }
}
