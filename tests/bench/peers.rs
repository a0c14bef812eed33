//! The service beside limiters that others put in front of their services: the same load, the same limit that is never
//! reached, in turn. Each peer is optional; what is missing is skipped with a word.

mod report;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, reason = "what the tests need is more than what a bench needs")]
mod support;
mod wrk;

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use report::{Report, median};
use support::Service;
use support::redis::free_port;

const ROUNDS: usize = 3;
const CONNECTIONS: usize = 16;

/// What the packages of Node are asked to do, with PORT in the environment.
const EXPRESS: &str = "const app = require('express')(); const { rateLimit } = require('express-rate-limit');
    app.use(rateLimit({ windowMs: 60000, limit: 1e9, standardHeaders: 'draft-8' }));
    app.get('/limited', (_, answer) => answer.type('text').send('let in\\n'));
    app.listen(process.env.PORT, '127.0.0.1');";
const FASTIFY: &str = "const app = require('fastify')();
    app.register(require('@fastify/rate-limit'), { max: 1e9, timeWindow: 60000 })
       .after(() => app.get('/limited', async () => 'let in\\n'));
    app.listen({ port: process.env.PORT, host: '127.0.0.1' });";

/// A process that is ended when dropped: asked, since one that is killed would leave processes of its own behind.
struct Peer {
    name: &'static str,
    child: Child,
    url: String,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let asked = Command::new("kill").arg(self.child.id().to_string()).status();
        if asked.is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

fn main() {
    if !wrk::is_installed() {
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench").join("peers");
    fs::create_dir_all(&folder).expect("a folder for the peers");
    let peers: Vec<Peer> = [nginx(&folder), node(&folder, "express", EXPRESS), node(&folder, "fastify", FASTIFY)]
        .into_iter()
        .flatten()
        .collect();
    if peers.is_empty() {
        return;
    }
    let service = Service::start(&[("CAPACITY", "900000000"), ("REFILL_RATE", "900000000")]);
    let ours = format!("http://{}/limited", service.address());
    let caption = format!("requests a second, medians of {ROUNDS} alternating runs, {CONNECTIONS} connections");
    let mut report =
        Report::begin("peers", &caption, &["peer", "its rate", "its p99", "tollgate", "p99", "tollgate to peer"]);
    for peer in &peers {
        let mut runs: [Vec<wrk::Load>; 2] = Default::default();
        for _ in 0..ROUNDS {
            for (url, runs) in [&peer.url, &ours].into_iter().zip(&mut runs) {
                runs.push(wrk::load(url, CONNECTIONS));
            }
        }
        let [its, ours] = runs.map(|runs| {
            let rate = median(runs.iter().map(|run| run.requests_a_second).collect());
            (rate, median(runs.iter().map(|run| run.p99_micros).collect()))
        });
        let ratio = ours.0 / its.0;
        let [its, ours] = [its, ours].map(|(rate, p99)| [format!("{rate:.0}"), format!("{p99:.0} µs")]);
        report.row(&[peer.name, &its[0], &its[1], &ours[0], &ours[1], &format!("{ratio:.2}")]);
        report.bar(format!("tollgate to {}", peer.name), ratio);
    }
    report.end();
}

/// nginx with `limit_req` and a static answer, with as many workers as there are cores.
fn nginx(folder: &Path) -> Option<Peer> {
    let port = free_port();
    let folder = folder.display();
    let configuration = format!(
        "daemon off; worker_processes auto; pid {folder}/nginx.pid; error_log stderr crit;
         events {{ worker_connections 256; }}
         http {{
             access_log off; keepalive_requests 1000000000;
             client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
             uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
             limit_req_zone $binary_remote_addr zone=clients:10m rate=1000000r/s;
             server {{
                 listen 127.0.0.1:{port};
                 location = /limited {{ limit_req zone=clients burst=1000000 nodelay; default_type text/plain; try_files /none @app; }}
                 location @app {{ default_type text/plain; return 200 'let in\n'; }}
             }}
         }}"
    );
    let file = format!("{folder}/nginx.conf");
    fs::write(&file, configuration).expect("the configuration can be written");
    let mut command = Command::new("nginx");
    command.args(["-c", &file, "-e", "stderr"]);
    start("nginx limit_req", command, port, "apt-get install nginx")
}

/// A package of Node with its rate limiter, one process.
fn node(folder: &Path, name: &'static str, program: &str) -> Option<Peer> {
    let installed: PathBuf = folder.join("node_modules").join(name);
    let packages = ["express", "express-rate-limit", "fastify", "@fastify/rate-limit"];
    if !installed.exists() {
        println!("installing {} with npm", packages.join(", "));
        let npm = Command::new("npm").args(["install", "--silent", "--prefix"]).arg(folder).args(packages).status();
        if !npm.is_ok_and(|status| status.success()) {
            println!("skipped: {name}, which npm did not install\n");
            return None;
        }
    }
    let port = free_port();
    let mut command = Command::new("node");
    command.args(["-e", program]).env("PORT", port.to_string()).env("NODE_ENV", "production").current_dir(folder);
    start(name, command, port, "install Node.js")
}

fn start(name: &'static str, mut command: Command, port: u16, hint: &str) -> Option<Peer> {
    let Ok(child) = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn() else {
        println!("skipped: {name} ({hint})\n");
        return None;
    };
    let peer = Peer { name, child, url: format!("http://127.0.0.1:{port}/limited") };
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Some(peer);
        }
        thread::sleep(Duration::from_millis(20));
    }
    println!("skipped: {name} does not listen\n");
    None
}
