//! Upstreams that die and come back at random, under load: nothing hangs, leaks or is mixed up.
//! Six seconds with the other tests; SOAK_SECONDS says otherwise.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_testkit::servers::nginx::Nginx;
use tollgate_testkit::{Client, Folder, Server, eventually, free_port};

use crate::proxy::resident_kib;

const CLIENTS: usize = 24;
const DESERTERS: usize = 4;

fn length() -> Duration {
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(6))
}

/// Tells all to stop, also after a panic: a scope waits for its threads.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An upstream that answers with the path of the request, at once or later.
fn upstream(folder: &Folder, port: u16) -> Option<Nginx> {
    let http = format!("server {{ listen 127.0.0.1:{port}; location / {{ return 200 \"$request_uri\"; }} }}");
    Nginx::start("upstreams that die and come back", folder, &http, &[port])
}

#[test]
fn upstreams_die_and_come_back_and_nothing_is_lost_or_mixed_up() {
    let ports = [(); 3].map(|()| free_port());
    let folders = [(); 3].map(|()| Folder::new());
    let mut running: Vec<_> =
        ports.iter().zip(&folders).map(|(port, folder)| upstream(folder, *port)).collect();
    if running.iter().any(Option::is_none) {
        return;
    }
    let urls: Vec<_> = ports.iter().map(|port| format!("'http://127.0.0.1:{port}'")).collect();
    let server = Server::start(&format!(
        "upstreams: [{}]
proxy: {{ connect_timeout: 500ms, response_timeout: 2s }}
rules:
  - {{ id: busy, algorithm: concurrency, limit: 1000/h }}
  - {{ id: queue, match: '/held/**', algorithm: leaky-bucket, limit: 200/s, burst: 50, max_wait: 1s }}",
        urls.join(", ")
    ));
    let stop = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    let statuses = Mutex::new(BTreeMap::<u16, usize>::new());
    let mut after_start = 0;
    thread::scope(|scope| {
        let stopped = &stop;
        let folders = &folders;
        scope.spawn(move || {
            let mut seed = 3_usize;
            while !stopped.load(Ordering::Relaxed) {
                seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345);
                let n = (seed >> 8) % running.len();
                running[n] = match running[n].take() {
                    Some(up) => {
                        drop(up);
                        None
                    }
                    None => upstream(&folders[n], ports[n]),
                };
                thread::sleep(Duration::from_millis(50 + (seed >> 12) as u64 % 200));
            }
        });
        for client in 0..CLIENTS {
            let stop = &stop;
            let answered = &answered;
            let statuses = &statuses;
            let address = server.proxy;
            scope.spawn(move || {
                let mut connection = Client::to(address);
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let folder = if n % 3 == 0 { "held" } else { "free" };
                    let path = format!("/{folder}/{client}/{n}");
                    let answer = connection.request("GET", &path, &[], b"");
                    match answer.status {
                        200 => assert_eq!(answer.text(), path),
                        429 | 502 | 504 => {}
                        status => panic!("{status}: {answer}"),
                    }
                    *statuses.lock().expect("no panic").entry(answer.status).or_default() += 1;
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..DESERTERS {
            let stop = &stop;
            let address = server.proxy;
            // They send a request, some with the start of a body, and are gone before the answer.
            scope.spawn(move || {
                for n in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut connection = Client::to(address);
                    let (method, length) = if n.is_multiple_of(2) { ("GET", 0) } else { ("POST", 1_000) };
                    let folder = if n.is_multiple_of(3) { "free" } else { "held" };
                    let head = format!(
                        "{method} /{folder}/gone HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n"
                    );
                    connection.write(head.as_bytes());
                    thread::sleep(Duration::from_millis(n % 20));
                }
            });
        }
        let _stop = Stop(&stop);
        let start = Instant::now();
        let mut known = 0;
        while start.elapsed() < length() {
            thread::sleep(Duration::from_millis(500));
            eventually("a request is answered", || answered.load(Ordering::Relaxed) > known);
            known = answered.load(Ordering::Relaxed);
            if after_start == 0 && start.elapsed() > length() / 4 {
                after_start = resident_kib(server.id());
            }
        }
    });
    let statuses = statuses.into_inner().expect("no panic");
    assert!(statuses.get(&200).is_some_and(|served| *served > 100), "{statuses:?}");
    let page = || server.admin("GET", "/metrics", "").text();
    eventually("no request is held", || page().contains("tollgate_held_requests 0\n"));
    eventually("nothing is in flight", || {
        let page = page();
        let lines = page.lines().filter(|line| line.starts_with("tollgate_upstream_in_flight{"));
        lines.filter(|line| line.ends_with(" 0")).count() == ports.len()
    });
    assert_eq!(server.used("busy", ""), [0], "every permit was given back");
    let grown = resident_kib(server.id()).saturating_sub(after_start);
    assert!(grown < 24 << 10, "{grown} KiB more than after the start");
    eprintln!("soak: {statuses:?}, {grown} KiB grown");
}
