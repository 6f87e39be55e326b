//! Servers that are not what they should be.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate::internal::Shape;

use super::{Store, limit, now, own};
use crate::SOON;

/// A server that does `each` with everything it reads, for as long as that says so; its port.
pub fn serve(each: impl Fn(&TcpStream) -> bool + Copy + Send + 'static) -> u16 {
    serve_counted(each).0
}

/// The same, with the number of its connections.
pub fn serve_counted(each: impl Fn(&TcpStream) -> bool + Copy + Send + 'static) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let counted = counted.clone();
            counted.fetch_add(1, Ordering::Relaxed);
            thread::spawn(move || {
                let mut bytes = [0; 65536];
                while stream.read(&mut bytes).is_ok_and(|read| read > 0) && each(&stream) {}
                counted.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    (port, connections)
}

/// A charge fails, each time within `patience`, and soon its reason contains `part`.
pub async fn check_error(store: impl Store, part: &str, patience: Duration) {
    let start = Instant::now();
    loop {
        let sent_at = Instant::now();
        let charges = [own("login", "user:1", limit("5/h", Shape::GCRA))];
        let outcome = store.charge(&charges, now()).await;
        assert!(sent_at.elapsed() < patience, "an answer in its time, not after {:?}", sent_at.elapsed());
        let error = outcome.limits[0].error().expect("no answer").to_string();
        assert!(outcome.receipt(&charges).is_none() && !error.contains("hunter2"), "{error}");
        if error.contains(part) {
            break;
        }
        assert!(start.elapsed() < SOON, "'{error}' does not say '{part}'");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let trouble = store.trouble().unwrap_or_default();
    assert!(trouble.contains(part), "'{trouble}' does not say '{part}'");
}
