//! Merges the verdict's headers with those of the API: lists are joined, and of single numbers the stricter one
//! remains. The API's limits are never loosened.

use std::cell::RefCell;

use http::header::{Entry, HeaderMap, HeaderName, HeaderValue};

use crate::headers::{HeaderStyle, Headers, merge_ratelimit};
use crate::verdict::EngineVerdict;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_REMAINING: &str = "x-ratelimit-remaining";

/// The headers of a verdict, for a response that is still to come.
#[derive(Debug, Default)]
pub struct HeaderValues {
    policy: Option<HeaderValue>,
    ratelimit: Option<HeaderValue>,
    others: Vec<(&'static str, HeaderValue)>,
}

thread_local! {
    /// The buffer of the last verdict.
    static BUFFER: RefCell<Headers> = RefCell::default();
    /// The last `RateLimit-Policy`: it changes with the rules that match, not with what remains.
    static LAST_POLICY: RefCell<HeaderValue> = const { RefCell::new(HeaderValue::from_static("")) };
}

impl HeaderValues {
    /// `None` if there are none in this style.
    #[inline]
    pub fn of(verdict: &EngineVerdict, style: HeaderStyle) -> Option<HeaderValues> {
        let has_any = style != HeaderStyle::None || verdict.retry_after.is_some();
        has_any.then(|| HeaderValues::written(verdict, style))
    }

    #[inline(never)]
    fn written(verdict: &EngineVerdict, style: HeaderStyle) -> HeaderValues {
        BUFFER.with_borrow_mut(|headers| {
            headers.write(verdict, style);
            HeaderValues::of_headers(headers)
        })
    }

    fn of_headers(headers: &Headers) -> HeaderValues {
        let mut values = HeaderValues::default();
        for (name, text) in headers.iter() {
            match name {
                "ratelimit-policy" => values.policy = Some(policy_value(text)),
                "ratelimit" => values.ratelimit = Some(to_value(text)),
                name => values.others.push((name, to_value(text))),
            }
        }
        values
    }

    /// Adds them to the headers of the API.
    #[inline(never)]
    pub fn merge_into(self, response: &mut HeaderMap) {
        if let Some(policy) = self.policy {
            response.append(RATELIMIT_POLICY, policy);
        }
        if let Some(ratelimit) = self.ratelimit {
            match response.entry(RATELIMIT) {
                Entry::Vacant(entry) => _ = entry.insert(ratelimit),
                Entry::Occupied(mut entry) => {
                    let theirs: Vec<_> = entry.iter().filter_map(|line| line.to_str().ok()).collect();
                    let ours = ratelimit.to_str().expect("rule ids and numbers are ASCII");
                    let joined = to_value(&merge_ratelimit(theirs, ours));
                    entry.insert(joined);
                }
            }
        }
        let x_left = self.others.iter().find(|(name, _)| *name == X_REMAINING);
        let x_left = x_left.and_then(|(_, left)| left.to_str().ok()?.parse().ok());
        let keep_theirs = x_left.is_some_and(|left| is_stricter(response, left));
        for (name, value) in self.others {
            match name {
                name if name.starts_with("x-ratelimit-") && keep_theirs => {}
                "retry-after" if response.contains_key(name) => {}
                name => _ = response.insert(HeaderName::from_static(name), value),
            }
        }
    }
}

pub fn merge_headers(response: &mut HeaderMap, ours: &Headers) {
    HeaderValues::of_headers(ours).merge_into(response);
}

/// A `RateLimit-Policy`, without a copy if it is the last one of this thread.
fn policy_value(text: &str) -> HeaderValue {
    LAST_POLICY.with_borrow_mut(|last| {
        if last.as_bytes() != text.as_bytes() {
            *last = to_value(text);
        }
        last.clone()
    })
}

/// Whether the API's own `X-RateLimit` leaves no more than the verdict; one without a remaining count is assumed
/// stricter.
fn is_stricter(response: &HeaderMap, left: u64) -> bool {
    let theirs = ["x-ratelimit-limit", X_REMAINING, "x-ratelimit-reset"];
    if !theirs.iter().any(|name| response.contains_key(*name)) {
        return false;
    }
    let their_left =
        response.get(X_REMAINING).and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    their_left.is_none_or(|theirs| theirs <= left)
}

fn to_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("names, rule ids and numbers fit a header")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineCore;
    use crate::headers::{HeaderStyle, headers};
    use crate::hit::Hit;
    use crate::policy::PolicySnapshot;
    use crate::time::Time;

    fn merged(theirs: &[(&'static str, &'static str)], style: HeaderStyle) -> Vec<String> {
        let policy = PolicySnapshot::from_yaml("rules: [{ id: own, limit: 5/m }]").unwrap();
        let verdict =
            EngineCore::new(policy).check(&Hit::on("GET", "h", "/"), Time::from_secs(1_800_000_000));
        let mut response: HeaderMap = theirs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        merge_headers(&mut response, &headers(&verdict, style));
        response.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn lists_are_joined() {
        let theirs = [("ratelimit-policy", "\"api\";q=100;w=60"), ("ratelimit", "\"api\";r=3;t=5")];
        let expected = [
            "ratelimit-policy: \"api\";q=100;w=60",
            "ratelimit-policy: \"own\";q=5;w=60",
            "ratelimit: \"api\";r=3;t=5, \"own\";r=4;t=12",
        ];
        assert_eq!(merged(&theirs, HeaderStyle::Ietf), expected);
    }

    #[test]
    fn of_single_numbers_the_stricter_stay_together() {
        let stricter =
            [("x-ratelimit-limit", "2"), ("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "9")];
        let expected = ["x-ratelimit-limit: 2", "x-ratelimit-remaining: 1", "x-ratelimit-reset: 9"];
        assert_eq!(merged(&stricter, HeaderStyle::XRateLimit), expected);
        let looser =
            [("x-ratelimit-limit", "90"), ("x-ratelimit-remaining", "80"), ("x-ratelimit-reset", "9")];
        let ours = ["x-ratelimit-limit: 5", "x-ratelimit-remaining: 4", "x-ratelimit-reset: 12"];
        assert_eq!(merged(&looser, HeaderStyle::XRateLimit), ours);
        assert_eq!(merged(&[], HeaderStyle::XRateLimit), ours);
        assert_eq!(
            merged(&[("x-ratelimit-limit", "90")], HeaderStyle::XRateLimit),
            ["x-ratelimit-limit: 90"]
        );
    }

    #[test]
    fn the_policy_is_that_of_the_verdict_whatever_was_written_before() {
        let now = Time::from_secs(1_800_000_000);
        let policy = |limits: &str| PolicySnapshot::from_yaml(&format!("rules: [{limits}]")).unwrap();
        let engine = EngineCore::new(policy("{ id: own, limit: 5/m }"));
        let written = |expected: &str| {
            let verdict = engine.check(&Hit::on("GET", "h", "/"), now);
            let mut response = HeaderMap::new();
            HeaderValues::of(&verdict, HeaderStyle::Ietf).unwrap().merge_into(&mut response);
            assert_eq!(response["ratelimit-policy"], expected);
        };
        written("\"own\";q=5;w=60");
        written("\"own\";q=5;w=60");
        engine.apply(policy("{ id: own, limit: 9/h }"), now);
        written("\"own\";q=9;w=3600");
        engine.apply(policy("{ id: own, limit: 9/h }, { id: other, limit: 7/h }"), now);
        written("\"own\";q=9;w=3600, \"other\";q=7;w=3600");
        engine.apply(policy("{ id: own, limits: [9/h, 90/d] }"), now);
        written("\"own:9/h\";q=9;w=3600, \"own:90/d\";q=90;w=86400");
    }

    #[test]
    fn retry_after_of_the_upstream_stays() {
        assert_eq!(merged(&[("retry-after", "120")], HeaderStyle::None), ["retry-after: 120"]);
    }
}
