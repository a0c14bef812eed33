//! Faults that real limiters had, asked of this one by hand-derived numbers: off by one, windows, clocks, integers.
//!
//! Time is in seconds after an instant at which every window begins; waits are in microseconds.

use std::time::Duration;

use tollgate::{ManualClock, Outcome, Policy, RateLimiter, Timestamp};

/// 21,000 days after the epoch: a whole multiple of every window used here.
const ZERO: u64 = 21_000 * 86_400 * 1_000_000;

struct Subject {
    limiter: RateLimiter,
    clock: ManualClock,
}

/// What a request met, in one line.
#[derive(Debug, PartialEq, Eq)]
enum Met {
    Allowed { remaining: u64, back: u64 },
    Refused { wait: u64, back: u64 },
    Never { remaining: u64, back: u64 },
}

impl Subject {
    fn new(policy: Result<Policy, tollgate::PolicyError>) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(ZERO));
        let limiter = RateLimiter::builder(policy.expect("a valid policy")).clock(clock.clone()).build();
        Self { limiter, clock }
    }

    /// Sets the clock to so many seconds, given with up to six decimals.
    fn at(&self, seconds: &str) -> &Self {
        let (whole, part) = seconds.split_once('.').unwrap_or((seconds, ""));
        let micros = whole.parse::<u64>().unwrap() * 1_000_000 + format!("{part:0<6}").parse::<u64>().unwrap();
        self.clock.set(Timestamp::from_micros(ZERO + micros));
        self
    }

    fn ask(&self, cost: u64) -> Met {
        let decision = self.limiter.check_n("c", cost);
        let verdict = decision.verdicts()[0];
        let (remaining, back) = (verdict.remaining(), micros(verdict.reset_after()));
        match decision.outcome() {
            Outcome::Allowed => Met::Allowed { remaining, back },
            Outcome::Refused { retry_after } => Met::Refused { wait: micros(retry_after), back },
            Outcome::Never => Met::Never { remaining, back },
            Outcome::Unavailable { .. } => unreachable!("memory always answers"),
        }
    }

    fn is_let_in(&self) -> bool {
        self.limiter.check("c").is_allowed()
    }

    /// How many of `requests` are let in at one instant.
    fn burst(&self, requests: usize) -> usize {
        (0..requests).filter(|_| self.is_let_in()).count()
    }

    fn wait(&self) -> u64 {
        match self.ask(1) {
            Met::Refused { wait, .. } => wait,
            other => panic!("not refused: {other:?}"),
        }
    }

    fn look(&self) -> u64 {
        self.limiter.peek("c").verdicts()[0].remaining()
    }

    /// How many are let in of a request at every step from 0 to the end, in microseconds, both included.
    fn steady(&self, step: u64, end: u64) -> usize {
        (0..=end / step)
            .filter(|request| {
                self.clock.set(Timestamp::from_micros(ZERO + request * step));
                self.is_let_in()
            })
            .count()
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn bucket(capacity: u64, tokens: u64, period: u64) -> Subject {
    Subject::new(Policy::token_bucket(capacity, tokens, seconds(period)))
}

fn fixed(limit: u64, window: u64) -> Subject {
    Subject::new(Policy::fixed_window(limit, seconds(window)))
}

fn log(limit: u64, window: u64) -> Subject {
    Subject::new(Policy::sliding_window_log(limit, seconds(window)))
}

fn counter(limit: u64, window: u64) -> Subject {
    Subject::new(Policy::sliding_window_counter(limit, seconds(window)))
}

/// The same quota under each algorithm.
fn all(quota: u64, span: u64) -> [Subject; 4] {
    [bucket(quota, quota, span), fixed(quota, span), log(quota, span), counter(quota, span)]
}

const DAY: u64 = 86_400;

#[test]
fn a_bucket_that_filled_up_again_holds_its_capacity_and_no_more() {
    let subject = bucket(5, 5, 1);
    assert_eq!((subject.burst(5), subject.wait()), (5, 200_000));
    for pause in ["2", "86402", "2678402", "315360000"] {
        assert_eq!(subject.at(pause).burst(20), 5, "after {pause} s");
    }
}

#[test]
fn a_bucket_gives_its_tokens_and_its_refill_where_a_log_is_a_ceiling() {
    let subject = bucket(60, 60, 60);
    assert_eq!(subject.steady(100_000, 59_900_000), 119);
    assert!(subject.at("60").is_let_in());
    let subject = log(60, 60);
    assert_eq!(subject.steady(100_000, 59_900_000), 60);
    assert!(subject.at("60").is_let_in());
}

#[test]
fn the_part_of_a_token_that_has_grown_is_not_lost_by_a_request() {
    let subject = bucket(5, 1, 10);
    assert_eq!(subject.burst(5), 5);
    assert_eq!((subject.at("25").burst(2), subject.wait()), (2, 5_000_000));
    assert_eq!(subject.at("29.999999").wait(), 1);
    assert!(subject.at("30").is_let_in());
}

#[test]
fn what_remains_is_never_above_the_quota() {
    let subject = bucket(10, 1, 1);
    assert_eq!(subject.ask(1), Met::Allowed { remaining: 9, back: 1_000_000 });
    assert_eq!(subject.at("3600").look(), 10);
    assert_eq!(subject.ask(1), Met::Allowed { remaining: 9, back: 1_000_000 });
    for subject in all(7, 10) {
        for time in ["0", "3", "10", "12", "25", "100", "99"] {
            assert!(subject.at(time).look() <= 7);
            subject.is_let_in();
        }
    }
}

#[test]
fn a_counter_of_one_refuses_as_long_as_any_of_the_old_window_counts() {
    for (time, wait) in [("0", 20_000_000), ("3", 17_000_000), ("9.999", 10_001_000)] {
        let subject = counter(1, 10);
        assert!(subject.at(time).is_let_in());
        assert_eq!(subject.wait(), wait);
        assert_eq!(subject.at("19.999999").wait(), 1);
        assert!(subject.at("20").is_let_in());
    }
}

#[test]
fn a_look_moves_windows_on_as_a_request_does() {
    let subject = counter(10, 10);
    assert_eq!(subject.at("1").burst(10), 10);
    assert_eq!((subject.at("10").look(), subject.at("15").look()), (0, 5));
    assert_eq!(subject.at("25").ask(0), Met::Allowed { remaining: 10, back: 0 });
    assert_eq!(subject.burst(11), 10);
}

#[test]
fn a_cost_above_the_quota_never_passes_and_costs_nothing() {
    for subject in [bucket(5, 1, 1), fixed(5, 10), log(5, 10), counter(5, 10)] {
        assert_eq!(subject.ask(6), Met::Never { remaining: 5, back: 0 });
        assert!(matches!(subject.ask(5), Met::Allowed { remaining: 0, .. }));
        assert!(matches!(subject.ask(6), Met::Never { remaining: 0, .. }));
        assert!(matches!(subject.ask(u64::MAX), Met::Never { remaining: 0, .. }));
    }
}

#[test]
fn beyond_the_limit_nothing_remains_and_nothing_wraps() {
    for subject in all(3, 60) {
        let remaining: Vec<u64> = (0..10).map(|_| subject.limiter.check("c").verdicts()[0].remaining()).collect();
        assert_eq!(remaining, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn requests_of_one_instant_are_requests_of_their_own() {
    let subject = log(5, 10);
    assert_eq!((subject.burst(5), subject.wait()), (5, 10_000_000));
}

#[test]
fn a_log_entry_exactly_as_old_as_the_window_is_out() {
    let subject = log(3, 10);
    assert_eq!(subject.burst(3), 3);
    assert_eq!(subject.at("9.999999").wait(), 1);
    assert_eq!(subject.at("10").ask(1), Met::Allowed { remaining: 2, back: 10_000_000 });
    assert_eq!(log(3, 2).steady(1_000_000, 30_000_000), 31);
}

#[test]
fn a_fixed_window_begins_at_whole_multiples_of_its_length() {
    let subject = fixed(5, 60);
    assert_eq!((subject.at("59.9").burst(6), subject.at("60").burst(5), subject.wait()), (5, 5, 60_000_000));
}

#[test]
fn the_told_wait_is_what_is_left_of_the_window_and_not_all_of_it() {
    let subject = fixed(10, 60);
    assert_eq!((subject.at("45").burst(10), subject.wait()), (10, 15_000_000));
    let subject = log(10, 60);
    assert_eq!(subject.steady(2_000_000, 18_000_000), 10);
    assert_eq!(subject.at("20").ask(1), Met::Refused { wait: 40_000_000, back: 58_000_000 });
    let subject = log(2, 60);
    assert_eq!(subject.steady(10_000_000, 10_000_000), 2);
    assert_eq!(subject.at("20").ask(1), Met::Refused { wait: 40_000_000, back: 50_000_000 });
    assert_eq!(subject.at("59.999999").wait(), 1);
    assert!(subject.at("60").is_let_in());
}

#[test]
fn a_clock_that_goes_back_by_less_than_a_span_takes_nothing_and_gives_nothing() {
    let subject = bucket(5, 1, 1);
    assert_eq!((subject.at("100").burst(2), subject.at("97").look(), subject.burst(3)), (2, 3, 3));
    assert_eq!((subject.wait(), subject.at("100.999999").wait()), (4_000_000, 1));
    assert!(subject.at("101").is_let_in());

    let subject = log(5, 60);
    assert_eq!((subject.at("100").burst(2), subject.at("41").burst(3), subject.wait()), (2, 3, 119_000_000));
    assert_eq!(subject.at("159.999999").wait(), 1);
    assert!(subject.at("160").is_let_in());

    let subject = fixed(5, 60);
    assert_eq!((subject.at("100").burst(2), subject.at("50").look(), subject.burst(3)), (2, 3, 3));
    assert_eq!((subject.wait(), subject.at("119.999999").wait()), (70_000_000, 1));
    assert_eq!(subject.at("120").ask(1), Met::Allowed { remaining: 4, back: 60_000_000 });

    let subject = counter(5, 60);
    assert_eq!((subject.at("100").burst(2), subject.at("50").look(), subject.burst(3)), (2, 3, 3));
    assert_eq!(subject.wait(), 82_000_000);

    let subject = fixed(1, 60);
    assert_eq!((subject.at("90").burst(1), subject.at("30").wait()), (1, 90_000_000));
    let subject = counter(1, 10);
    assert_eq!((subject.at("10").burst(1), subject.at("0.5").wait()), (1, 29_500_000));
}

#[test]
fn a_clock_that_goes_back_by_a_span_or_more_meets_a_new_client() {
    let subject = bucket(5, 1, 1);
    assert_eq!((subject.at("100").burst(2), subject.at("95").burst(6)), (2, 5));
    let subject = log(5, 60);
    assert_eq!((subject.at("100").burst(2), subject.at("40").burst(6)), (2, 5));
    for subject in [fixed(5, 60), counter(5, 60)] {
        assert_eq!((subject.at("1000").burst(2), subject.at("100").burst(6)), (2, 5));
    }
}

#[test]
fn a_clock_one_step_behind_every_call_neither_panics_nor_tells_nonsense() {
    for back in [1, 3_600_000_000] {
        for subject in all(3, 60) {
            let mut now = ZERO + 7_200_000_000;
            for round in 0..40 {
                subject.clock.set(Timestamp::from_micros(now));
                subject.is_let_in();
                now -= back;
                subject.clock.set(Timestamp::from_micros(now));
                assert!(subject.look() <= 3);
                now -= back;
                subject.clock.set(Timestamp::from_micros(now));
                subject.limiter.sweep();
                if let Outcome::Refused { retry_after } = subject.limiter.check("c").outcome() {
                    assert!(retry_after < seconds(3 * 60), "round {round}");
                }
                now += 2 * back + 1_000_000;
            }
        }
    }
}

#[test]
fn threads_that_read_the_clock_early_refund_and_forget_nothing() {
    let subject = bucket(5, 1, 1);
    assert_eq!(subject.at("1").ask(1), Met::Allowed { remaining: 4, back: 1_000_000 });
    assert_eq!(subject.at("0.999").ask(1), Met::Allowed { remaining: 3, back: 2_001_000 });
    assert_eq!((subject.at("1.999999").look(), subject.at("2").look()), (3, 4));
    let subject = log(2, 10);
    assert!(subject.at("1").is_let_in() && subject.at("0.999").is_let_in());
    assert_eq!(subject.at("1").wait(), 10_000_000);
    assert_eq!(subject.at("11").look(), 2);
}

#[test]
fn windows_longer_than_the_clock_has_run_are_no_trouble() {
    for subject in all(5, 3_600) {
        subject.clock.set(Timestamp::from_micros(0));
        assert!(subject.is_let_in());
        subject.clock.set(Timestamp::from_micros(1_000));
        assert!(subject.is_let_in());
        subject.limiter.sweep();
        assert_eq!(subject.limiter.clients().tracked, 1);
    }
}

#[test]
fn windows_are_counted_in_utc_across_the_end_of_summer_time() {
    let at = |subject: &Subject, unix: u64| subject.clock.set(Timestamp::from_micros(unix * 1_000_000));
    let hourly = fixed(1, 3_600);
    at(&hourly, 1_635_641_999);
    assert_eq!(hourly.ask(1), Met::Allowed { remaining: 0, back: 1_000_000 });
    at(&hourly, 1_635_642_000);
    assert!(hourly.is_let_in());
    assert_eq!(hourly.wait(), 3_600_000_000);
    let daily = fixed(1, DAY);
    at(&daily, 1_635_641_999);
    assert_eq!(daily.ask(1), Met::Allowed { remaining: 0, back: 82_801_000_000 });
    at(&daily, 1_635_642_000);
    assert_eq!(daily.wait(), 82_800_000_000);
    at(&daily, 1_635_724_800);
    assert!(daily.is_let_in());
}

#[test]
fn jumps_ahead_fill_a_bucket_and_no_more() {
    for jump in ["3600", "315360000"] {
        let subject = bucket(5, 1, 1);
        assert_eq!(subject.burst(5), 5);
        assert_eq!((subject.at(jump).look(), subject.burst(6)), (5, 5));
    }
}

#[test]
fn rates_that_no_float_can_hold_are_exact() {
    let subject = bucket(1, 10, 13);
    assert!(subject.is_let_in());
    assert_eq!((subject.wait(), subject.at("1.299999").wait()), (1_300_000, 1));
    assert!(subject.at("1.3").is_let_in());
    let subject = bucket(3, 3, 7);
    assert_eq!((subject.burst(3), subject.wait(), subject.at("2.333333").wait()), (3, 2_333_334, 1));
    assert!(subject.at("2.333334").is_let_in());
}

#[test]
fn a_long_rest_times_a_fast_refill_does_not_overflow() {
    let subject = bucket(1_000_000, 1_000_000, 1);
    assert!(matches!(subject.ask(1_000_000), Met::Allowed { remaining: 0, .. }));
    for rest in ["43200", "2592000", "315360000"] {
        assert!(matches!(subject.at(rest).ask(1_000_000), Met::Allowed { remaining: 0, .. }));
        assert_eq!(subject.wait(), 1);
    }
}

#[test]
fn limits_up_to_the_largest_number_are_exact() {
    for limit in [2_147_483_648, 4_294_967_296, 9_007_199_254_740_993, 9_223_372_036_854_775_807, u64::MAX] {
        for subject in [fixed(limit, 60), counter(limit, 60)] {
            assert!(matches!(subject.ask(limit), Met::Allowed { remaining: 0, .. }), "{limit}");
            assert!(matches!(subject.ask(1), Met::Refused { .. }), "{limit}");
        }
        assert_eq!(
            {
                let subject = fixed(limit, 60);
                subject.ask(limit);
                subject.wait()
            },
            60_000_000
        );
    }
    for subject in [fixed(4_294_967_297, 60), counter(4_294_967_297, 60), bucket(4_294_967_297, 1_000, 1)] {
        let remaining = [4_294_967_295, 1, 1, 1].map(|cost| match subject.ask(cost) {
            Met::Allowed { remaining, .. } => Some(remaining),
            _ => None,
        });
        assert_eq!(remaining, [Some(2), Some(1), Some(0), None]);
    }
}

#[test]
fn a_very_low_rate_lets_the_first_request_in() {
    let subject = bucket(1, 1, 10_000);
    assert!(subject.is_let_in());
    assert_eq!(subject.wait(), 10_000_000_000);
    let subject = bucket(1, 1, 30 * DAY);
    assert!(subject.is_let_in());
    assert_eq!(subject.wait(), 2_592_000_000_000);
}

#[test]
fn a_day_of_polling_lets_in_what_the_rate_says() {
    let day = DAY * 1_000_000;
    assert_eq!(bucket(1, 1, 7).steady(10_000, day), 12_343);
    assert_eq!(bucket(5, 1, 7).steady(10_000, day), 12_347);
    assert_eq!(bucket(1, 1, 7).steady(1_000, day / 24), 515);
    assert_eq!(bucket(5, 1, 7).steady(1_000, day / 24), 519);
    assert_eq!(bucket(5, 1, 7).steady(3_300_000, day), 12_347);
    assert_eq!(bucket(1, 1, 7).steady(3_300_000, day), 8_728);
}

#[test]
fn a_client_that_keeps_to_the_rate_is_never_refused() {
    assert_eq!(bucket(1, 3, 1).steady(334_000, 600_000_000), 1_797);
    assert_eq!(bucket(1, 7, 1).steady(143_000, 600_000_000), 4_196);
    let subject = bucket(1, 3, 1);
    assert!(subject.is_let_in());
    assert_eq!(subject.at("0.333").wait(), 334);
}

#[test]
fn windows_of_a_millisecond_are_counted_in_microseconds() {
    let subject = Subject::new(Policy::fixed_window(1, Duration::from_millis(1)));
    assert!(subject.is_let_in());
    assert_eq!(subject.at("0.000999").wait(), 1);
    assert!(subject.at("0.001").is_let_in());
}

#[test]
fn a_capacity_below_the_rate_is_still_the_most_that_a_bucket_holds() {
    let subject = bucket(2, 10, 1);
    assert_eq!(subject.burst(2), 2);
    assert_eq!(subject.ask(1), Met::Refused { wait: 100_000, back: 200_000 });
    assert_eq!(subject.at("10").burst(3), 2);
}

#[test]
fn a_policy_that_cannot_be_says_which_bound_it_breaks() {
    let century = seconds(36_525 * DAY);
    let message = |policy: Result<Policy, tollgate::PolicyError>| policy.expect_err("not a policy").to_string();
    for (policy, told) in [
        (Policy::token_bucket(0, 1, seconds(1)), "at least 1"),
        (Policy::token_bucket(1, 0, seconds(1)), "at least 1 token"),
        (Policy::token_bucket(1, 1, Duration::ZERO), "longer than 0"),
        (Policy::token_bucket(u64::MAX, 1, seconds(1)), "64 bits"),
        (Policy::token_bucket(1_000_000, 1, seconds(DAY)), "36525d"),
        (Policy::fixed_window(0, seconds(1)), "at least 1"),
        (Policy::fixed_window(1, Duration::ZERO), "longer than 0"),
        (Policy::fixed_window(1, Duration::from_nanos(1_500)), "whole number of microseconds"),
        (Policy::fixed_window(1, century + Duration::from_micros(1)), "36525d"),
        (Policy::fixed_window(1, Duration::MAX), "36525d"),
        (Policy::sliding_window_log(0, seconds(1)), "at least 1"),
        (Policy::sliding_window_log(tollgate::MAX_LOG_LIMIT + 1, seconds(1)), "10000000"),
        (Policy::sliding_window_counter(0, seconds(1)), "at least 1"),
        (Policy::fixed_window(1, seconds(1)).and_then(|policy| policy.named("")), "1 to 32"),
        (Policy::fixed_window(1, seconds(1)).and_then(|policy| policy.named("Burst")), "a-z"),
    ] {
        let told_message = message(policy);
        assert!(told_message.contains(told), "{told_message:?} does not say {told:?}");
    }
    assert!(Policy::fixed_window(1, century).is_ok());
}
