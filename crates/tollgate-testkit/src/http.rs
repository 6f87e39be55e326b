//! HTTP/1.1, spoken by hand.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::SOON;

/// One connection, kept open.
pub struct Client {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Client {
    pub fn to(address: SocketAddr) -> Client {
        Client::patient(address, SOON)
    }

    /// A client with a longer timeout.
    pub fn patient(address: SocketAddr, patience: Duration) -> Client {
        Client::over(TcpStream::connect(address).expect("the server accepts"), address, patience)
    }

    /// Connects from an address of its own: all of 127.0.0.0/8 is this machine.
    pub fn connect_from(source: IpAddr, address: SocketAddr) -> Client {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            socket.bind(SocketAddr::new(source, 0)).expect("a loopback address");
            let stream = socket.connect(address).await.expect("the server accepts");
            stream.into_std().expect("a stream of the standard library")
        });
        stream.set_nonblocking(false).expect("a stream that waits");
        Client::over(stream, address, SOON)
    }

    fn over(stream: TcpStream, address: SocketAddr, patience: Duration) -> Client {
        stream.set_read_timeout(Some(patience)).expect("a timeout can be set");
        stream.set_write_timeout(Some(SOON)).expect("a timeout can be set");
        stream.set_nodelay(true).expect("a small request goes out at once");
        Client { stream: BufReader::new(stream), address }
    }

    /// Sends a request and reads its answer. A `Host` of the caller's stands in for the usual one.
    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut head = format!("{method} {path} HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += &format!("host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        // Most clients give up when they cannot send, and never see an answer that came early.
        let sent = self.stream.get_mut().write_all(&[head.as_bytes(), body].concat());
        sent.expect("the server takes the whole request");
        if method == "HEAD" { self.head() } else { self.answer() }
    }

    /// Sends bytes as they are. A server that has hung up may still have answered.
    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).ok();
    }

    /// The next answer with its body.
    pub fn answer(&mut self) -> Answer {
        self.try_answer().expect("an answer")
    }

    /// `None` where the server hangs up instead.
    pub fn try_answer(&mut self) -> Option<Answer> {
        let mut answer = self.try_head()?;
        if answer.header("transfer-encoding") == Some("chunked") {
            return self.chunks(answer);
        }
        let length = answer.header("content-length").map_or(0, |length| length.parse().expect("a length"));
        answer.body.resize(length, 0);
        self.stream.read_exact(&mut answer.body).ok()?;
        Some(answer)
    }

    /// The chunks of a body, and the trailers behind them among the headers.
    fn chunks(&mut self, mut answer: Answer) -> Option<Answer> {
        loop {
            let length =
                usize::from_str_radix(self.line()?.split(';').next()?, 16).expect("the size of a chunk");
            if length == 0 {
                break;
            }
            let start = answer.body.len();
            answer.body.resize(start + length, 0);
            self.stream.read_exact(&mut answer.body[start..]).ok()?;
            self.line()?;
        }
        while let Some((name, value)) = self.line()?.split_once(':') {
            answer.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Some(answer)
    }

    /// The next answer without its body.
    pub fn head(&mut self) -> Answer {
        self.try_head().expect("an answer")
    }

    fn try_head(&mut self) -> Option<Answer> {
        let first = self.line()?;
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status line: {first}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Some(Answer { status, headers, body: Vec::new() })
    }

    /// The next `count` bytes.
    pub fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).expect("more bytes");
        bytes
    }

    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no answer: {error}"),
        }
    }
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self}"))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.status, self.headers, self.text())
    }
}
