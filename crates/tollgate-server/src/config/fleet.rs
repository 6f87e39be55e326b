//! `advertise` and `fleet`: how nodes find and call each other.

use std::path::{Path, PathBuf};

use tollgate::internal::document::MapReader;

use crate::client::BaseUrl;

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FleetConfig {
    /// The admin address of this node as other nodes reach it; `None` if it does not announce itself.
    pub advertise: Option<String>,
    /// The file with the token by which this node calls others.
    pub token_file: Option<PathBuf>,
    /// The authorities of other nodes' certificates; those of the system by default.
    pub ca_file: Option<PathBuf>,
}

impl FleetConfig {
    pub(super) fn read(map: &mut MapReader<'_, '_>, folder: &Path) -> FleetConfig {
        let advertise = advertise(map);
        let Some(mut fleet) = map.optional_map("fleet") else {
            return FleetConfig { advertise, ..FleetConfig::default() };
        };
        let token_file = fleet.optional_text("token_file").map(|file| folder.join(file));
        let ca_file = fleet.optional_text("ca_file").map(|file| folder.join(file));
        fleet.finish();
        FleetConfig { advertise, token_file, ca_file }
    }
}

fn advertise(map: &mut MapReader<'_, '_>) -> Option<String> {
    let node = map.optional("advertise")?;
    let text = node.as_str().unwrap_or_default();
    if text == "off" {
        return None;
    }
    let problem = match BaseUrl::parse(text) {
        Ok(url) if url.is_confidential() => return Some(url.to_string()),
        Ok(_) => "other nodes send it a token: use https://, or an address of this machine".to_owned(),
        Err(error) => format!("{error}, or off"),
    };
    map.reject("advertise", node, problem);
    None
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn advertise(text: &str) -> Result<Option<String>, String> {
        let config = Config::parse(&format!("advertise: '{text}'"), "/".as_ref());
        config.map(|config| config.fleet.advertise).map_err(|problems| problems.to_string())
    }

    #[test]
    fn an_address_that_a_token_may_be_sent_to_is_accepted() {
        for (text, expected) in [
            ("off", None),
            ("https://node-1.example:7070/", Some("https://node-1.example:7070")),
            ("https://[2001:db8::1]:7070/tollgate", Some("https://[2001:db8::1]:7070/tollgate")),
            ("http://127.0.0.1:7070", Some("http://127.0.0.1:7070")),
            ("http://localhost:7070", Some("http://localhost:7070")),
            ("http://[::1]:7070", Some("http://[::1]:7070")),
        ] {
            assert_eq!(advertise(text), Ok(expected.map(str::to_owned)), "{text}");
        }
        for text in ["http://10.0.0.1:7070", "http://localhost.example", "10.0.0.1:7070", "on", "ftp://a"] {
            let problem = advertise(text).expect_err(text);
            assert!(problem.contains("advertise") && problem.contains("https://"), "{problem}");
        }
    }
}
