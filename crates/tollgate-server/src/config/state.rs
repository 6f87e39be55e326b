//! How often the state is saved: `state`.

use std::time::Duration;

use tollgate::internal::document::MapReader;
use tollgate::internal::time::parse_duration;

const DEFAULT: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(3600);

/// `None` if it is saved at a clean stop only.
pub(super) fn read_every(map: &mut MapReader<'_, '_>) -> Option<Duration> {
    let Some(mut map) = map.optional_map("state") else { return Some(DEFAULT) };
    let every = match map.optional("every") {
        None => Some(DEFAULT),
        Some(node) => match node.as_str().unwrap_or_default() {
            "off" => None,
            text => Some(parse(text).unwrap_or_else(|message| {
                map.reject("every", node, message);
                DEFAULT
            })),
        },
    };
    map.finish();
    every
}

fn parse(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        every if (SHORTEST..=LONGEST).contains(&every) => Ok(every),
        _ => Err("expected off, or a duration from 100ms to 1h".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    #[test]
    fn how_often_the_state_is_saved_can_be_chosen() {
        let read = |text: &str| Config::parse(text, Path::new("/etc")).map(|config| config.state_every).ok();
        assert_eq!(read("rules: []"), Some(Some(DEFAULT)));
        assert_eq!(read("state: {}"), Some(Some(DEFAULT)));
        assert_eq!(read("state: { every: 250ms }"), Some(Some(Duration::from_millis(250))));
        assert_eq!(read("state: { every: off }"), Some(None));
        for bad in ["1ms", "0s", "2h", "often", "1"] {
            assert_eq!(read(&format!("state: {{ every: {bad} }}")), None, "{bad}");
        }
        assert_eq!(read("state: { evry: 1s }"), None);
    }
}
