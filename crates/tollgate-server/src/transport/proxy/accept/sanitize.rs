//! Header sanitizing: removes client headers that upstreams must not see, and aliases of headers that the proxy
//! manages.
//!
//! Sanitizing precedes the decision, so that the decision is made on the headers that are forwarded. Servers behind
//! CGI, WSGI and the like do not distinguish `-` and `_` in names, and some (lighttpd) no punctuation at all, so other
//! spellings of headers that the proxy sets, strips or counts by are removed. Names that are merely unusual pass.

use std::sync::Arc;

use hyper::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, FORWARDED, HOST,
    HeaderMap, HeaderName, TE, TRANSFER_ENCODING, UPGRADE,
};

use crate::gate::FieldSelection;
use crate::transport::proxy::RouteSnapshot;
use crate::transport::proxy::accept::forwarded::{X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO};
use crate::transport::proxy::accept::hop_by_hop::{HTTP2_SETTINGS, KEEP_ALIVE, PROXY_CONNECTION};

const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The headers that the proxy writes or removes and whose names have a hyphen.
const MANAGED_HEADERS: [HeaderName; 8] = [
    X_FORWARDED_FOR,
    X_FORWARDED_HOST,
    X_FORWARDED_PROTO,
    CONTENT_LENGTH,
    TRANSFER_ENCODING,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    HTTP2_SETTINGS,
];

/// Fields that are not allowed in trailers: origin, target, credentials and framing of a request (RFC 9110, 6.5.1).
const NOT_IN_TRAILERS: [HeaderName; 9] =
    [FORWARDED, HOST, AUTHORIZATION, COOKIE, CONNECTION, TE, UPGRADE, CONTENT_TYPE, CONTENT_ENCODING];

/// Whether a request's headers come from a client or from a trusted proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestOrigin {
    Client,
    TrustedProxy,
}

/// Removes the headers of a request that the API must not see. `counted` are the names that rules count by.
pub fn sanitize_headers(
    headers: &mut HeaderMap,
    strip: &[HeaderName],
    counted: &[HeaderName],
    origin: RequestOrigin,
) {
    let has_stripped = headers.keys().any(|name| strip.contains(name));
    for name in strip.iter().filter(|_| has_stripped) {
        // A trusted proxy may name the client's address in this header, too.
        if *name != X_REAL_IP || origin == RequestOrigin::Client {
            headers.remove(name);
        }
    }
    let is_unusual =
        |name: &HeaderName| !name.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    // Only then can a name with hyphens be an alias.
    let any_name_may_be_alias = counted.iter().chain(strip).any(is_unusual);
    let aliases = headers.keys().filter(|name| any_name_may_be_alias || is_unusual(name));
    let aliases: Vec<HeaderName> = aliases.filter(|name| is_alias(name, strip, counted)).cloned().collect();
    for name in aliases {
        headers.remove(name);
    }
}

/// Whether a name is another spelling of a header that the proxy sets, strips or counts by.
fn is_alias(name: &HeaderName, strip: &[HeaderName], counted: &[HeaderName]) -> bool {
    let is_other_spelling = |known: &HeaderName| known != name && is_same(known, name);
    if counted.contains(name) || MANAGED_HEADERS.contains(name) || strip.contains(name) {
        return false;
    }
    MANAGED_HEADERS.iter().chain(strip).chain(counted).any(is_other_spelling)
}

/// Whether two names are equal if all punctuation is.
fn is_same(one: &HeaderName, other: &HeaderName) -> bool {
    let hyphen = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'-' };
    let one = one.as_str();
    let other = other.as_str();
    one.len() == other.len() && one.bytes().map(hyphen).eq(other.bytes().map(hyphen))
}

/// Removes fields from a request's trailers that are allowed in its head only.
pub struct TrailerFilter {
    pub(in crate::transport::proxy) route: Arc<RouteSnapshot>,
    pub(in crate::transport::proxy) field_selection: Arc<FieldSelection>,
}

impl TrailerFilter {
    pub fn remove_forbidden(&self, trailers: &mut HeaderMap) {
        let lists: [&[HeaderName]; 4] = [
            &MANAGED_HEADERS,
            &NOT_IN_TRAILERS,
            &self.route.config.strip_headers,
            &self.field_selection.headers,
        ];
        let is_forbidden =
            |name: &&HeaderName| lists.iter().copied().flatten().any(|known| is_same(known, name));
        let names: Vec<HeaderName> = trailers.keys().filter(is_forbidden).cloned().collect();
        for name in names {
            trailers.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn kept(
        given: &[&'static str],
        strip: &[&'static str],
        counted: &[&'static str],
        origin: RequestOrigin,
    ) -> Vec<String> {
        let names = |names: &[&'static str]| -> Vec<HeaderName> {
            names.iter().map(|name| HeaderName::from_static(name)).collect()
        };
        let mut headers: HeaderMap =
            names(given).into_iter().map(|name| (name, HeaderValue::from_static("x"))).collect();
        sanitize_headers(&mut headers, &names(strip), &names(counted), origin);
        let mut kept: Vec<String> = headers.keys().map(ToString::to_string).collect();
        kept.sort();
        kept
    }

    #[test]
    fn other_spellings_of_headers_that_we_set_strip_or_count_by_are_removed() {
        let given = [
            "x_forwarded_for",
            "x-forwarded_for",
            "x_forwarded-proto",
            "content_length",
            "x_real_ip",
            "x_api_key",
            "x-api_key",
            "x-api-key",
            "user_id",
            "x_other",
            "x.api.key",
            "x-forwarded.for",
            "x~real|ip",
            "x.other",
        ];
        let expected = ["user_id", "x-api-key", "x.other", "x_other"];
        assert_eq!(kept(&given, &["x-real-ip"], &["x-api-key"], RequestOrigin::Client), expected);
        let expected = ["user_id", "x.other", "x_api_key", "x_other"];
        assert_eq!(kept(&given, &["x-real-ip"], &["x_api_key"], RequestOrigin::Client), expected);
    }

    #[test]
    fn configured_headers_are_stripped_except_the_real_ip_of_a_trusted_proxy() {
        let given = ["x-real-ip", "true-client-ip", "x-other"];
        let strip = ["x-real-ip", "true-client-ip"];
        assert_eq!(kept(&given, &strip, &[], RequestOrigin::Client), ["x-other"]);
        assert_eq!(kept(&given, &strip, &[], RequestOrigin::TrustedProxy), ["x-other", "x-real-ip"]);
        assert_eq!(kept(&given, &[], &[], RequestOrigin::Client), ["true-client-ip", "x-other", "x-real-ip"]);
    }
}
