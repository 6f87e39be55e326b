//! The trace that a request belongs to (W3C Trace Context, `traceparent`). It is logged and passed on, and decides nothing.

use std::fmt;

use hyper::header::HeaderMap;

/// A trace, and the span of the caller in it. Neither is zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceId {
    trace: u128,
    parent: u64,
    flags: u8,
}

/// The bit of the flags that says that the caller may have recorded its span.
#[cfg(feature = "otlp")]
const SAMPLED: u8 = 1;

const HEADER: &str = "traceparent";
/// `00-`, 32 digits of the trace, `-`, 16 of the parent, `-`, 2 of the flags.
const LENGTH: usize = 55;
const INVALID_VERSION: &str = "ff";

impl TraceId {
    /// The trace that the headers name. A value that is not valid names none, and neither do two values.
    pub fn of(headers: &HeaderMap) -> Option<TraceId> {
        let mut values = headers.get_all(HEADER).iter();
        let value = values.next()?;
        if values.next().is_some() {
            return None;
        }
        TraceId::parse(value.as_bytes())
    }

    /// The trace of a value of the header.
    pub fn parse(value: &[u8]) -> Option<TraceId> {
        let value = std::str::from_utf8(value).ok()?;
        // Later versions may append fields.
        let (known, rest) = value.split_at_checked(LENGTH)?;
        let mut fields = known.split('-');
        let mut field = |digits: usize| {
            let is_hex = |text: &&str| {
                text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
            };
            fields.next().filter(is_hex)
        };
        let version = field(2)?;
        let trace = u128::from_str_radix(field(32)?, 16).ok()?;
        let parent = u64::from_str_radix(field(16)?, 16).ok()?;
        let flags = u8::from_str_radix(field(2)?, 16).ok()?;
        let is_complete =
            if version == "00" { rest.is_empty() } else { rest.is_empty() || rest.starts_with('-') };
        let is_valid = is_complete && version != INVALID_VERSION && trace != 0 && parent != 0;
        is_valid.then_some(TraceId { trace, parent, flags })
    }

    /// Whether the caller records the trace.
    #[cfg(feature = "otlp")]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The id of the trace, in the order of bytes in which it is sent.
    #[cfg(feature = "otlp")]
    pub fn trace_bytes(&self) -> [u8; 16] {
        self.trace.to_be_bytes()
    }

    #[cfg(feature = "otlp")]
    pub fn parent_bytes(&self) -> [u8; 8] {
        self.parent.to_be_bytes()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.trace)
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn found(values: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, HeaderValue::from_str(value).expect("a value"));
        }
        TraceId::of(&headers).map(|trace| trace.to_string())
    }

    #[test]
    fn only_a_valid_value_names_a_trace() {
        let valid = format!("00-{TRACE}-00f067aa0ba902b7-01");
        assert_eq!(found(&[&valid]).as_deref(), Some(TRACE));
        let leading_zeros = "00000000000000000000000000000001";
        assert_eq!(found(&[&valid.replace(TRACE, leading_zeros)]).as_deref(), Some(leading_zeros));
        let later = format!("01{}-more", &valid[2..]);
        assert_eq!(found(&[&later]).as_deref(), Some(TRACE), "a later version may have more fields");
        for wrong in [
            "",
            "00",
            &valid[..54],
            &format!("{valid}-more"),
            &format!("01{}more", &valid[2..]),
            &format!("ff{}", &valid[2..]),
            &valid.replace(TRACE, &TRACE.to_uppercase()),
            &valid.replace(TRACE, &"0".repeat(32)),
            &valid.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &valid.replace('-', "_"),
            &format!("00-+{}-00f067aa0ba902b7-01", &TRACE[1..]),
        ] {
            assert_eq!(found(&[wrong]), None, "{wrong}");
        }
        assert_eq!(found(&[&valid, &valid]), None, "which of two the API uses is unknown");
    }
}
