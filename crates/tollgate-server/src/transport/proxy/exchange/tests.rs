//! Limits of request bodies.

use super::*;

/// A regression: a body of which a byte came every ten seconds lived on.
#[test]
fn every_body_has_a_minimum_rate_and_a_grpc_call_is_known() {
    let config = ProxyConfig::with_defaults(Vec::new());
    let limits = |version: Version, content_type: &'static str| {
        let request = Request::builder().version(version).header(CONTENT_TYPE, content_type).body(());
        stall_limits(&request.expect("a valid request").into_parts().0, &config)
    };
    let [http1, http2, grpc] = [
        (Version::HTTP_11, "application/grpc"), // only HTTP/2 carries gRPC
        (Version::HTTP_2, "application/json"),
        (Version::HTTP_2, "application/grpc+proto"),
    ]
    .map(|(version, content_type)| limits(version, content_type));
    assert_eq!([http1.is_grpc, http2.is_grpc, grpc.is_grpc], [false, false, true]);
    assert_eq!([http1, http2, grpc].map(|limits| limits.min_rate), [Some(240); 3]);
}
