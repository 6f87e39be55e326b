//! Which calls are counted together.

use std::sync::Arc;

use http::{HeaderMap, Method};

/// The parts of a request that a key may be made of.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    /// The method.
    pub method: &'r Method,
    /// The host, with its port if it is not the usual one; empty if the request names none.
    pub host: &'r str,
    /// The path without the query.
    pub path: &'r str,
    /// The headers.
    pub headers: &'r HeaderMap,
}

/// The key of a request: calls with the same key share a budget.
#[derive(Clone, Default)]
pub struct KeyOf(Option<KeyFunction>);

type KeyFunction = Arc<dyn Fn(RequestHead<'_>) -> String + Send + Sync>;

impl KeyOf {
    /// The host, with its port if it is not the usual one. The default.
    pub fn host() -> KeyOf {
        KeyOf(None)
    }

    /// The host and the value of a header, such as an API key: each has a budget of its own.
    pub fn host_and_header(name: http::HeaderName) -> KeyOf {
        KeyOf::function(move |request| {
            let value = request.headers.get(&name).map(|value| value.as_bytes()).unwrap_or_default();
            format!("{} {}", request.host.to_ascii_lowercase(), String::from_utf8_lossy(value))
        })
    }

    /// Any function of the request.
    pub fn function(key: impl Fn(RequestHead<'_>) -> String + Send + Sync + 'static) -> KeyOf {
        KeyOf(Some(Arc::new(key)))
    }

    #[cfg(any(feature = "tower", feature = "reqwest"))]
    pub(crate) fn of(&self, request: RequestHead<'_>) -> String {
        match &self.0 {
            Some(key) => key(request),
            None => request.host.to_ascii_lowercase(),
        }
    }
}

impl std::fmt::Debug for KeyOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "KeyOf::function" } else { "KeyOf::host" })
    }
}
