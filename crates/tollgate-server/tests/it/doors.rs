//! Raw connections to every listener: over TCP or a Unix socket, behind a PROXY header, with TLS.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tollgate_testkit::{Folder, SOON, Server};

use crate::proxy::api::Api;
use crate::proxy::protocols::certificate;

pub const LISTENERS: [&str; 5] = ["http", "grpc", "resp", "admin", "proxy"];
/// What a load balancer in front of a listener sends first.
pub const PROXY_HEADER: &[u8] = b"PROXY TCP4 203.0.113.1 198.51.100.1 1000 80\r\n";
/// The start of HTTP/2, with settings.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The start without settings.
pub const BARE_PREFACE: usize = PREFACE.len() - 9;

/// How the listeners of a node are reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Tcp,
    Unix,
    /// With TLS, behind a PROXY header.
    Tls,
}

pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

pub type TlsSocket = StreamOwned<ClientConnection, Socket>;

/// A node with all listeners, in front of an API.
pub struct Doors {
    pub server: Server,
    folder: Arc<Folder>,
    kind: Kind,
}

impl Doors {
    pub fn open(kind: Kind, api: &Api, rest: &str) -> Doors {
        let folder = Folder::new();
        let rest = format!("upstreams: ['{}']\nrules_db: none\n{rest}\n", api.url());
        match kind {
            Kind::Tcp => drop(folder.configure(&rest)),
            Kind::Unix => {
                let each = LISTENERS.map(|name| format!("{name}: 'unix:{name}.sock'")).join(", ");
                folder.write("tollgate.yaml", format!("listen: {{ {each} }}\n{rest}"));
            }
            Kind::Tls => {
                certificate(&folder, "front");
                let each = LISTENERS.map(|name| format!("{name}: {{ cert: front.pem, key: front.key }}"));
                let each = each.join(", ");
                let all = LISTENERS.join(", ");
                folder.configure(&format!(
                    "{rest}tls: {{ {each} }}\nproxy_protocol: [{all}]\ntrusted_proxies: [127.0.0.1]\n"
                ));
            }
        }
        Doors { server: Server::start_in(&folder), folder, kind }
    }

    fn address(&self, listener: &str) -> SocketAddr {
        match listener {
            "http" => self.server.http,
            "grpc" => self.server.grpc,
            "resp" => self.server.resp,
            "admin" => self.server.admin,
            _ => self.server.proxy,
        }
    }

    /// A connection on which nothing was sent.
    pub fn connect(&self, listener: &str) -> Socket {
        let socket = match self.kind {
            Kind::Unix => {
                let path = self.folder.path(&format!("{listener}.sock"));
                Socket::Unix(UnixStream::connect(path).expect("the listener accepts"))
            }
            _ => Socket::Tcp(TcpStream::connect(self.address(listener)).expect("the listener accepts")),
        };
        socket.set_timeout();
        socket
    }

    /// A connection on which `bytes` were sent.
    pub fn connect_with(&self, listener: &str, bytes: &[u8]) -> Socket {
        let mut socket = self.connect(listener);
        socket.write_all(bytes).expect("the server takes it");
        socket
    }

    fn tls(&self, alpn: &[&[u8]]) -> ClientConnection {
        let pem = std::fs::read(self.folder.path("front.pem")).expect("the certificate");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&pem).expect("a certificate")).expect("it can be trusted");
        let builder = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into());
        let builder = builder.with_safe_default_protocol_versions().expect("versions of TLS");
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let name = ServerName::try_from("localhost").expect("a name");
        ClientConnection::new(config.into(), name).expect("a client of TLS")
    }

    /// A connection that has sent the PROXY header and the first message of TLS.
    pub fn hello_only(&self, listener: &str) -> Socket {
        let mut socket = self.connect_with(listener, PROXY_HEADER);
        self.tls(&[]).write_tls(&mut socket).expect("the server takes it");
        socket
    }

    /// A connection after its TLS handshake.
    pub fn secure(&self, listener: &str) -> TlsSocket {
        let alpn: &[&[u8]] = if matches!(listener, "grpc" | "proxy") { &[b"h2"] } else { &[] };
        let mut stream = StreamOwned::new(self.tls(alpn), self.connect_with(listener, PROXY_HEADER));
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).expect("the handshake succeeds");
        }
        stream
    }
}

impl Socket {
    fn set_timeout(&self) {
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(Some(SOON)),
            Socket::Unix(stream) => stream.set_read_timeout(Some(SOON)),
        }
        .expect("a timeout can be set");
    }

    fn set_nonblocking(&self, is_nonblocking: bool) {
        match self {
            Socket::Tcp(stream) => stream.set_nonblocking(is_nonblocking),
            Socket::Unix(stream) => stream.set_nonblocking(is_nonblocking),
        }
        .expect("a socket may wait or not");
    }

    /// Whether the server has closed the connection by now. What it has sent is dropped.
    pub fn is_closed_now(&mut self) -> bool {
        self.set_nonblocking(true);
        let read = io::copy(self, &mut io::sink());
        self.set_nonblocking(false);
        !read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Everything up to the end of the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.read_to_end(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => panic!("the connection stays open"),
            _ => bytes,
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(buf),
            Socket::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(buf),
            Socket::Unix(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A request of HTTP/1.1 that each of these listeners answers with 200.
pub fn small_request(listener: &str) -> &'static [u8] {
    match listener {
        "http" => b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}",
        "admin" => b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        _ => b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    }
}

/// Reads until the bytes end with `end`.
pub fn read_until(stream: &mut impl Read, end: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(end) {
        assert_eq!(stream.read(&mut byte).expect("more bytes"), 1, "the end after {bytes:?}");
        bytes.push(byte[0]);
    }
    bytes
}
