//! Examples of real servers, and properties of the parsers.

use std::time::{Duration, SystemTime};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;

/// 2027-01-15T08:00:00Z
const NOW: u64 = 1_800_000_000;

fn read(lines: &[(&'static str, &str)]) -> ServerLimits {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let value = HeaderValue::from_str(value).expect("a header value");
        headers.append(HeaderName::from_static(name), value);
    }
    ServerLimits::read(&headers, UNIX_EPOCH + Duration::from_secs(NOW))
}

/// One limit as `name quota/window remaining reset`, with a dash for what is not stated.
fn shown(limits: &ServerLimits) -> Vec<String> {
    let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let secs = |duration: Option<Duration>| number(duration.map(|duration| duration.as_secs()));
    let one = |limit: &ReportedLimit| {
        let partition = limit.partition.as_ref().map(|key| format!("[{key}]")).unwrap_or_default();
        format!(
            "{}{partition} {}/{} {} {}",
            limit.name,
            number(limit.quota),
            secs(limit.window),
            number(limit.remaining),
            secs(limit.reset)
        )
    };
    limits.limits.iter().map(one).collect()
}

#[test]
fn the_current_draft() {
    let policy = ("ratelimit-policy", r#""burst";q=100;w=60, "daily";q=1000;w=86400;pk=:dXNlcg==:"#);
    let limits = read(&[policy, ("ratelimit", r#""burst";r=50;t=30"#)]);
    assert_eq!(shown(&limits), ["burst 100/60 50 30", "daily[dXNlcg==] 1000/86400 - -"]);
    let limits = read(&[policy, ("ratelimit", r#""daily";r=0;t=7;pk=:dXNlcg==:"#)]);
    assert_eq!(shown(&limits), ["burst 100/60 - -", "daily[dXNlcg==] 1000/86400 0 7"]);
    assert_eq!(shown(&read(&[("ratelimit", r#""a\"b\\";r=1"#)])), [r#"a"b\ -/- 1 -"#]);
}

#[test]
fn several_lines_are_one_list() {
    let limits = read(&[("ratelimit-policy", r#""a";q=1;w=1"#), ("ratelimit-policy", r#""b";q=2;w=2"#)]);
    assert_eq!(shown(&limits), ["a 1/1 - -", "b 2/2 - -"]);
}

#[test]
fn quotas_of_bytes_are_not_limits_on_requests() {
    assert!(read(&[("ratelimit-policy", r#""a";q=1;w=1;qu="content-bytes""#)]).is_empty());
    assert_eq!(shown(&read(&[("ratelimit-policy", r#""a";q=1;w=1;qu="requests""#)])), ["a 1/1 - -"]);
}

#[test]
fn earlier_drafts() {
    let limits = read(&[("ratelimit-policy", "100;w=60"), ("ratelimit", "limit=100, remaining=50, reset=5")]);
    assert_eq!(shown(&limits), [" 100/60 50 5"]);
    let limits =
        read(&[("ratelimit-limit", "100, 100;w=60"), ("ratelimit-remaining", "3"), ("ratelimit-reset", "9")]);
    assert_eq!(shown(&limits), [" 100/60 3 9"]);
}

#[test]
fn a_reset_is_told_by_its_size() {
    for (reset, expected) in [
        ("30", "30"),
        ("0.3", "1"),
        ("1800000030", "30"),
        ("1800000030000", "30"),
        ("1700000000", "0"),
        ("Fri, 15 Jan 2027 08:00:30 GMT", "30"),
        ("soon", "-"),
    ] {
        for prefix in ["x-ratelimit", "x-rate-limit"] {
            let name = |end: &str| -> &'static str { Box::leak(format!("{prefix}-{end}").into_boxed_str()) };
            let limits = read(&[(name("limit"), "60"), (name("remaining"), "7"), (name("reset"), reset)]);
            assert_eq!(shown(&limits), [format!(" 60/- 7 {expected}")]);
        }
    }
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    let wait = |value: &str| read(&[("retry-after", value)]).retry_after.map(|wait| wait.as_secs());
    assert_eq!(wait("120"), Some(120));
    assert_eq!(wait("Fri, 15 Jan 2027 08:02:00 GMT"), Some(120));
    assert_eq!(wait("Fri, 15 Jan 2027 07:00:00 GMT"), Some(0));
    for nonsense in ["", "-1", "1e9", "99999999999999999999", "tomorrow", "1 2"] {
        assert_eq!(wait(nonsense), None, "{nonsense}");
    }
}

#[test]
fn dates_are_compared_with_the_date_of_the_response() {
    let limits = read(&[
        ("date", "Fri, 15 Jan 2027 09:00:00 GMT"), // an hour ahead of this clock
        ("retry-after", "Fri, 15 Jan 2027 09:00:10 GMT"),
    ]);
    assert_eq!(limits.retry_after, Some(Duration::from_secs(10)));
}

#[test]
fn a_field_that_is_not_valid_is_ignored_as_a_whole() {
    for nonsense in [
        r#""a";q=1;w=1,"#,
        r#""a";q=1;w=1 "b""#,
        r#""a"#,
        r#""a";q=1234567890123456"#,
        r#""a";Q=1"#,
        r#"("a" "b");q=1"#,
        r#""a";q=-1"#,
        r#""a";q=1.5"#,
        r#""\x";q=1"#,
        r#""a";q=:!:"#,
        ",",
        ";q=1",
        "=1",
    ] {
        assert!(read(&[("ratelimit-policy", nonsense)]).is_empty(), "{nonsense}");
    }
    let twice = [("retry-after", "1"), ("retry-after", "2")];
    assert!(read(&twice).is_empty());
}

#[test]
fn what_is_read_is_bounded() {
    let many = vec![r#""a";q=1;w=1"#; 100].join(", ");
    assert_eq!(read(&[("ratelimit-policy", &many)]).limits.len(), MAX_REPORTED);
    let long = format!(r#""{}";q=1;w=1"#, "a".repeat(MAX_FIELD_BYTES));
    assert!(read(&[("ratelimit-policy", &long)]).is_empty());
}

proptest! {
    #[test]
    fn any_bytes_are_read_within_the_bounds(
        policy in proptest::collection::vec(32_u8..=255, 0..300),
        state in r#"[ -~]{0,300}"#,
        numbers in proptest::collection::vec(r#"[0-9.,;w= ]{0,24}"#, 4),
    ) {
        let mut headers = HeaderMap::new();
        let mut put = |name: &'static str, value: &[u8]| {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.append(HeaderName::from_static(name), value);
            }
        };
        put("ratelimit-policy", &policy);
        put("ratelimit", state.as_bytes());
        for (name, number) in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"]
            .into_iter()
            .zip(&numbers)
        {
            put(name, number.as_bytes());
        }
        let limits = ServerLimits::read(&headers, SystemTime::now());
        prop_assert!(limits.limits.len() <= MAX_REPORTED);
    }

    #[test]
    fn what_a_server_writes_is_read_back(
        name in r#"[ !#-\[\]-~]{1,20}"#,
        quota in 0..999_999_999_999_999_u64,
        window in 1..999_999_999_u64,
        remaining in 0..999_999_999_999_999_u64,
        reset in 0..999_999_999_u64,
    ) {
        let policy = format!("\"{name}\";q={quota};w={window}");
        let state = format!("\"{name}\";r={remaining};t={reset}");
        let limits = read(&[("ratelimit-policy", &policy), ("ratelimit", &state)]);
        let expected = ReportedLimit {
            name,
            partition: None,
            quota: Some(quota),
            window: Some(Duration::from_secs(window)),
            remaining: Some(remaining),
            reset: Some(Duration::from_secs(reset)),
        };
        prop_assert_eq!(limits.limits, [expected]);
    }
}

/// A `google.rpc.Status` with these details, in base64.
fn status_with(details: &[Vec<u8>]) -> String {
    use base64::Engine;
    let mut status = vec![8, 8]; // code: RESOURCE_EXHAUSTED
    details.iter().for_each(|any| status.extend(message(3, any)));
    base64::engine::general_purpose::STANDARD_NO_PAD.encode(status)
}

/// A field that contains a message of less than 128 bytes.
fn message(field: u8, contents: &[u8]) -> Vec<u8> {
    [&[field << 3 | 2, contents.len() as u8], contents].concat()
}

fn any(name: &str, value: &[u8]) -> Vec<u8> {
    [message(1, format!("type.googleapis.com/{name}").as_bytes()), message(2, value)].concat()
}

#[test]
fn the_delay_of_retry_info_is_found_among_other_details() {
    let info = |delay: &[u8]| any("google.rpc.RetryInfo", &message(1, delay));
    let other = any("google.rpc.DebugInfo", &message(1, &[8, 99]));
    let read = |details: &[Vec<u8>]| {
        let lines = [("grpc-status-details-bin", &*status_with(details)), ("retry-after", "7")];
        self::read(&lines).retry_after
    };
    let after = Some(Duration::from_secs(7));
    assert_eq!(read(&[other.clone(), info(&[8, 3])]), Some(Duration::from_secs(3)));
    assert_eq!(read(&[info(&[16, 0x80, 0x89, 0x7a])]), Some(Duration::from_millis(2)), "nanoseconds alone");
    assert_eq!(read(&[info(&[])]), Some(Duration::ZERO), "fields that are zero are left out");
    assert_eq!(read(&[other]), after, "without it, the header");
    let negative = [8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    assert_eq!(read(&[info(&negative)]), after);
    assert_eq!(read(&[info(&[16, 0x80, 0x94, 0xeb, 0xdc, 0x03])]), after, "a second of nanoseconds");
    assert_eq!(read(&[info(&[8])]), Some(Duration::ZERO), "a field that is cut off is not there");
}

proptest! {
    #[test]
    fn no_status_of_grpc_makes_the_reader_panic(bytes in prop::collection::vec(proptest::arbitrary::any::<u8>(), 0..200)) {
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(&bytes);
        read(&[("grpc-status", "8"), ("grpc-status-details-bin", &text)]);
        read(&[("grpc-status-details-bin", &status_with(&[bytes.into_iter().take(100).collect()]))]);
    }
}
