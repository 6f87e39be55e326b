//! Export of traces and metrics over OTLP: `otlp`.

use std::time::Duration;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use tollgate::internal::document::MapReader;
use tollgate::internal::time::parse_duration;

const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(3600);
const DEFAULT_SERVICE: &str = "tollgate";

#[derive(Clone, PartialEq, Eq)]
pub struct OtlpConfig {
    /// The base address of the collector, without `/v1/traces`.
    pub endpoint: String,
    /// Sent with each request; they may contain secrets.
    pub headers: Vec<(String, String)>,
    /// How often metrics are sent.
    pub interval: Duration,
    pub service_name: String,
}

impl OtlpConfig {
    /// `None` if it is off.
    pub(super) fn read(map: &mut MapReader<'_, '_>) -> Option<OtlpConfig> {
        let node = map.optional("otlp")?;
        let mut inner = map.optional_map("otlp")?;
        let endpoint = inner.required("endpoint").and_then(|node| {
            let text = node.as_str().unwrap_or_default();
            let is_valid = is_endpoint(text);
            if !is_valid {
                let message = "expected the base address of a collector, such as http://127.0.0.1:4318";
                inner.reject("endpoint", node, message);
            }
            is_valid.then(|| text.trim_end_matches('/').to_owned())
        });
        let headers = read_headers(&mut inner);
        let interval = inner.optional("interval").map_or(DEFAULT_INTERVAL, |node| {
            let read = node.as_str().and_then(|text| parse_duration(text).ok());
            read.filter(|interval| (SHORTEST..=LONGEST).contains(interval)).unwrap_or_else(|| {
                inner.reject("interval", node, "expected a duration from 1s to 1h");
                DEFAULT_INTERVAL
            })
        });
        let service_name = inner.optional_text("service_name").unwrap_or(DEFAULT_SERVICE).to_owned();
        inner.finish();
        if !cfg!(feature = "otlp") {
            map.reject(
                "otlp",
                node,
                "this program was built without OTLP: build it with --features otlp, or remove this setting",
            );
        }
        endpoint.map(|endpoint| OtlpConfig { endpoint, headers, interval, service_name })
    }
}

fn is_endpoint(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    let has_host = uri.host().is_some_and(|host| !host.is_empty()) && !text.contains('@');
    matches!(uri.scheme_str(), Some("http" | "https")) && has_host && uri.query().is_none()
}

fn read_headers(map: &mut MapReader<'_, '_>) -> Vec<(String, String)> {
    let Some(node) = map.optional("headers") else { return Vec::new() };
    let Some(entries) = node.as_map() else {
        map.reject("headers", node, "expected a map of headers, such as { api-key: '${COLLECTOR_KEY}' }");
        return Vec::new();
    };
    let mut headers = Vec::new();
    for entry in entries {
        let value = entry.value().as_str().filter(|value| HeaderValue::from_str(value).is_ok());
        match (entry.key().parse::<HeaderName>(), value) {
            (Ok(name), Some(value)) => headers.push((name.as_str().to_owned(), value.to_owned())),
            // The value may be a secret.
            _ => map.reject(&format!("headers.{}", entry.key()), node, "not a valid header"),
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn check(text: &str) -> Result<Option<OtlpConfig>, String> {
        let config = Config::parse(&format!("otlp: {text}"), Path::new(""));
        config.map(|config| config.otlp).map_err(|problems| problems.to_string())
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not_shown() {
        for (text, words) in [
            ("{}", "'endpoint' is missing"),
            ("{ endpoint: 127.0.0.1:4318 }", "otlp.endpoint: expected the base address"),
            ("{ endpoint: 'http://user:s3cret@a' }", "otlp.endpoint: expected the base address"),
            ("{ endpoint: 'http://a', interval: 1ms }", "otlp.interval: expected a duration from 1s to 1h"),
            ("{ endpoint: 'http://a', headers: { 'a b': s3cret } }", "otlp.headers.a b: not a valid header"),
            ("{ endpoint: 'http://a', header: {} }", "did you mean 'headers'?"),
        ] {
            let error = check(text).err().unwrap_or_else(|| panic!("{text} is accepted"));
            assert!(error.contains(words) && !error.contains("s3cret"), "{text}: {error}");
        }
    }

    #[cfg(not(feature = "otlp"))]
    #[test]
    fn a_program_without_the_feature_says_how_to_get_it() {
        let error = check("{ endpoint: 'http://a' }").err().expect("not supported");
        assert!(error.contains("built without OTLP: build it with --features otlp"), "{error}");
    }

    #[cfg(feature = "otlp")]
    #[test]
    fn defaults_and_headers() {
        let config = check("{ endpoint: 'https://a:4318/otlp/', headers: { Api-Key: k } }").expect("valid");
        let config = config.expect("it is on");
        assert_eq!((&*config.endpoint, &*config.service_name), ("https://a:4318/otlp", "tollgate"));
        assert_eq!(config.headers, [("api-key".to_owned(), "k".to_owned())]);
        assert_eq!(config.interval, DEFAULT_INTERVAL);
    }
}
