//! A request as the layer sees it, and the address of its peer.

use std::net::{IpAddr, SocketAddr};

use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{Extensions, HeaderMap, Method, Request, Uri};
use tollgate::internal::denial::ErrorFormat;

/// The head of a request: everything but its body.
#[derive(Clone, Copy, Debug)]
pub struct IncomingRequest<'r> {
    method: &'r Method,
    uri: &'r Uri,
    headers: &'r HeaderMap,
    extensions: &'r Extensions,
}

/// The address of the peer, as an extension of a request: for servers that are built on hyper alone.
///
/// ```
/// use tollgate_tower::PeerAddress;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(PeerAddress("203.0.113.9".parse().expect("an address")));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerAddress(pub IpAddr);

impl<'r> IncomingRequest<'r> {
    pub(crate) fn of<B>(request: &'r Request<B>) -> IncomingRequest<'r> {
        IncomingRequest {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    #[cfg(feature = "_store")]
    pub(crate) fn of_parts(parts: &'r http::request::Parts) -> IncomingRequest<'r> {
        let http::request::Parts { method, uri, headers, extensions, .. } = parts;
        IncomingRequest { method, uri, headers, extensions }
    }

    /// The method.
    pub fn method(self) -> &'r Method {
        self.method
    }

    /// The target as the client sent it: in axum, before a router has removed the prefix of a nested one.
    pub fn uri(self) -> &'r Uri {
        #[cfg(feature = "axum")]
        if let Some(original) = self.extensions.get::<axum::extract::OriginalUri>() {
            return &original.0;
        }
        self.uri
    }

    /// The headers.
    pub fn headers(self) -> &'r HeaderMap {
        self.headers
    }

    /// What the server or an outer layer has attached to the request, such as an authenticated user.
    pub fn extension<T: Send + Sync + 'static>(self) -> Option<&'r T> {
        self.extensions.get()
    }

    /// A header as text, the first of several; `None` if it is absent or not text. A value that clients may repeat is
    /// safer as the key of a rule (`key: header:x-tenant`), which counts all of them.
    pub fn header(self, name: &str) -> Option<&'r str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The other end of the connection: [`PeerAddress`], axum's `ConnectInfo<SocketAddr>`, tonic's `TcpConnectInfo`,
    /// or a bare `SocketAddr`.
    pub fn peer(self) -> Option<IpAddr> {
        if let Some(PeerAddress(ip)) = self.extensions.get() {
            return Some(*ip);
        }
        #[cfg(feature = "axum")]
        if let Some(info) = self.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
            return Some(info.0.ip());
        }
        #[cfg(feature = "tonic")]
        if let Some(info) = self.extensions.get::<tonic::transport::server::TcpConnectInfo>() {
            return info.remote_addr().map(|address| address.ip());
        }
        self.extensions.get::<SocketAddr>().map(SocketAddr::ip)
    }

    pub(crate) fn host(self) -> &'r str {
        match self.uri.authority() {
            Some(authority) => authority.as_str(),
            None => self.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default(),
        }
    }

    pub(crate) fn path_and_query(self) -> &'r str {
        self.uri().path_and_query().map_or("/", |path| path.as_str())
    }

    /// The format of errors that the client prefers.
    pub(crate) fn error_format(self) -> ErrorFormat {
        ErrorFormat::of_accept(self.header(ACCEPT.as_str()).unwrap_or_default())
    }

    pub(crate) fn protocol(self) -> Protocol {
        let kind = self.headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
        match kind.strip_prefix(b"application/grpc") {
            Some(rest) if rest.starts_with(b"-web-text") => Protocol::GrpcWebText,
            Some(rest) if rest.starts_with(b"-web") => Protocol::GrpcWeb,
            Some(b"" | [b'+' | b';', ..]) => Protocol::Grpc,
            _ => Protocol::Http,
        }
    }
}

/// How a denial is written, and where the outcome of a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Http,
    Grpc,
    /// As gRPC, in a browser.
    GrpcWeb,
    /// In base64.
    GrpcWebText,
}

impl Protocol {
    pub(crate) fn is_grpc(self) -> bool {
        self != Protocol::Http
    }
}
