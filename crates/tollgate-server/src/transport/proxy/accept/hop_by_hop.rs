//! Removes hop-by-hop headers, which belong to one connection (RFC 9110, 7.6.1).

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};

pub const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
pub const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// CGI passes it to the program as `HTTP_PROXY`, the address of a proxy to use.
const PROXY: HeaderName = HeaderName::from_static("proxy");
pub const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Removes hop-by-hop headers from a request. Of `TE` only `trailers` remains.
pub fn remove_from_request(headers: &mut HeaderMap) {
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    let wants_trailers = headers.get_all(TE).iter().any(names_trailers);
    remove(headers);
    headers.remove(TE);
    headers.remove(PROXY);
    headers.remove(HTTP2_SETTINGS);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes hop-by-hop headers from a response.
pub fn remove_from_response(headers: &mut HeaderMap) {
    if headers.keys().any(is_hop_by_hop) {
        remove(headers);
    }
}

/// One pass over the few headers of a message, instead of a lookup for each of these.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    match *name {
        CONNECTION | UPGRADE | TRANSFER_ENCODING | TE => true,
        _ => matches!(name.as_str(), "keep-alive" | "proxy-connection" | "proxy" | "http2-settings"),
    }
}

fn remove(headers: &mut HeaderMap) {
    let is_keep_alive = |line: &HeaderValue| line.as_bytes().eq_ignore_ascii_case(b"keep-alive");
    if !headers.get_all(CONNECTION).iter().all(is_keep_alive) {
        for name in named_by_connection(headers) {
            headers.remove(name);
        }
    }
    headers.remove(CONNECTION);
    headers.remove(KEEP_ALIVE);
    headers.remove(PROXY_CONNECTION);
    headers.remove(UPGRADE);
    // The framing follows from the body: chunks replace a length, and a message never has both.
    if headers.remove(TRANSFER_ENCODING).is_some() {
        headers.remove(CONTENT_LENGTH);
    }
}

/// The headers that `Connection` names. Headers about a request's origin, its target or its length are exempt:
/// otherwise a client could have a trusted proxy's header about its address removed.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let is_kept = |name: &HeaderName| {
        let name = name.as_str();
        matches!(name, "host" | "content-length" | "te" | "forwarded" | "x-real-ip")
            || name.starts_with("x-forwarded-")
    };
    tokens(headers, CONNECTION)
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        .filter(|name| !is_kept(name))
        .collect()
}

fn names_trailers(value: &HeaderValue) -> bool {
    let parts = value.to_str().unwrap_or_default().split(',');
    parts.map(str::trim).any(|part| part.eq_ignore_ascii_case("trailers"))
}

fn tokens(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// The protocol that a request names in Upgrade. An upgrade to HTTP/2 is not supported: its requests would bypass the
/// limits.
pub fn requested_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    let is_upgrade = tokens(headers, CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    let hides_http = tokens(headers, UPGRADE).any(|token| {
        let name = token.split('/').next().unwrap_or_default();
        ["h2c", "h2", "http"].iter().any(|http| name.eq_ignore_ascii_case(http))
    });
    (is_upgrade && !hides_http).then(|| protocol.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut given = headers(&[
            ("host", "h"),
            ("connection", "close, x-private"),
            ("connection", "host, keep-alive, X-Forwarded-For"),
            ("x-forwarded-for", "203.0.113.9"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABk"),
            ("proxy", "evil:80"),
            ("x-private", "1"),
            ("x-public", "2"),
        ]);
        remove_from_request(&mut given);
        assert_eq!(
            given,
            headers(&[
                ("host", "h"),
                ("x-forwarded-for", "203.0.113.9"),
                ("te", "trailers"),
                ("x-public", "2")
            ])
        );
    }

    #[test]
    fn an_upgrade_needs_both_headers_and_never_goes_to_http() {
        let upgrade_of = |connection, upgrade| {
            requested_upgrade(&headers(&[("connection", connection), ("upgrade", upgrade)]))
        };
        assert!(upgrade_of("keep-alive, Upgrade", "websocket").is_some());
        assert!(upgrade_of("keep-alive", "websocket").is_none());
        for protocol in ["h2c", "websocket, h2c", "HTTP/2.0", "H2C"] {
            assert!(upgrade_of("upgrade", protocol).is_none(), "{protocol}");
        }
    }
}
