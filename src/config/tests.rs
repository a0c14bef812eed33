use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Duration;

use super::*;

/// Reads flags and an environment.
fn with(flags: &[&str], environment: &[(&str, &str)]) -> Result<Serve, String> {
    let environment: HashMap<&str, &str> = environment.iter().copied().collect();
    let arguments = std::iter::once("tollgate").chain(flags.iter().copied()).map(OsString::from);
    match read(arguments, |variable| environment.get(variable).map(OsString::from)) {
        Ok(Task::Serve(serve)) => Ok(*serve),
        Ok(Task::Explain(_) | Task::Replay(_)) => panic!("{flags:?} is not serve"),
        Err(error) => Err(error.to_string()),
    }
}

fn policies(settings: Serve) -> Vec<Policy> {
    settings.limiter.build().policies().to_vec()
}

fn limit(environment: &[(&str, &str)]) -> (u64, Duration) {
    let settings = with(&[], environment).unwrap_or_else(|error| panic!("{environment:?}: {error}"));
    let policies = policies(settings);
    (policies[0].limit(), policies[0].span())
}

fn refused(environment: &[(&str, &str)]) -> String {
    match with(&[], environment) {
        Ok(_) => panic!("{environment:?} was accepted"),
        Err(error) => error,
    }
}

#[test]
fn nothing_set_means_a_bucket_of_ten_at_one_a_second_on_loopback() {
    let settings = with(&[], &[]).expect("the defaults");
    assert_eq!(settings.listen.address.to_string(), "127.0.0.1:8080");
    assert_eq!(settings.service.headers, Families { ietf: true, legacy: true });
    assert_eq!(policies(settings), [Policy::token_bucket(10, 1, Duration::from_secs(1)).unwrap()]);
}

#[test]
fn a_flag_wins_over_its_variable_and_an_empty_variable_is_not_set() {
    let fixed = [("ALGORITHM", "Fixed_Window"), ("LIMIT", "5"), ("WINDOW", "")];
    assert_eq!(limit(&fixed), (5, Duration::from_secs(60)));
    let settings = with(&["--limit", "7"], &fixed).expect("a flag and variables");
    assert_eq!(policies(settings)[0].limit(), 7);
    assert_eq!(policies(with(&["serve", "--limit", "8"], &fixed).expect("the command by name"))[0].limit(), 8);
    assert_eq!(limit(&[("ALGORITHM", "fixed-window"), ("LIMIT", "  ")]).0, 10);
    assert_eq!(limit(&[("ALGORITHM", "fixed-window"), ("LIMIT", " 12\t")]).0, 12);
}

#[test]
fn durations_are_whole_numbers_with_a_unit() {
    for (text, millis) in [
        ("2000ms", 2_000),
        ("2s", 2_000),
        ("2m", 120_000),
        ("2h", 7_200_000),
        ("2d", 172_800_000),
        ("90", 90_000),
        ("1ms", 1),
        ("365d", 31_536_000_000),
    ] {
        let environment = [("ALGORITHM", "fixed-window"), ("WINDOW", text)];
        assert_eq!(limit(&environment).1, Duration::from_millis(millis), "{text}");
    }
    for text in ["1w", "1y", "500us", "1ns", "0.4ms", "1.5s", "-1s", "+1s", "s", "1 s", "1S", "0", "0ms", "1e3", "abc"]
    {
        let told = refused(&[("ALGORITHM", "fixed-window"), ("WINDOW", text)]);
        assert!(told.contains("WINDOW") && told.contains(text) && told.contains("250ms"), "{told}");
    }
    for text in ["18446744073709551615ms", "18446744073709551615d", "36526d", "99999999999999999999s"] {
        let told = refused(&[("ALGORITHM", "fixed-window"), ("WINDOW", text)]);
        assert!(told.contains("WINDOW") && told.contains(text), "{told}");
    }
}

#[test]
fn rates_are_tokens_a_second_or_an_amount_in_a_duration() {
    for (rate, micros) in [
        ("1", 10_000_000u64),
        ("2", 5_000_000),
        ("0.5", 20_000_000),
        ("0.0001", 100_000_000_000),
        ("00.50", 20_000_000),
        ("100/1m", 6_000_000),
        ("1/90ms", 900_000),
        ("3 / 1s", 3_333_334),
        ("1/1d", 864_000_000_000),
    ] {
        assert_eq!(limit(&[("REFILL_RATE", rate)]), (10, Duration::from_micros(micros)), "{rate}");
    }
    let bad = [
        "NaN",
        "inf",
        "-1",
        "+1",
        "5/",
        "/1m",
        "1/0s",
        "0",
        "0/1s",
        "0.0",
        "1e400",
        "1e3",
        ".5",
        "1.",
        "0.0000001",
        "1/m",
        "1.5/1s",
        "abc",
        "1/1w",
        "0x10",
        "1,5",
    ];
    for rate in bad {
        let told = refused(&[("REFILL_RATE", rate)]);
        assert!(told.contains("REFILL_RATE") && told.contains(&format!("'{rate}'")), "{told}");
    }
}

#[test]
fn quotas_are_plain_digits_that_a_header_can_carry() {
    for variable in ["LIMIT", "CAPACITY"] {
        let digits = "9".repeat(30);
        for value in
            ["6O", "1e3", "10/min", "-1", "+5", "0x10", "5.5", "NaN", "inf", "0", &digits, "18446744073709551615"]
        {
            let told = refused(&[(variable, value)]);
            assert!(told.contains(variable) && told.contains(value) && told.contains("999999999999999"), "{told}");
        }
    }
    assert_eq!(limit(&[("ALGORITHM", "fixed-window"), ("LIMIT", "999999999999999")]).0, 999_999_999_999_999);
    assert_eq!(limit(&[("ALGORITHM", "sliding-window-counter"), ("LIMIT", "5000000000")]).0, 5_000_000_000);
}

#[test]
fn settings_that_parse_but_do_not_go_together_name_both() {
    let told = refused(&[("CAPACITY", "999999999999999"), ("REFILL_RATE", "1/1d")]);
    assert!(told.contains("CAPACITY '999999999999999'") && told.contains("REFILL_RATE '1/1d'"), "{told}");
    let told = refused(&[("ALGORITHM", "sliding-window-log"), ("LIMIT", "10000001")]);
    assert!(told.contains("LIMIT '10000001'") && told.contains("sliding-window-counter"), "{told}");
}

#[test]
fn a_setting_that_the_algorithm_does_not_use_must_still_parse() {
    assert!(refused(&[("LIMIT", "x")]).contains("LIMIT"));
    assert!(refused(&[("ALGORITHM", "fixed-window"), ("REFILL_RATE", "x")]).contains("REFILL_RATE"));
}

#[test]
fn other_values_that_do_not_parse_are_named_and_quoted() {
    for (variable, value) in [
        ("PORT", "65536"),
        ("PORT", "abc"),
        ("PORT", "-1"),
        ("HOST", "localhost"),
        ("HOST", "256.1.1.1"),
        ("ALGORITHM", "leaky-bucket"),
        ("MAX_CLIENTS", "0"),
        ("MAX_CLIENTS", "1e6"),
        ("WORKERS", "0"),
        ("WORKERS", "1025"),
        ("RATE_LIMIT_HEADERS", "ietf,x"),
        ("RATE_LIMIT_HEADERS", "none,ietf"),
        ("RUST_LOG", "tollgate=loud"),
        ("REDIS_TIMEOUT", "0"),
        ("REDIS_TIMEOUT", "soon"),
        ("ON_STORE_ERROR", "panic"),
    ] {
        let told = refused(&[(variable, value)]);
        assert!(told.contains(variable) && told.contains(&format!("'{value}'")) && told.contains("accepted"), "{told}");
    }
}

#[test]
fn control_characters_in_a_value_do_not_reach_the_terminal() {
    let told = refused(&[("LIMIT", "\u{1b}[2Jx\n")]);
    assert!(!told.contains('\u{1b}') && !told.contains('\n'), "{told:?}");
    let long = "7".repeat(100_000);
    assert!(refused(&[("LIMIT", &long)]).len() < 500);
}

#[test]
fn a_variable_that_is_not_utf_8_is_told() {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStringExt;
        let result =
            read(["tollgate".into()], |variable| (variable == "LIMIT").then(|| OsString::from_vec(vec![b'1', 0xff])));
        let told = result.err().expect("refused").to_string();
        assert!(told.contains("LIMIT") && told.contains("UTF-8"), "{told}");
    }
}

#[test]
fn unknown_flags_are_refused() {
    for flags in
        [&["--limits", "3"][..], &["--limit"], &["--limit", "3", "--limit", "4"], &["extra"], &["serve", "extra"]]
    {
        assert!(with(flags, &[]).is_err(), "{flags:?}");
    }
}

#[test]
fn several_policies_replace_the_single_settings() {
    let text = "burst=token-bucket:10:1/1s; daily=sliding_window_counter:1000/1d;";
    let policies = policies(with(&[], &[("POLICIES", text)]).expect("two policies"));
    let expected = [
        Policy::token_bucket(10, 1, Duration::from_secs(1)).and_then(|policy| policy.named("burst")).unwrap(),
        Policy::sliding_window_counter(1_000, Duration::from_secs(86_400))
            .and_then(|policy| policy.named("daily"))
            .unwrap(),
    ];
    assert_eq!(&policies[..], expected);
    let told = refused(&[("POLICIES", text), ("LIMIT", "5")]);
    assert!(told.contains("LIMIT is '5'") && told.contains("POLICIES") && told.contains("drop"), "{told}");
}

#[test]
fn a_policy_that_is_wrong_is_named_with_the_part_that_is() {
    for (text, part) in [
        ("", "POLICIES"),
        ("a", "policy 'a' is not of the form"),
        ("a=fixed-window", "policy 'a' is 'fixed-window'"),
        ("a=leaky:1/1s", "the algorithm of policy 'a' is 'leaky'"),
        ("a=fixed-window:1", "the limit of policy 'a' is '1'"),
        ("a=fixed-window:x/1s", "the limit of policy 'a' is 'x'"),
        ("a=fixed-window:1/1w", "the window of policy 'a' is '1w'"),
        ("a=token-bucket:10", "the bucket of policy 'a' is '10'"),
        ("a=token-bucket:0:1", "the capacity of policy 'a' is '0'"),
        ("a=token-bucket:1:0", "the refill rate of policy 'a' is '0'"),
        ("A=fixed-window:1/1s", "policy 'A': a policy's name"),
        ("a=fixed-window:1/1s;a=fixed-window:2/1s", "a name of its own"),
        ("a=fixed-window:1/1s;;b=fixed-window:2/1s", "policy '' is not of the form"),
        ("a=sliding-window-log:10000001/1s", "policy 'a': the log keeps"),
        (&["x=fixed-window:1/1s"; 9].join(";"), "9 policies are more than 8"),
    ] {
        if text.is_empty() {
            // Not set: the single settings are in force.
            assert!(with(&[], &[("POLICIES", text)]).is_ok());
            continue;
        }
        let told = refused(&[("POLICIES", text)]);
        assert!(told.contains("POLICIES") && told.contains(part), "{told}");
    }
}

#[test]
fn nobody_is_trusted_unless_it_is_set() {
    let trust = with(&[], &[]).expect("the defaults").service.trust;
    assert_eq!(trust.proxies, Default::default());
    assert_eq!(trust.header.name(), "X-Forwarded-For");
    assert!(trust.api_key_header.is_none());
    assert_eq!(trust.ipv6_prefix.bits(), 64);
}

#[test]
fn a_setting_of_trust_that_means_nothing_stops_the_program_with_its_name_and_value() {
    for (variable, value, reason) in [
        (
            "TRUSTED_PROXIES",
            "10.0.0.1/8",
            "'10.0.0.1/8' has bits set behind its prefix; the network around it is 10.0.0.0/8",
        ),
        ("TRUSTED_PROXIES", "64/", "'64/' is neither an address nor a network; accepted are"),
        ("TRUSTED_PROXIES", "10.0.0.0/8,", "'' is neither an address nor a network; accepted are"),
        ("CLIENT_IP_HEADER", "X Real IP", "'X Real IP' is no header name; accepted are"),
        ("API_KEY_HEADER", "X-Api-Key:", "'X-Api-Key:' is no header name; accepted are"),
        ("API_KEY_HEADER", "x-forwarded-for", "API_KEY_HEADER names the same header, which cannot be both"),
        ("IPV6_PREFIX", "0", "'0' is no length of a prefix; accepted is a whole number from 1 to 128"),
        ("IPV6_PREFIX", "129", "'129' is no length of a prefix; accepted is a whole number from 1 to 128"),
        ("IPV6_PREFIX", "-1", "'-1' is no length of a prefix; accepted is a whole number from 1 to 128"),
        ("IPV6_PREFIX", "64/", "'64/' is no length of a prefix; accepted is a whole number from 1 to 128"),
        ("IPV6_PREFIX", "abc", "'abc' is no length of a prefix; accepted is a whole number from 1 to 128"),
        ("DENY_STATUS", "503", "429 or 403"),
    ] {
        let told = refused(&[(variable, value)]);
        assert!(told.contains(variable) && told.contains(reason), "{variable} {value:?}: {told}");
    }
}

#[test]
fn settings_that_are_legal_and_surely_not_meant_are_told() {
    let advice =
        |flags: &[&str], environment: &[(&str, &str)]| with(flags, environment).expect("legal settings").advice;
    assert_eq!(advice(&[], &[]), [""; 0]);
    let sound =
        [("TRUSTED_PROXIES", "10.0.0.0/8"), ("CLIENT_IP_HEADER", "X-Real-IP"), ("CAPACITY", "5"), ("REFILL_RATE", "2")];
    assert_eq!(advice(&[], &sound), [""; 0]);
    assert_eq!(
        advice(&["--window", "1m"], &[("LIMIT", "5")]),
        [
            "LIMIT is '5', which token-bucket does not use: its settings are CAPACITY ('10') and REFILL_RATE ('1')",
            "--window is '1m', which token-bucket does not use: its settings are CAPACITY ('10') and REFILL_RATE ('1')",
        ]
    );
    for algorithm in ["fixed-window", "sliding-window-log", "sliding-window-counter"] {
        assert_eq!(
            advice(&[], &[("ALGORITHM", algorithm), ("CAPACITY", "5"), ("LIMIT", "7")]),
            [format!(
                "CAPACITY is '5', which {algorithm} does not use: its settings are LIMIT ('7') and WINDOW ('60s')"
            )]
        );
    }
    assert_eq!(
        advice(&[], &[("TRUSTED_PROXIES", "10.0.0.0/8,0.0.0.0/0,::/0")]),
        ["0.0.0.0/0", "::/0"].map(|network| format!(
            "TRUSTED_PROXIES holds {network}: everybody is trusted, so everybody can be any client by writing X-Forwarded-For"
        ))
    );
    assert_eq!(
        advice(&["--client-ip-header", "X-Real-IP"], &[]),
        [
            "--client-ip-header is 'X-Real-IP', but TRUSTED_PROXIES is not set: nobody is trusted, so the header is never read"
        ]
    );
    let shared = [("ON_STORE_ERROR", "closed"), ("KEY_PREFIX", "a")];
    assert_eq!(
        advice(&[], &shared),
        ["ON_STORE_ERROR is 'closed'", "KEY_PREFIX is 'a'"]
            .map(|given| format!("{given}, but REDIS_URL is not set: no limit is shared, it is kept in memory alone"))
    );
    assert_eq!(advice(&[], &[&shared[..], &[("REDIS_URL", "redis://127.0.0.1")]].concat()), [""; 0]);
}

#[test]
fn the_settings_of_the_store_must_be_right_and_show_no_password() {
    for (url, shown) in [
        ("http://127.0.0.1", "http://127.0.0.1"),
        ("127.0.0.1:6379", "127.0.0.1:6379"),
        ("redis://:p@ss#w/rd=%@127.0.0.1:6379/", "127.0.0.1"),
        ("redis://:secret@/nowhere?x", "redis://"),
    ] {
        let told = refused(&[("REDIS_URL", url)]);
        assert!(told.contains("REDIS_URL") && told.contains(shown) && told.contains("redis://"), "{told}");
        assert!(!told.contains("p@ss") && !told.contains("w/rd") && !told.contains("secret"), "{told}");
    }
    for prefix in ["a b", "{a}", &"x".repeat(65)] {
        let told = refused(&[("KEY_PREFIX", prefix)]);
        assert!(told.contains("KEY_PREFIX") && told.contains(prefix), "{told}");
    }
    let told = refused(&[("REDIS_TIMEOUT", "2m")]);
    assert!(told.contains("REDIS_TIMEOUT") && told.contains("2m") && told.contains("60s"), "{told}");
    let url = ("REDIS_URL", "redis://:p%40ss@127.0.0.1:1/");
    assert!(with(&[], &[url, ("ON_STORE_ERROR", "Open"), ("KEY_PREFIX", "shop:")]).is_ok());
}
