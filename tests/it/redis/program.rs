//! The program during outages: its log, its one worker, its threads and descriptors.

use std::fs;
use std::time::Duration;

use redis::cmd;

use crate::support::redis::{Server, eventually};
#[cfg(not(feature = "tls"))]
use crate::support::service::command;
use crate::support::{Reply, Service};

/// An instance with a limit of ten in a window that no test outlives.
fn instance(url: &str, settings: &[(&str, &str)]) -> Service {
    let common = [
        ("REDIS_URL", url),
        ("REDIS_TIMEOUT", "500ms"),
        ("ALGORITHM", "fixed-window"),
        ("LIMIT", "10"),
        ("WINDOW", "365d"),
        ("API_KEY_HEADER", "X-Api-Key"),
    ];
    Service::start(&[&common[..], settings].concat())
}

fn ask(service: &Service, client: &str) -> Reply {
    service.connect().request("GET", "/limited", &[("X-Api-Key", client)])
}

fn store_is(service: &Service, state: &str) -> bool {
    service.get("/healthz").body.contains(&format!("\"store\":\"{state}\""))
}

/// Lines of its log about the store going and coming.
fn changes(service: &Service) -> (usize, usize) {
    let log = service.log();
    (log.matches(" is down, ").count(), log.matches(" is back after ").count())
}

/// A URL with this login.
fn as_user(server: &Server, password: &str) -> String {
    format!("{}?user=limited&pass={password}", server.url())
}

#[test]
fn a_user_who_may_not_run_scripts_is_an_outage_in_each_mode_and_one_line_for_each_change() {
    let server = Server::start();
    server.ask::<()>("ACL SETUSER limited on >secret ~* +@all -@scripting");
    let modes = ["local", "open", "closed"];
    let services =
        modes.map(|mode| instance(&as_user(&server, "secret"), &[("ON_STORE_ERROR", mode), ("KEY_PREFIX", mode)]));
    let down = |client: &str| {
        for (service, mode) in services.iter().zip(modes) {
            let replies: Vec<_> = (0..12).map(|_| ask(service, client)).collect();
            let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
            let expected: Vec<u16> = (1..=12)
                .map(|turn| match mode {
                    "local" if turn > 10 => 429,
                    "closed" => 503,
                    _ => 200,
                })
                .collect();
            assert_eq!(statuses, expected, "{mode}");
            for reply in replies {
                let text = format!("{reply:?}");
                assert!(!text.contains("-1") && !text.contains("secret"), "{mode}: {text}");
            }
            assert!(store_is(service, &format!("down: {mode}")));
        }
    };
    let each = |changes_of_each| services.iter().all(|service| changes(service) == changes_of_each);

    down("first");
    eventually("the store is tried now and then", || server.rejected("eval") >= 9);
    eventually("the outage is in the log", || each((1, 0)));
    server.ask::<()>("ACL SETUSER limited +@scripting");
    eventually("the store is used", || services.iter().all(|service| store_is(service, "up")));
    for service in &services {
        assert_eq!(ask(service, "second").number("X-RateLimit-Remaining"), 9);
    }
    server.ask::<()>("ACL SETUSER limited -@scripting");
    down("third");
    eventually("each change is in the log", || each((2, 1)));
    for service in &services {
        let log = service.log();
        assert!(log.contains("NOPERM") && !log.contains("secret"), "{log}");
        assert!(log.lines().count() < 8, "{log}");
    }
}

#[test]
fn a_wrong_password_is_an_outage_of_one_line_and_is_shown_nowhere() {
    let server = Server::start();
    server.ask::<()>("ACL SETUSER limited on >right ~* +@all");
    let service = instance(&as_user(&server, "hunter2"), &[("ON_STORE_ERROR", "closed"), ("RUST_LOG", "trace")]);
    for _ in 0..10 {
        let reply = ask(&service, "c");
        assert_eq!(reply.status, 503);
        assert!(!format!("{reply:?}").contains("hunter2"));
    }
    assert!(store_is(&service, "down: closed") && !service.get("/healthz").body.contains("hunter2"));
    eventually("it is tried now and then", || server.errors("WRONGPASS") >= 3);
    assert_eq!((service.log_with("WRONGPASS"), changes(&service)).1, (1, 0));
    server.ask::<()>("ACL SETUSER limited >hunter2");
    eventually("the store is used", || ask(&service, "c").status == 200);
    let log = service.log_with("is back");
    assert_eq!(changes(&service), (1, 1));
    assert!(!log.contains("hunter2"), "{log}");
}

#[test]
fn a_server_that_asks_for_a_password_says_so_however_many_policies_are_asked() {
    let server = Server::with(&["--requirepass", "secret"]);
    // The calls of several have more arguments than a server reads of those who are not logged in.
    for policies in ["a=fixed-window:10/1h", "a=fixed-window:10/1h; b=token-bucket:5:1/1s"] {
        let settings = [
            ("REDIS_URL", server.url()),
            ("REDIS_TIMEOUT", "500ms"),
            ("ON_STORE_ERROR", "closed"),
            ("POLICIES", policies),
        ];
        let service = Service::start(&settings);
        assert_eq!(service.get("/limited").status, 503);
        service.log_with("NOAUTH: it asks for a password, and the URL has none");
    }
}

#[test]
fn with_one_worker_a_late_reply_is_never_taken_for_the_answer_to_another_client() {
    let server = Server::with(&["--enable-debug-command", "yes"]);
    let service = instance(server.url(), &[("ON_STORE_ERROR", "closed"), ("WORKERS", "1")]);
    let round = |round: &str, fall_silent: &dyn Fn(), speak: &dyn Fn()| {
        // Used up and not refused yet: a refusal would be repeated without asking the store.
        let used_up = format!("{round} used up");
        for turn in 1..=10 {
            assert_eq!(ask(&service, &used_up).number("X-RateLimit-Remaining"), 10 - turn);
        }
        fall_silent();
        assert_eq!(ask(&service, &used_up).status, 503, "{round}");
        speak();
        eventually("the store is up", || store_is(&service, "up"));
        let fresh = ask(&service, &format!("{round} fresh"));
        assert_eq!((fresh.status, fresh.number("X-RateLimit-Remaining")), (200, 9), "{round}");
    };
    for turn in 0..3 {
        let pause = || server.ask("CLIENT PAUSE 60000 WRITE");
        round(&format!("pause {turn}"), &pause, &|| server.ask("CLIENT UNPAUSE"));
    }
    let sleep = || {
        let mut sleeper = server.connect();
        sleeper.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket option");
        cmd("DEBUG").arg("SLEEP").arg(1).exec(&mut sleeper).expect_err("it sleeps instead of answering");
    };
    for turn in 0..2 {
        round(&format!("sleep {turn}"), &sleep, &|| {});
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn a_build_without_tls_says_so_instead_of_starting_in_the_clear() {
    let output = command(&[("REDIS_URL", "rediss://:hunter2@localhost")]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("REDIS_URL") && said.contains("feature `tls`") && !said.contains("hunter2"), "{said}");
}

/// Descriptors and threads of a process.
fn belongings(service: &Service) -> (usize, usize) {
    let count = |of| fs::read_dir(format!("/proc/{}/{of}", service.pid())).expect("the process lives").count();
    (count("fd"), count("task"))
}

#[test]
fn ten_outages_leave_the_threads_and_descriptors_of_the_program_as_they_were() {
    let mut server = Server::start();
    let service = instance(server.url(), &[("WORKERS", "4")]);
    let all_at_once = || {
        std::thread::scope(|scope| {
            for client in 0..8 {
                let service = &service;
                scope.spawn(move || (0..5).for_each(|_| drop(ask(service, &format!("client {client}")))));
            }
        });
    };
    all_at_once();
    assert!(store_is(&service, "up"));
    let before = belongings(&service);
    for _ in 0..10 {
        server.kill();
        all_at_once();
        eventually("the outage is noticed", || store_is(&service, "down: local"));
        server.restart();
        eventually("the store is back", || store_is(&service, "up"));
        all_at_once();
    }
    eventually("everything is given back", || {
        let now = belongings(&service);
        now.0 <= before.0 && now.1 <= before.1
    });
    eventually("each change is in the log", || changes(&service) == (10, 10));
    let log = service.log();
    assert!(log.lines().count() <= 22, "{log}");
}
