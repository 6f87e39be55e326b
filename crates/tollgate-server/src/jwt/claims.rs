//! The claims of a verified token, and its times.
//!
//! Must not know how a token is signed: claims are only made from tokens that were verified.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::jwt::JwtError;

/// Allowed difference between the clocks of the issuer and of this machine.
pub const LEEWAY_S: u64 = 60;

/// The claims of a verified token.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims {
    claims: Map<String, Value>,
}

impl Claims {
    pub(crate) fn new(claims: Map<String, Value>) -> Self {
        Self { claims }
    }

    /// A claim as text: strings unchanged, integers and booleans written out, `None` for the rest. `a.b` is the claim
    /// of that very name, otherwise `b` in the object `a`.
    pub fn get(&self, name: &str) -> Option<Cow<'_, str>> {
        match find(&self.claims, name)? {
            Value::String(text) => Some(Cow::Borrowed(text)),
            Value::Bool(truth) => Some(Cow::Borrowed(if *truth { "true" } else { "false" })),
            Value::Number(number) if !number.is_f64() => Some(Cow::Owned(number.to_string())),
            _ => None,
        }
    }

    /// Whether the token is valid at this time by `exp` and `nbf`.
    pub(crate) fn check_times(&self, now_unix_s: u64) -> Result<(), JwtError> {
        let now = now_unix_s as f64;
        let leeway = LEEWAY_S as f64;
        if self.time("exp")?.is_some_and(|end| now >= end + leeway) {
            return Err(JwtError::Expired);
        }
        if self.time("nbf")?.is_some_and(|start| now + leeway < start) {
            return Err(JwtError::NotYetValid);
        }
        Ok(())
    }

    /// Times are seconds, possibly with a fraction (RFC 7519, 2).
    fn time(&self, name: &str) -> Result<Option<f64>, JwtError> {
        let read = |value: &Value| value.as_f64().ok_or(JwtError::Malformed("a time is not a number"));
        self.claims.get(name).map(read).transpose()
    }
}

fn find<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).or_else(|| {
        name.match_indices('.').find_map(|(dot, _)| {
            let inner = object.get(&name[..dot])?.as_object()?;
            find(inner, &name[dot + 1..])
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn claims_of(json: Value) -> Claims {
        Claims::new(json.as_object().unwrap().clone())
    }

    #[test]
    fn claims_are_read_by_plain_and_dotted_names() {
        let claims = json!({
            "n": -5, "t": false, "f": 1.5, "l": [1], "z": null,
            "a": {"b": {"c": "deep"}, "b.d": "odd"}, "https://x.org/plan": "pro",
        });
        let claims = claims_of(claims);
        let check = |name, value| assert_eq!(claims.get(name).as_deref(), value, "{name}");
        check("n", Some("-5"));
        check("t", Some("false"));
        check("a.b.c", Some("deep"));
        check("a.b.d", Some("odd"));
        check("https://x.org/plan", Some("pro"));
        for name in ["f", "l", "z", "a", "a.b", "a.b.c.d", "", ".", "missing"] {
            check(name, None);
        }
    }

    #[test]
    fn times_may_have_fractions_but_must_be_numbers() {
        let at = |json| claims_of(json).check_times(NOW);
        assert_eq!(at(json!({"exp": NOW as f64 - 59.5})), Ok(()));
        assert_eq!(at(json!({"exp": NOW as f64 - 60.5})), Err(JwtError::Expired));
        assert_eq!(at(json!({"exp": -1})), Err(JwtError::Expired));
        assert_eq!(at(json!({"nbf": 1e300})), Err(JwtError::NotYetValid));
        assert!(matches!(at(json!({"exp": "tomorrow"})), Err(JwtError::Malformed(_))));
        assert!(matches!(at(json!({"nbf": null})), Err(JwtError::Malformed(_))));
    }

    #[test]
    fn a_token_without_times_always_counts() {
        assert_eq!(claims_of(json!({})).check_times(u64::MAX), Ok(()));
    }
}
