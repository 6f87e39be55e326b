//! Bodies: streamed both ways, with trailers, and announced with `Expect: 100-continue`.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use tollgate_testkit::{Client, eventually};

use crate::proxy::api::Api;
use crate::proxy::{in_front_of, resident_kib};

#[test]
fn chunks_and_trailers_go_both_ways() {
    let api = Api::saying(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nx-sum: 5\r\n\r\n",
    );
    let server = in_front_of(&api, "");
    let mut client = Client::to(server.proxy);
    client.write(
        b"POST / HTTP/1.1\r\nhost: x\r\nte: trailers\r\nconnection: te\r\ntransfer-encoding: chunked\r\ntrailer: x-md5\r\n\r\n4;ext=1\r\nwxyz\r\n1\r\n!\r\n0\r\nx-md5: 99\r\n\r\n",
    );
    let answer = client.answer();
    assert_eq!((answer.text().as_str(), answer.header("x-sum")), ("abcde", Some("5")));
    let seen = api.last();
    assert_eq!((seen.body.as_slice(), seen.header("te")), (&b"wxyz!"[..], Some("trailers")));
    assert_eq!(seen.trailers, [("x-md5".to_owned(), "99".to_owned())]);
}

#[test]
fn events_arrive_when_they_happen() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    let api = Api::start(move |_, stream| {
        let head =
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head).expect("the proxy reads");
        for _ in 0..3 {
            stream.write_all(b"9\r\ndata: 1\n\n\r\n").expect("the proxy reads");
            wait.lock().expect("no panic").recv().ok();
        }
        stream.write_all(b"0\r\n\r\n").is_ok()
    });
    let server = in_front_of(&api, "");
    let mut client = Client::to(server.proxy);
    client.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!(client.head().status, 200);
    for _ in 0..3 {
        // The API goes on only after its event has arrived.
        assert_eq!(client.read(14), b"9\r\ndata: 1\n\n\r\n");
        go.send(()).expect("the API waits");
    }
    assert_eq!(client.read(5), b"0\r\n\r\n");
}

#[test]
fn a_gigabyte_passes_in_constant_memory_and_no_faster_than_it_is_read() {
    const TOTAL: usize = 1 << 30;
    let (go, wait) = mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    // An API that reads nothing until it is released.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let slow = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the proxy connects");
        wait.lock().expect("no panic").recv().ok();
        let mut read = 0;
        let mut buffer = vec![0; 1 << 20];
        while read < TOTAL {
            match std::io::Read::read(&mut stream, &mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(count) => read += count,
            }
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone").ok();
    });
    let server = tollgate_testkit::Server::start(&format!("upstreams: ['http://{slow}']\n"));
    let before = resident_kib(server.id());
    let mut client = std::net::TcpStream::connect(server.proxy).expect("the proxy accepts");
    let head = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {TOTAL}\r\n\r\n");
    client.write_all(head.as_bytes()).expect("it is taken");
    client.set_nonblocking(true).expect("possible");
    let chunk = vec![b'x'; 1 << 16];
    let mut sent = 0;
    let mut stuck = 0;
    // It takes what fits the sockets' buffers, and then no more.
    while stuck < 50 {
        match client.write(&chunk) {
            Ok(count) => (sent, stuck) = (sent + count, 0),
            Err(_) => {
                stuck += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert!(sent < 64 << 20, "{sent} bytes were accepted and are not read");
    }
    assert!(resident_kib(server.id()) < before + (16 << 10), "the body waits with its sender");
    go.send(()).expect("the API waits");
    client.set_nonblocking(false).expect("possible");
    let mut most = 0;
    while sent < TOTAL {
        let count = chunk.len().min(TOTAL - sent);
        client.write_all(&chunk[..count]).expect("it is taken");
        sent += count;
        most = most.max(resident_kib(server.id()));
    }
    let mut answer = [0; 12];
    std::io::Read::read_exact(&mut client, &mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 200");
    assert!(most < before + (16 << 10), "nothing was collected: {before} KiB before, {most} at most");
}

#[test]
fn an_endless_stream_of_events_waits_for_a_slow_client_in_constant_memory() {
    const TOTAL: usize = 256 << 20;
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let api = Api::start(move |_, stream| {
        let head =
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head).expect("the proxy reads");
        let event = format!("data: {}\n\n", "x".repeat(1 << 16));
        let event = format!("{:x}\r\n{event}\r\n", event.len());
        while counted.load(Ordering::SeqCst) < TOTAL {
            if stream.write_all(event.as_bytes()).is_err() {
                return false;
            }
            counted.fetch_add(event.len(), Ordering::SeqCst);
        }
        stream.write_all(b"0\r\n\r\n").is_ok()
    });
    let server = in_front_of(&api, "");
    let before = resident_kib(server.id());
    let mut client = std::net::TcpStream::connect(server.proxy).expect("the proxy accepts");
    client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("it is taken");
    // Nothing is read: what fits the sockets' buffers is accepted, and then no more.
    let mut known = (0, Instant::now());
    eventually("the API is stopped", || {
        let now = sent.load(Ordering::SeqCst);
        assert!(now < 64 << 20, "{now} bytes were accepted and are not read");
        if now != known.0 || now == 0 {
            known = (now, Instant::now());
        }
        known.1.elapsed() > Duration::from_millis(500)
    });
    assert!(resident_kib(server.id()) < before + (16 << 10), "events wait with the API");
    let mut read = 0;
    let mut most = 0;
    let mut buffer = vec![0; 1 << 20];
    while let Ok(count @ 1..) = std::io::Read::read(&mut client, &mut buffer) {
        read += count;
        most = most.max(resident_kib(server.id()));
    }
    assert!(read > TOTAL && most < before + (16 << 10), "{read} bytes, {before} KiB before, {most} at most");
}

#[test]
fn continue_is_sent_only_when_the_api_reads_the_body() {
    let api = Api::echo();
    let server = in_front_of(&api, "rules: [{ id: one, limit: 1/h }]");
    let mut client = Client::to(server.proxy);
    let head = b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n";
    client.write(head);
    assert_eq!(client.line().as_deref(), Some("HTTP/1.1 100 Continue"));
    client.line();
    client.write(b"body");
    assert_eq!(client.answer().text(), "body");
    assert_eq!(api.last().header("expect"), Some("100-continue"));
    client.write(head);
    assert_eq!(client.head().status, 429, "a denial is answered at once");
}

#[test]
fn an_api_may_refuse_before_the_body_is_sent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the proxy connects");
        let mut head = [0; 4096];
        std::io::Read::read(&mut stream, &mut head).ok();
        stream.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno").ok();
        std::io::Read::read(&mut stream, &mut head).ok();
    });
    let server = tollgate_testkit::Server::start(&format!("upstreams: ['http://{address}']\n"));
    let mut client = Client::to(server.proxy);
    client.write(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n");
    let answer = client.answer();
    assert_eq!((answer.status, answer.text().as_str()), (413, "no"));
}

#[test]
fn a_client_that_disconnects_cancels_its_request() {
    let (gone, heard) = mpsc::channel();
    let gone = Mutex::new(gone);
    let api = Api::start(move |_, stream| {
        // There is no response; the connection is closed.
        let ended = std::io::Read::read(stream, &mut [0; 1]);
        gone.lock().expect("no panic").send(ended.is_ok_and(|count| count == 0)).ok();
        false
    });
    let server = in_front_of(&api, "");
    let mut client = Client::to(server.proxy);
    client.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    eventually("the request arrives", || api.received().len() == 1);
    drop(client);
    assert!(heard.recv_timeout(tollgate_testkit::SOON).is_ok_and(|closed| closed));
    eventually("nothing is in flight", || {
        server
            .admin("GET", "/metrics", "")
            .text()
            .contains(&format!("tollgate_upstream_in_flight{{upstream=\"{}\"}} 0", api.url()))
    });
}
