//! The API behind the proxy: a server of HTTP/1.1 that remembers what it was sent, byte for byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use tollgate_testkit::SOON;

pub struct Api {
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    connections: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
}

/// One request as it arrived.
#[derive(Clone, Debug, Default)]
pub struct Received {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known == name);
        let first = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} twice in {:?}", self.headers);
        first
    }

    pub fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }
}

/// What is done with a request: it may write what it likes. Returns whether the connection goes on.
type Handler = dyn Fn(&Received, &mut TcpStream) -> bool + Send + Sync;

impl Api {
    /// Answers everything with its own body.
    pub fn echo() -> Api {
        Api::start(|request, stream| {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", request.body.len());
            stream.write_all(&[head.as_bytes(), &request.body].concat()).is_ok()
        })
    }

    /// Answers everything with these bytes.
    pub fn saying(answer: &'static str) -> Api {
        Api::start(move |_, stream| stream.write_all(answer.as_bytes()).is_ok())
    }

    pub fn start(handler: impl Fn(&Received, &mut TcpStream) -> bool + Send + Sync + 'static) -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port for the API");
        let api = Api {
            address: listener.local_addr().expect("an address"),
            received: Arc::default(),
            connections: Arc::default(),
            stopped: Arc::default(),
        };
        let received = Arc::clone(&api.received);
        let stopped = Arc::clone(&api.stopped);
        let connections = Arc::clone(&api.connections);
        let handler = Arc::new(handler);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                connections.fetch_add(1, Ordering::SeqCst);
                let received = Arc::clone(&received);
                let handler = Arc::clone(&handler);
                thread::spawn(move || converse(stream, &received, &*handler));
            }
        });
        api
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All that was received so far.
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().expect("no handler panics").clone()
    }

    pub fn last(&self) -> Received {
        self.received().pop().expect("a request arrived")
    }

    /// The number of connections accepted.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        TcpStream::connect(self.address).ok();
    }
}

fn converse(stream: TcpStream, received: &Mutex<Vec<Received>>, handler: &Handler) {
    stream.set_read_timeout(Some(SOON * 4)).ok();
    stream.set_nodelay(true).ok();
    let Ok(reading) = stream.try_clone() else { return };
    let mut reader = BufReader::new(reading);
    let mut stream = stream;
    while let Some(request) = read(&mut reader, &mut stream) {
        received.lock().expect("no handler panics").push(request.clone());
        if !handler(&request, &mut stream) {
            break;
        }
    }
    stream.shutdown(Shutdown::Both).ok();
}

fn read(reader: &mut BufReader<TcpStream>, stream: &mut TcpStream) -> Option<Received> {
    let mut request = Received { line: line(reader)?, ..Received::default() };
    request.headers = fields(reader)?;
    if request.header("expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    if request.header("transfer-encoding").is_some() {
        loop {
            let size = usize::from_str_radix(line(reader)?.split(';').next()?, 16).ok()?;
            if size == 0 {
                break;
            }
            let mut chunk = vec![0; size];
            reader.read_exact(&mut chunk).ok()?;
            request.body.extend(chunk);
            line(reader)?;
        }
        request.trailers = fields(reader)?;
    } else if let Some(length) = request.header("content-length") {
        request.body = vec![0; length.parse().ok()?];
        reader.read_exact(&mut request.body).ok()?;
    }
    Some(request)
}

fn fields(reader: &mut BufReader<TcpStream>) -> Option<Vec<(String, String)>> {
    let mut fields = Vec::new();
    loop {
        let line = line(reader)?;
        let Some((name, value)) = line.split_once(':') else { return Some(fields) };
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
}

fn line(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    let read = reader.read_line(&mut line).ok()?;
    (read > 0).then(|| line.trim_end().to_owned())
}
