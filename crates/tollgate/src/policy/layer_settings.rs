//! Settings of the configuration file that the server and a layer in a program follow: the client's address, the headers
//! of responses, and how counters are named in a store. `None` where the file says nothing.

use std::time::Duration;

use crate::document::MapReader;
use crate::headers::HeaderStyle;
use crate::identity::address::TrustedProxies;
use crate::identity::forwarded::ForwardingHeader;
use crate::store::KeyVisibility;
use crate::time::parse_duration;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LayerSettings {
    /// Load balancers and proxies in front: one address, many clients.
    pub trusted: Option<TrustedProxies>,
    /// The header in which they name the client's address.
    pub trusted_header: Option<ForwardingHeader>,
    pub headers: Option<HeaderStyle>,
    pub store_keys: Option<KeyVisibility>,
    /// The file as it is named, relative to that of the configuration.
    pub store_secret_file: Option<String>,
    /// For all calls of one decision together.
    pub store_deadline: Option<Duration>,
}

const HEADERS: [(&str, HeaderStyle); 4] = [
    ("ietf", HeaderStyle::Ietf),
    ("x-ratelimit", HeaderStyle::XRateLimit),
    ("both", HeaderStyle::Both),
    ("none", HeaderStyle::None),
];
const TRUSTED_HEADERS: [(&str, ForwardingHeader); 2] =
    [("x-forwarded-for", ForwardingHeader::XForwardedFor), ("forwarded", ForwardingHeader::Forwarded)];
/// Clients give up before a longer deadline.
const MAX_DEADLINE: Duration = Duration::from_secs(60);

impl LayerSettings {
    pub fn read(map: &mut MapReader<'_, '_>) -> LayerSettings {
        LayerSettings {
            trusted: trusted_proxies(map),
            trusted_header: map.optional_choice("trusted_header", &TRUSTED_HEADERS),
            headers: map.optional_choice("headers", &HEADERS),
            store_keys: map.optional_choice("store_keys", &KeyVisibility::NAMES),
            store_secret_file: map.optional_text("store_secret_file").map(str::to_owned),
            store_deadline: store_deadline(map),
        }
    }
}

/// The least length of a secret that several processes share.
const MIN_SECRET_BYTES: usize = 32;

/// The secret in the bytes of a key file, of which white space at both ends is no part.
pub fn shared_secret(bytes: &[u8]) -> Result<&[u8], String> {
    let secret = bytes.trim_ascii();
    if secret.len() < MIN_SECRET_BYTES {
        return Err(format!("is shorter than {MIN_SECRET_BYTES} bytes"));
    }
    Ok(secret)
}

fn trusted_proxies(map: &mut MapReader<'_, '_>) -> Option<TrustedProxies> {
    let list = map.optional("trusted_proxies")?;
    let nodes = map.optional_list("trusted_proxies")?;
    let mut words = Vec::with_capacity(nodes.len());
    for (n, node) in nodes.iter().enumerate() {
        let word = node.as_str().unwrap_or_default();
        match TrustedProxies::parse([word]) {
            Ok(_) => words.push(word),
            Err(error) => map.reject(&format!("trusted_proxies[{n}]"), node, error),
        }
    }
    let trusted = TrustedProxies::parse(words);
    trusted.map_err(|error| map.reject("trusted_proxies", list, error)).ok()
}

fn store_deadline(map: &mut MapReader<'_, '_>) -> Option<Duration> {
    let node = map.optional("store_deadline")?;
    let read = node.as_str().ok_or("expected a duration such as 50ms".to_owned()).and_then(parse_duration);
    match read {
        Ok(duration) if !duration.is_zero() && duration <= MAX_DEADLINE => return Some(duration),
        Ok(_) => map.reject("store_deadline", node, "expected a duration above 0 and up to 1m"),
        Err(message) => map.reject("store_deadline", node, message),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{self, Problems};
    use crate::identity::address::MAX_TRUSTED;

    fn read(text: &str) -> (LayerSettings, String) {
        let root = document::read(text).expect("valid YAML");
        let mut problems = Problems::new();
        let mut map = MapReader::new(&root, "", &mut problems).expect("a map");
        let settings = LayerSettings::read(&mut map);
        map.finish();
        (settings, problems.to_string())
    }

    #[test]
    fn what_the_file_does_not_say_is_none() {
        assert_eq!(read("{}"), (LayerSettings::default(), String::new()));
        let (settings, problems) = read(
            "{trusted_proxies: [10.0.0.0/8], trusted_header: forwarded, headers: both, store_keys: hashed, \
             store_deadline: 50ms, store_secret_file: key}",
        );
        assert_eq!(problems, "");
        assert_eq!(settings.trusted, TrustedProxies::parse(["10.0.0.0/8"]).ok());
        assert_eq!(settings.trusted_header, Some(ForwardingHeader::Forwarded));
        assert_eq!(settings.store_keys.map(KeyVisibility::name), Some("hashed"));
        assert_eq!(settings.store_deadline, Some(Duration::from_millis(50)));
    }

    /// A regression: such a list counted as empty, so that all clients behind the proxies were one.
    #[test]
    fn more_trusted_proxies_than_the_bound_are_rejected() {
        let list = |count: usize| format!("trusted_proxies: [{}]", vec!["'::1'"; count].join(", "));
        assert_eq!(read(&list(MAX_TRUSTED)).1, "");
        let (_, problems) = read(&list(MAX_TRUSTED + 1));
        assert!(problems.contains("more than 1024 trusted proxies"), "{problems}");
    }
}
