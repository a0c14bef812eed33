//! `rediss://`, with certificates made for the test. A missing `openssl`, or a redis-server without TLS, is a failure.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::Service;
use crate::support::redis::{Server, eventually, folder, free_port, program};
use crate::support::service::command;

/// Two authorities, and a certificate for the loopback that the first of them signed. Dropping it removes the files.
struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    fn make() -> Self {
        let made = Self { folder: folder() };
        let new_key = ["req", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
        let openssl = |words: &[&str]| {
            let mut command = Command::new("openssl");
            let output = command.args(words).current_dir(&made.folder).output().unwrap_or_else(|error| {
                panic!(
                    "this test needs openssl on the PATH ({error}): apt-get install openssl, or brew install openssl"
                )
            });
            assert!(output.status.success(), "openssl {words:?}: {output:?}");
        };
        for name in ["authority", "stranger"] {
            let subject = format!("/CN={name} of a test");
            let files = ["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")];
            openssl(&[&new_key[..], &["-x509", "-days", "2", "-subj", &subject], &files].concat());
        }
        let names = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";
        fs::write(made.file("names"), names).expect("a file of extensions");
        openssl(&[&new_key[..], &["-subj", "/CN=redis", "-keyout", "server.key", "-out", "server.csr"]].concat());
        let signed_by = ["-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-extfile", "names"];
        openssl(&[&["x509", "-req", "-days", "2", "-in", "server.csr", "-out", "server.pem"], &signed_by[..]].concat());
        made
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A server that speaks TLS on this port, and answers the test itself on a socket.
    fn server(&self, port: u16) -> Server {
        // Told to listen nowhere, a server ends at once, and says whether it knows the option.
        let tried = Command::new(program()).args(["--port", "0", "--tls-port", "0"]).output();
        let said = String::from_utf8_lossy(&tried.expect("a redis-server on the PATH: run scripts/need-redis").stdout)
            .into_owned();
        assert!(
            !said.contains("Bad directive"),
            "this test needs a redis-server with TLS, which that of apt-get install redis-server has, and of make \
             BUILD_TLS=yes in Redis's source: {said}"
        );
        let [certificate, key] = ["server.pem", "server.key"].map(|name| self.file(name).display().to_string());
        let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-auth-clients", "no"];
        Server::with(&[&["--tls-port", &port.to_string()], &files[..]].concat())
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn settings<'a>(url: &'a str, trusted: &'a Path) -> [(&'a str, &'a str); 6] {
    [
        ("REDIS_URL", url),
        ("REDIS_TIMEOUT", "1s"),
        ("ON_STORE_ERROR", "closed"),
        ("ALGORITHM", "fixed-window"),
        ("WINDOW", "365d"),
        ("SSL_CERT_FILE", trusted.to_str().expect("a path of a test")),
    ]
}

#[test]
fn a_store_behind_tls_is_shared_over_outages_and_only_if_its_certificate_is_trusted_and_names_it() {
    let (certificates, port) = (Certificates::make(), free_port());
    let mut server = certificates.server(port);
    let [by_name, by_address] = ["localhost", "127.0.0.1"].map(|host| format!("rediss://{host}:{port}"));
    let [authority, stranger] = ["authority.pem", "stranger.pem"].map(|name| certificates.file(name));
    let instances = [&by_name, &by_address].map(|url| Service::start(&settings(url, &authority)));
    let remaining = |service: &Service| service.get("/limited").number("X-RateLimit-Remaining");
    assert_eq!(instances.each_ref().map(remaining), [9, 8]);
    assert!(server.keys().iter().any(|key| key.starts_with("tollgate:{127.0.0.1}")));

    server.kill();
    for instance in &instances {
        assert_eq!(instance.get("/limited").status, 503);
    }
    server.restart();
    for instance in &instances {
        eventually("the store is up", || instance.get("/healthz").body.contains("\"store\":\"up\""));
    }
    assert_eq!(instances.each_ref().map(remaining), [9, 8]);

    let other_name = format!("rediss://127.0.0.2:{port}");
    server.ask::<()>("CONFIG SET bind 0.0.0.0");
    for (url, trusted, reason) in [
        (&by_name, &stranger, "invalid peer certificate: UnknownIssuer"),
        (&other_name, &authority, "certificate not valid for name"),
    ] {
        let wary = Service::start(&settings(url, trusted));
        for _ in 0..3 {
            assert_eq!(wary.get("/limited").status, 503);
        }
        let log = wary.log_with(" is down, ");
        assert!(log.contains(reason) && log.matches(" is down, ").count() == 1, "{log}");
    }
}

#[test]
fn without_any_certificate_to_trust_the_program_says_so_and_does_not_start() {
    let nothing = folder().join("none.pem");
    let Output { status, stderr, .. } = command(&settings("rediss://localhost", &nothing)).output().expect("it runs");
    fs::remove_dir_all(nothing.parent().expect("its folder")).expect("an empty folder");
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("SSL_CERT_FILE"), "{said}");
}
