//! Where rules, bans and allow entries are kept that change while traffic flows.

use std::path::{Path, PathBuf};

use tollgate::document::MapReader;
use tollgate_stores::rules::RulesDb;

use crate::config::store::without_login;

const DEFAULT: &str = "sqlite:tollgate.db";

#[derive(Clone, PartialEq, Eq)]
pub struct RulesDbConfig {
    /// As it is written; it may hold a password.
    pub address: String,
    /// What a relative path is relative to.
    pub folder: PathBuf,
    /// The address without login and options: for messages.
    pub name: String,
    /// Whether the file asks for it. Without the default one, rules are read from the file only.
    pub is_asked_for: bool,
}

impl RulesDbConfig {
    pub fn is_file(&self) -> bool {
        self.address.starts_with("sqlite:")
    }

    /// `None` where the file says `none`. The default is where state is kept.
    pub(super) fn read(map: &mut MapReader<'_, '_>, folder: &Path, state: &Path) -> Option<RulesDbConfig> {
        let Some(node) = map.optional("rules_db") else {
            let (address, name) = (DEFAULT.to_owned(), DEFAULT.to_owned());
            return Some(RulesDbConfig { address, folder: state.to_owned(), name, is_asked_for: false });
        };
        let text = node.as_str().unwrap_or_default();
        if text == "none" {
            return None;
        }
        if let Err(error) = RulesDb::check(text) {
            map.reject("rules_db", node, error);
            return None;
        }
        let mut config = RulesDbConfig {
            address: text.to_owned(),
            folder: folder.to_owned(),
            name: text.to_owned(),
            is_asked_for: true,
        };
        if !config.is_file() {
            config.name = without_login(text);
        }
        Some(config)
    }
}
