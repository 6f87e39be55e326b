//! The verdict's headers beside those that the API sent itself.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tollgate::Verdict;
use tollgate::headers::{HeaderStyle, headers};

/// Writes what the verdict has to say; what the API said is never loosened.
pub fn write(response: &mut HeaderMap, verdict: &Verdict, style: HeaderStyle) {
    for (name, value) in headers(verdict, style) {
        let value = HeaderValue::from_maybe_shared(bytes::Bytes::from(value))
            .expect("rule ids and numbers fit a header");
        response.insert(HeaderName::from_static(name), value);
    }
}
