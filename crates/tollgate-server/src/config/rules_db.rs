//! Settings of the rules database: rules, bans and allow entries that change while the server runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate::internal::document::MapReader;
use tollgate::internal::time::parse_duration;
use tollgate_stores::rules::RulesDb;

use crate::config::store::without_login;

const DEFAULT: &str = "sqlite:tollgate.db";
const SQLITE: &str = "sqlite:";
/// The local copy of a database on another machine, in `state_dir`.
const COPY: &str = "tollgate-rules-copy.db";

/// Bans and the panic switch that wait for the database, in `state_dir`.
const PENDING_EDITS: &str = "tollgate-pending-edits.ndjson";

const LEAST_KEEP: Duration = Duration::from_secs(3_600);

/// How long entries of the log of changes are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuditConfig {
    pub keep: Duration,
    /// Entries of automatic bans: an attacker can cause any number of them.
    pub automatic_bans: Duration,
}

impl Default for AuditConfig {
    fn default() -> AuditConfig {
        AuditConfig { keep: Duration::from_secs(90 * 86_400), automatic_bans: Duration::from_secs(86_400) }
    }
}

/// What a start does if neither the database nor a local copy is available.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OnRulesError {
    /// Listeners stay closed until the rules are loaded.
    #[default]
    Closed,
    /// Requests are decided by the rules of the file only.
    Open,
}

const ON_RULES_ERROR: [(&str, OnRulesError); 2] =
    [("closed", OnRulesError::Closed), ("open", OnRulesError::Open)];

#[derive(Clone, PartialEq, Eq)]
pub struct RulesDbConfig {
    /// The URL as written; it may contain a password.
    pub address: String,
    /// The folder that relative paths refer to.
    pub folder: PathBuf,
    /// The URL without credentials and options, for messages.
    pub name: String,
    /// Whether the file names it. If the default database is unavailable, only the rules of the file are used.
    pub is_explicit: bool,
    pub on_error: OnRulesError,
    /// The path of the local copy, if the database is not a file itself.
    pub copy: Option<PathBuf>,
    /// The file of edits that wait for the database.
    pub pending_edits: PathBuf,
    pub audit: AuditConfig,
}

impl RulesDbConfig {
    /// The settings, by name, and whether they differ. Paths that follow `state_dir` are not compared.
    pub fn differences(&self, other: &RulesDbConfig) -> [(&'static str, bool); 3] {
        [
            ("rules_db", self.address != other.address || self.is_explicit != other.is_explicit),
            ("on_rules_error", self.on_error != other.on_error),
            ("audit", self.audit != other.audit),
        ]
    }

    /// The path of the database, if it is a file.
    pub fn file(&self) -> Option<PathBuf> {
        self.address.strip_prefix(SQLITE).map(|path| self.folder.join(path))
    }

    /// `None` if the file says `none`. The default is a file in the state's folder.
    pub(super) fn read(map: &mut MapReader<'_, '_>, folder: &Path, state: &Path) -> Option<RulesDbConfig> {
        let on_error = map.optional_choice("on_rules_error", &ON_RULES_ERROR).unwrap_or_default();
        let audit = AuditConfig::read(map);
        let Some(node) = map.optional("rules_db") else {
            return Some(RulesDbConfig {
                address: DEFAULT.to_owned(),
                folder: state.to_owned(),
                name: DEFAULT.to_owned(),
                is_explicit: false,
                on_error,
                copy: None,
                pending_edits: state.join(PENDING_EDITS),
                audit,
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
            is_explicit: true,
            on_error,
            copy: None,
            pending_edits: state.join(PENDING_EDITS),
            audit,
        };
        if config.file().is_none() {
            config.name = without_login(text);
            config.copy = Some(state.join(COPY));
        }
        Some(config)
    }
}

impl AuditConfig {
    /// `audit: { keep: 90d, automatic_bans: 1d }`.
    fn read(map: &mut MapReader<'_, '_>) -> AuditConfig {
        let default = AuditConfig::default();
        let Some(mut audit) = map.optional_map("audit") else { return default };
        let keep = read_keep(&mut audit, "keep").unwrap_or(default.keep);
        let automatic_bans = read_keep(&mut audit, "automatic_bans").unwrap_or(default.automatic_bans);
        audit.finish();
        AuditConfig { keep, automatic_bans }
    }
}

fn read_keep(audit: &mut MapReader<'_, '_>, name: &'static str) -> Option<Duration> {
    let node = audit.optional(name)?;
    let problem =
        match node.as_str().ok_or("expected a duration such as 90d".to_owned()).and_then(parse_duration) {
            Ok(keep) if keep >= LEAST_KEEP => return Some(keep),
            Ok(_) => {
                "at least 1h: a node that is further behind than the log has to read everything".to_owned()
            }
            Err(problem) => problem,
        };
    audit.reject(name, node, problem);
    None
}
