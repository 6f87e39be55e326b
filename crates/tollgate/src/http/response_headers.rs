//! Merges the verdict's headers with those of the API: lists are joined, and of single numbers the stricter one
//! remains. The API's limits are never loosened.

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::headers::{Headers, merge_ratelimit};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_REMAINING: &str = "x-ratelimit-remaining";

pub fn merge_headers(response: &mut HeaderMap, ours: &Headers) {
    let x_left = ours.iter().find(|(name, _)| *name == X_REMAINING).and_then(|(_, left)| left.parse().ok());
    let keep_theirs = x_left.is_some_and(|left| is_stricter(response, left));
    for (name, value) in ours.iter() {
        match name {
            "ratelimit-policy" => {
                response.append(RATELIMIT_POLICY, to_value(value));
            }
            "ratelimit" if !response.contains_key(RATELIMIT) => {
                response.insert(RATELIMIT, to_value(value));
            }
            "ratelimit" => {
                let theirs: Vec<_> =
                    response.get_all(RATELIMIT).iter().filter_map(|line| line.to_str().ok()).collect();
                let joined = merge_ratelimit(theirs, value);
                response.insert(RATELIMIT, to_value(&joined));
            }
            name if name.starts_with("x-ratelimit-") && keep_theirs => {}
            "retry-after" if response.contains_key(name) => {}
            name => _ = response.insert(HeaderName::from_static(name), to_value(value)),
        }
    }
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
    fn retry_after_of_the_upstream_stays() {
        assert_eq!(merged(&[("retry-after", "120")], HeaderStyle::None), ["retry-after: 120"]);
    }
}
