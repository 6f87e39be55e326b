//! Where rules, bans and allow entries are kept that change while traffic flows.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate::document::MapReader;
use tollgate::time::parse_span;
use tollgate_stores::rules::RulesDb;

use crate::config::store::without_login;

const DEFAULT: &str = "sqlite:tollgate.db";
const SQLITE: &str = "sqlite:";
/// The copy that a node keeps of a database elsewhere, in `state_dir`.
const COPY: &str = "tollgate-rules-copy.db";

const AUDIT_KEEP: Duration = Duration::from_secs(90 * 86_400);
const LEAST_AUDIT_KEEP: Duration = Duration::from_secs(3_600);

/// What a start does that can have the rules of the database neither from it nor from a local copy.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OnRulesError {
    /// Listeners stay closed until the rules are there.
    #[default]
    Closed,
    /// Requests pass, by the rules of the file only.
    Open,
}

const ON_RULES_ERROR: [(&str, OnRulesError); 2] =
    [("closed", OnRulesError::Closed), ("open", OnRulesError::Open)];

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
    pub on_error: OnRulesError,
    /// Where the local copy is kept, if the database is not a file itself.
    pub copy: Option<PathBuf>,
    /// How long entries of the log are kept.
    pub audit_keep: Duration,
}

impl RulesDbConfig {
    /// The database itself, where it is a file.
    pub fn file(&self) -> Option<PathBuf> {
        self.address.strip_prefix(SQLITE).map(|path| self.folder.join(path))
    }

    /// `None` where the file says `none`. The default is where state is kept.
    pub(super) fn read(map: &mut MapReader<'_, '_>, folder: &Path, state: &Path) -> Option<RulesDbConfig> {
        let on_error = map.optional_choice("on_rules_error", &ON_RULES_ERROR).unwrap_or_default();
        let audit_keep = read_audit(map);
        let Some(node) = map.optional("rules_db") else {
            return Some(RulesDbConfig {
                address: DEFAULT.to_owned(),
                folder: state.to_owned(),
                name: DEFAULT.to_owned(),
                is_asked_for: false,
                on_error,
                copy: None,
                audit_keep,
            });
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
            on_error,
            copy: None,
            audit_keep,
        };
        if config.file().is_none() {
            config.name = without_login(text);
            config.copy = Some(state.join(COPY));
        }
        Some(config)
    }
}

/// `audit: { keep: 90d }`.
fn read_audit(map: &mut MapReader<'_, '_>) -> Duration {
    let Some(mut audit) = map.optional_map("audit") else { return AUDIT_KEEP };
    let Some(node) = audit.optional("keep") else { return AUDIT_KEEP };
    let read = node.as_str().ok_or("expected a span such as 90d".to_owned()).and_then(parse_span);
    match read {
        Ok(keep) if keep >= LEAST_AUDIT_KEEP => keep,
        Ok(_) => {
            audit.reject(
                "keep",
                node,
                "at least 1h: nodes follow the log, and those behind it read everything",
            );
            AUDIT_KEEP
        }
        Err(problem) => {
            audit.reject("keep", node, problem);
            AUDIT_KEEP
        }
    }
}
