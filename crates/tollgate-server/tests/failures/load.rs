//! A steady load on the decision API, and what its clients saw.
//!
//! A caller that is held up sends less, and does not catch up: what is counted never exceeds the rate.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Requests per second for each failure mode, of clients below their limit and as many of clients at their limit.
pub const RATE: u32 = 50;
/// Callers that share this rate.
const CALLERS: u32 = 2;
/// Different keys of each kind, for each failure mode.
pub const KEYS: usize = 20;
/// What a client at its limit may have, once; the next is hours away.
pub const LIMIT: usize = 10;
pub const MODES: [&str; 3] = ["open", "closed", "local"];
const PATIENCE: Duration = Duration::from_secs(5);

/// Rules for each failure mode: one limit that is used up soon, and one that never is.
pub fn rules() -> String {
    let mut rules = "rules:\n".to_owned();
    for mode in MODES {
        let rule = |kind, limit: &str| {
            let matched = format!("match: /{mode}/{kind}, key: user, limit: {limit}, on_store_error: {mode}");
            format!("  - {{ id: {mode}-{kind}, {matched} }}\n")
        };
        rules += &rule("at", &format!("{LIMIT}/d"));
        rules += &rule("below", "1000000/d");
    }
    rules
}

/// Whether a client has used up its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    AtLimit,
    BelowLimit,
}

/// One request as its client saw it.
#[derive(Clone, Debug)]
pub struct ObservedRequest {
    pub at: Instant,
    pub mode: &'static str,
    pub kind: Kind,
    pub user: String,
    /// `None` where no answer came.
    pub status: Option<u16>,
    /// Whether the failure mode has decided it.
    pub by_failure_mode: bool,
}

impl ObservedRequest {
    /// Whether this answer is not the store's.
    pub fn is_failure(&self) -> bool {
        self.by_failure_mode || self.status.is_none_or(|status| !matches!(status, 200 | 429))
    }
}

pub struct Load {
    over: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<ObservedRequest>>>,
    callers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Begins; clients at their limit are so from the start.
    pub fn start(address: SocketAddr) -> Load {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut callers = Vec::new();
        for mode in MODES {
            use_up(address, mode);
            for kind in [Kind::AtLimit, Kind::BelowLimit] {
                for n in 0..CALLERS as usize {
                    let over = Arc::clone(&over);
                    let seen = Arc::clone(&seen);
                    let call = move || call(address, mode, kind, n, &over, &seen);
                    callers.push(thread::spawn(call));
                }
            }
        }
        Load { over, seen, callers }
    }

    /// What was seen since a moment.
    pub fn since(&self, moment: Instant) -> Vec<ObservedRequest> {
        let seen = self.seen.lock().expect("no caller panics");
        seen.iter().filter(|seen| seen.at >= moment).cloned().collect()
    }

    pub fn stop(self) -> Vec<ObservedRequest> {
        self.over.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.join().expect("no caller panics");
        }
        let mut seen = std::mem::take(&mut *self.seen.lock().expect("no caller panics"));
        seen.sort_by_key(|seen| seen.at);
        seen
    }
}

fn user(kind: Kind, n: usize) -> String {
    match kind {
        Kind::AtLimit => format!("at-{n}"),
        Kind::BelowLimit => format!("below-{n}"),
    }
}

fn use_up(address: SocketAddr, mode: &str) {
    let mut connection = None;
    for n in 0..KEYS {
        let user = user(Kind::AtLimit, n);
        let denied = (0..5 * LIMIT).any(|_| {
            let answer = send(&mut connection, address, &format!("/{mode}/at"), &user);
            answer.is_ok_and(|(status, _)| status == 429)
        });
        assert!(denied, "{user} never reaches its limit");
    }
}

fn call(
    address: SocketAddr,
    mode: &'static str,
    kind: Kind,
    caller: usize,
    over: &AtomicBool,
    seen: &Mutex<Vec<ObservedRequest>>,
) {
    let pause = Duration::from_secs(1) * CALLERS / RATE;
    let path = format!("/{mode}/{}", if kind == Kind::AtLimit { "at" } else { "below" });
    let mut connection = None;
    let mut n = caller;
    while !over.load(Ordering::Relaxed) {
        let at = Instant::now();
        let user = user(kind, n % KEYS);
        let answer = send(&mut connection, address, &path, &user).ok();
        let by_failure_mode = answer.as_ref().is_some_and(|(_, reason)| reason == "store_error");
        let status = answer.map(|(status, _)| status);
        seen.lock().expect("no caller panics").push(ObservedRequest {
            at,
            mode,
            kind,
            user,
            status,
            by_failure_mode,
        });
        thread::sleep((at + pause).saturating_duration_since(Instant::now()));
        n += CALLERS as usize;
    }
}

/// Status and reason. A connection that fails is made anew for the next request.
fn send(
    connection: &mut Option<BufReader<TcpStream>>,
    address: SocketAddr,
    path: &str,
    user: &str,
) -> std::io::Result<(u16, String)> {
    let answer = try_send(connection, address, path, user);
    if answer.is_err() {
        *connection = None;
    }
    answer
}

fn try_send(
    connection: &mut Option<BufReader<TcpStream>>,
    address: SocketAddr,
    path: &str,
    user: &str,
) -> std::io::Result<(u16, String)> {
    let stream = match connection {
        Some(stream) => stream,
        None => {
            let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            connection.insert(BufReader::new(stream))
        }
    };
    let body = format!(r#"{{"path":"{path}","user":"{user}"}}"#);
    let head =
        format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.get_mut().write_all(format!("{head}{body}").as_bytes())?;
    let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let mut status = None;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        match line.split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse().map_err(|_| invalid())?,
            Some(_) => {}
            None => status = line.split(' ').nth(1).and_then(|status| status.parse().ok()),
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    // A load balancer's own answers are no JSON.
    let verdict: Value = serde_json::from_slice(&body).unwrap_or_default();
    let reason = verdict["reason"].as_str().unwrap_or_default().to_owned();
    Ok((status.ok_or_else(invalid)?, reason))
}
