use proptest::prelude::*;

use super::*;

/// A request as (µs, client, cost), or the number of a line that is none, and the problem.
type Told = Result<(u64, String, u64), (u64, String)>;

/// What the lines say.
fn read(text: &[u8], format: Option<Format>) -> Vec<Told> {
    let mut requests = Requests::new(text, format);
    let mut all = Vec::new();
    while requests.advance().expect("memory can be read") {
        let number = requests.number();
        match requests.request() {
            None => {}
            Some(Ok(Request { time, client, cost, .. })) => {
                all.push(Ok((time.as_micros(), String::from_utf8_lossy(&client).into_owned(), cost)));
            }
            Some(Err(problem)) => all.push(Err((number, problem.to_string()))),
        }
    }
    all
}

fn request(line: &str) -> Option<(u64, String, u64)> {
    let mut all = read(line.as_bytes(), None);
    assert!(all.len() <= 1, "{line:?} is one line");
    all.pop()?.ok()
}

#[test]
fn lines_of_a_trace_are_time_client_and_cost() {
    for (line, time, client, cost) in [
        ("0,a", 0, "a", 1),
        ("7,a,0", 7, "a", 0),
        ("007,a,03", 7, "a", 3),
        (" 7 , a , 3 ", 7, "a", 3),
        ("18446744073709551615,a,18446744073709551615", u64::MAX, "a", u64::MAX),
        ("7,2001:db8::1,2", 7, "2001:db8::1", 2),
        ("7,a b,2", 7, "a b", 2),
        ("7,a#1", 7, "a#1", 1),
        ("7,a # why, oh why", 7, "a", 1),
        ("7,a,2 # twice", 7, "a", 2),
        ("7,a,2#twice", 0, "", 0),
        ("7,\"a, b\",2", 7, "a, b", 2),
        ("7, \"a \"\"b\"\" #c\" ,2", 7, "a \"b\" #c", 2),
        ("7,\"a\"", 7, "a", 1),
        ("7,\"\"\"\"", 7, "\"", 1),
        ("\u{feff}7,a", 7, "a", 1),
    ] {
        let expected = (!client.is_empty()).then(|| (time, client.to_owned(), cost));
        assert_eq!(request(line), expected, "{line:?}");
    }
}

#[test]
fn what_is_no_request_is_told_with_its_number_its_text_and_what_is_accepted() {
    for (line, problem) in [
        ("x,a", "time is 'x'; accepted is whole microseconds"),
        ("-1,a", "time is '-1'; accepted is whole microseconds"),
        ("+1,a", "time is '+1'; accepted is whole microseconds"),
        ("1.5,a", "time is '1.5'; accepted is whole microseconds"),
        ("18446744073709551616,a", "time is '18446744073709551616'; accepted is whole microseconds"),
        (",a", "time is ''; accepted is whole microseconds"),
        ("1", "line is '1'; accepted is time,client or time,client,cost"),
        ("1,", "client is ''; accepted is any name"),
        ("1,\"\"", "client is ''; accepted is any name"),
        ("1,\"a", "client is '\\\"a'; accepted is a name, or one in quotes with its quotes doubled"),
        ("1,\"a\"b", "client is '\\\"a\\\"b'; accepted is a name, or one in quotes with its quotes doubled"),
        ("1,a,", "cost is ''; accepted is a whole number from 0"),
        ("1,a,-1", "cost is '-1'; accepted is a whole number from 0"),
        ("1,a,1e3", "cost is '1e3'; accepted is a whole number from 0"),
        (
            "1,a,1,allowed",
            "line is '1,a,1,allowed'; accepted is time,client or time,client,cost, unless a first line names more columns",
        ),
        ("1,a\u{0},\u{1}", "cost is '\\x01'; accepted is a whole number from 0"),
    ] {
        let text = format!("0,first\n{line}\n");
        assert_eq!(read(text.as_bytes(), None)[1..], [Err((2, problem.to_owned()))], "{line:?}");
    }
}

#[test]
fn a_line_of_names_says_which_columns_there_are() {
    let all = |text: &str| read(text.as_bytes(), None);
    let seven = "# policy\n\ntime,client,cost,outcome,remaining,retry_after_us,reset_after_us\n1,a,2,allowed,0,,7\n";
    assert_eq!(all(seven), [Ok((1, "a".into(), 2))]);
    assert_eq!(all("Time, Client, status\n1,a,200\n"), [Ok((1, "a".into(), 1))]);
    assert_eq!(all("time,client\n1,a\ntime,client,cost\n1,a,2\n"), [Ok((1, "a".into(), 1)), Ok((1, "a".into(), 2))]);
    assert!(matches!(all("time,client\n1,a,2\n")[..], [Err((2, _))]));
    assert!(matches!(all("time,client,cost,x\n1,a,2,3,4\n")[..], [Err((2, _))]));
}

/// 10/Oct/2000:13:55:36 -0700.
const OCTOBER: u64 = 971_211_336_000_000;

#[test]
fn lines_of_access_logs_as_nginx_and_apache_write_them() {
    for (line, time, client) in [
        (
            r#"127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326"#,
            OCTOBER,
            "127.0.0.1",
        ),
        (
            r#"127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 2326 "http://a/?q=\"x\"" "Mozilla/4.08 [en]""#,
            OCTOBER,
            "127.0.0.1",
        ),
        (r#"2001:db8::7 - - [10/Oct/2000:20:55:36 +0000] "GET / HTTP/2.0" 304 - "-" "-""#, OCTOBER, "2001:db8::7"),
        (r#"host.example.org - - [11/Oct/2000:02:25:36 +0530] "-" 408 0"#, OCTOBER, "host.example.org"),
        (r#"10.0.0.1 - - [10/Oct/2000:20:55:36 +0000] "\x16\x03\x01" 400 157 "-" "-""#, OCTOBER, "10.0.0.1"),
        (r#"10.0.0.1 - - [10/Oct/2000:20:55:36 +0000] "GET /\"a\\" 400 1"#, OCTOBER, "10.0.0.1"),
        (r#"10.0.0.1 - - [10/Oct/2000:20:55:36 +0000] "" 400 0"#, OCTOBER, "10.0.0.1"),
        (r#"10.0.0.1 - a b [c] [10/Oct/2000:20:55:36 +0000] "GET /" 200 1"#, OCTOBER, "10.0.0.1"),
        (r#"a - - [01/Jan/1970:00:00:00 +0000] "GET /" 200 1"#, 0, "a"),
        (r#"a - - [29/Feb/2024:23:59:60 -0000] "GET /" 200 1 extra"#, 1_709_251_200_000_000, "a"),
        (r#"a - - [31/Dec/9999:23:59:59 -2359] "GET /" 200 1"#, 253_402_387_139_000_000, "a"),
    ] {
        assert_eq!(request(line), Some((time, client.to_owned(), 1)), "{line}");
    }
    for line in [
        r#" - - [10/Oct/2000:13:55:36 -0700] "GET /" 200 1"#,
        r#"a - - [10/Oct/2000:13:55:36 -0700] "GET /" 200"#,
        r#"a - - [10/Oct/2000:13:55:36 -0700] "GET /"#,
        r#"a - - [10/Oct/2000:13:55:36 -0700] "GET /\" 200 1"#,
        r#"a - - [10/Oct/2000:13:55:36 -0700] "GET /" 20 1"#,
        r#"a - - [10/Oct/2000:13:55:36 -0700] "GET /" 200 x"#,
        r#"a - - [10/Oct/2000:13:55:36"#,
        r#"a - - [10/Oct/2000:13:55:36 -0700]"#,
        r#"a - - [10/Okt/2000:13:55:36 -0700] "GET /" 200 1"#,
        r#"a - - [30/Feb/2000:13:55:36 -0700] "GET /" 200 1"#,
        r#"a - - [10/Oct/2000:24:55:36 -0700] "GET /" 200 1"#,
        r#"a - - [10/Oct/2000:13:60:36 -0700] "GET /" 200 1"#,
        r#"a - - [10/Oct/2000:13:55:61 -0700] "GET /" 200 1"#,
        r#"a - - [10/Oct/2000:13:55:36 *0700] "GET /" 200 1"#,
        r#"a - - [01/Jan/1970:00:00:00 +0001] "GET /" 200 1"#,
        r#"a - - [2000-10-10T13:55:36-07:00] "GET /" 200 1"#,
    ] {
        assert_eq!(request(line), None, "{line}");
    }
}

#[test]
fn a_remembered_date_is_not_taken_for_another() {
    let line = |day: &str| format!("a - - [{day}/Oct/2000:20:55:36 +0000] \"GET /\" 200 1\n");
    let text: String = ["10", "11", "11", "1x", "11", "10"].map(line).concat();
    let times: Vec<Option<u64>> =
        read(text.as_bytes(), None).into_iter().map(|found| found.ok().map(|(time, ..)| time)).collect();
    let day = 86_400_000_000;
    let (tenth, eleventh) = (Some(OCTOBER), Some(OCTOBER + day));
    assert_eq!(times, [tenth, eleventh, eleventh, None, eleventh, tenth]);
}

#[test]
fn the_first_request_tells_the_format_and_lines_of_the_other_one_are_no_requests() {
    let log = r#"a - - [10/Oct/2000:13:55:36 -0700] "GET /" 200 1"#;
    let all = |text: String, format| -> Vec<bool> { read(text.as_bytes(), format).iter().map(Result::is_ok).collect() };
    assert_eq!(all(format!("rubbish\n1,a\n{log}\n2,a\n"), None), [false, true, false, true]);
    assert_eq!(all(format!("rubbish\n{log}\n1,a\n{log}\n"), None), [false, true, false, true]);
    assert_eq!(all(format!("time,client\n{log}\n1,a\n"), None), [false, true]);
    assert_eq!(all(format!("{log}\n1,a\n"), Some(Format::Trace)), [false, true]);
    assert_eq!(all(format!("1,a\n{log}\n"), Some(Format::AccessLog)), [false, true]);
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(text in proptest::collection::vec(any::<u8>(), 0..400)) {
        for format in [None, Some(Format::Trace), Some(Format::AccessLog)] {
            read(&text, format);
        }
    }

    #[test]
    fn no_bytes_within_a_line_make_a_reader_panic(
        line in prop_oneof![
            Just(r#"10.0.0.1 - - [10/Oct/2000:20:55:36 +0000] "GET /\"a" 400 1 "-" "-""#),
            Just("17,\"a\"\"b\",3 # why"),
        ],
        at in any::<prop::sample::Index>(),
        length in 0..4usize,
        instead in proptest::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(b"\"\\[],#: \n0".to_vec())], 0..4),
    ) {
        let mut text = line.as_bytes().to_vec();
        let at = at.index(text.len());
        text.splice(at..(at + length).min(line.len()), instead);
        for format in [None, Some(Format::Trace), Some(Format::AccessLog)] {
            read(&text, format);
        }
    }

    #[test]
    fn what_decisions_print_is_read_as_the_same_client(client in "\\PC{1,12}") {
        prop_assume!(!client.trim_ascii().is_empty());
        let mut line = b"5,".to_vec();
        crate::replay::decisions::name(&mut line, client.as_bytes());
        prop_assert_eq!(read(&line, None), [Ok((5, client, 1))]);
    }
}
