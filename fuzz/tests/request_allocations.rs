//! What a request allocates on the paths that most requests take, from its first byte to the last byte of the response:
//! every allocation has a name, and there is no other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tollgate_server::testing::{http, resp};

struct Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
    /// Of the counted requests.
    static COUNTED_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Whether each allocation is printed with its callers.
    static IS_TRACED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    ALLOCATED.set(ALLOCATED.get() + 1);
    if IS_TRACED.replace(false) {
        eprintln!("allocation {}:\n{}", ALLOCATED.get(), Backtrace::force_capture());
        IS_TRACED.set(true);
    }
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller has promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller has promised.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller has promised.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Requests until tables, buffers and the batches of live data are as large as they get.
const WARM_UP: u64 = 3_000;
const COUNTED: u64 = 3_000;

/// A client that sends the next request once it has the response to the last one.
struct Client {
    request: Vec<u8>,
    /// What a response begins with.
    expected: &'static str,
    is_traced: bool,
    is_answered: bool,
    sent: u64,
    allocated_before: u64,
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_answered {
            return Poll::Pending;
        }
        match self.sent {
            WARM_UP => self.allocated_before = ALLOCATED.get(),
            n if n == WARM_UP + COUNTED => {
                COUNTED_ALLOCATIONS.set(ALLOCATED.get() - self.allocated_before);
                IS_TRACED.set(self.is_traced);
            }
            n if n > WARM_UP + COUNTED => {
                IS_TRACED.set(false);
                return Poll::Ready(Ok(())); // the end
            }
            _ => {}
        }
        self.sent += 1;
        self.is_answered = false;
        buffer.put_slice(&self.request);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let is_expected = self.sent <= WARM_UP || bytes.starts_with(self.expected.as_bytes());
        assert!(is_expected, "{}", bytes.escape_ascii());
        self.is_answered = true;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[derive(Clone, Copy)]
enum Listener {
    Http,
    Resp,
}

/// Allocations per request. Those of live data, of which there is less than one per request, are left out.
fn per_request(
    listener: Listener,
    config: &str,
    request: &str,
    expected: &'static str,
    is_traced: bool,
) -> u64 {
    let client = Client {
        request: request.as_bytes().to_vec(),
        expected,
        is_traced,
        is_answered: true,
        sent: 0,
        allocated_before: 0,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    match listener {
        Listener::Http => runtime.block_on(http::serve(config, client)),
        Listener::Resp => runtime.block_on(resp::serve(config, client)),
    }
    COUNTED_ALLOCATIONS.get() / COUNTED
}

/// A request allocates what is named, and nothing else.
#[track_caller]
fn check(listener: Listener, limit: &str, request: &str, expected: &'static str, named: &[(&str, u64)]) {
    let config = format!("rules: [{{ id: each, key: user, limit: {limit} }}]");
    let allocations = per_request(listener, &config, request, expected, false);
    let names: u64 = named.iter().map(|(_, count)| count).sum();
    if allocations != names {
        per_request(listener, &config, request, expected, true);
    }
    assert_eq!(allocations, names, "allocations per request; named are {named:?}");
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn resp_command(words: &[&str]) -> String {
    let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    let count = words.matches('$').count();
    format!("*{count}\r\n{words}")
}

const PLENTY: &str = "1000000/h";
const CHECK: &str = r#"{"method":"GET","path":"/orders","user":"user-0000042"}"#;
const ENVOY: &str =
    r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"user-0000042"}]}]}"#;

const DENIAL: &[(&str, u64)] = &[
    ("the message: the limit, which grows once, and the sentence", 3),
    ("the ticket: contents, limit, text", 3),
];
const RATE_LIMIT: &[(&str, u64)] = &[
    ("the list of descriptors", 1),
    ("the entries of a descriptor", 1),
    ("the rule's name in the status", 1),
    ("the headers for the client", 1),
];

#[test]
fn an_allowed_check_allocates_nothing() {
    check(Listener::Http, PLENTY, &post("/v1/check", CHECK), "HTTP/1.1 200 ", &[]);
}

#[test]
fn a_denied_check_allocates_what_is_named() {
    check(Listener::Http, "1/h", &post("/v1/check", CHECK), "HTTP/1.1 429 ", DENIAL);
}

#[test]
fn a_rate_limit_request_as_json_allocates_what_is_named() {
    check(Listener::Http, PLENTY, &post("/json", ENVOY), "HTTP/1.1 200 ", RATE_LIMIT);
}

#[test]
fn a_throttle_command_allocates_nothing() {
    for (limit, reply) in [("1000000", "*5\r\n:0\r\n"), ("1", "*5\r\n:1\r\n")] {
        let command = resp_command(&["CL.THROTTLE", "user-0000042", limit, limit, "3600", "1"]);
        check(Listener::Resp, PLENTY, &command, reply, &[]);
    }
}

#[test]
fn the_counter_counts() {
    let before = ALLOCATED.get();
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(ALLOCATED.get() - before, 1);
}
