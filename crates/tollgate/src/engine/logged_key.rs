//! The key of a decision as logs may show it.

use std::fmt;

use crate::engine::{EngineCore, LogKeys};
use crate::fingerprint::Fingerprint;
use crate::hit::Hit;
use crate::policy::PolicySnapshot;
use crate::verdict::EngineVerdict;

/// Bytes of a plain key; longer ones are truncated.
const MAX_PLAIN_LEN: usize = 512;

/// The key of the limit that a verdict reports, or of its ban; redacted if required.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoggedKey {
    /// The verdict reports no limit.
    None,
    /// The same key has the same mark during the lifetime of the process.
    Redacted(Fingerprint),
    /// At most 512 bytes of it.
    Plain(Box<str>),
}

impl fmt::Display for LoggedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoggedKey::None => f.write_str("-"),
            LoggedKey::Redacted(mark) => write!(f, "#{:016x}", mark.0),
            LoggedKey::Plain(key) => f.write_str(key),
        }
    }
}

impl EngineCore {
    /// The key that logs show for a decision of this policy.
    pub fn logged_key(&self, policy: &PolicySnapshot, hit: &Hit<'_>, verdict: &EngineVerdict) -> LoggedKey {
        let key = match self.log_keys {
            LogKeys::Redacted => self.key_mark(verdict).map(LoggedKey::Redacted),
            LogKeys::Plain => {
                let banned = verdict.ban.as_deref().map(|(key, _)| key.to_string());
                let text = banned.or_else(|| policy.key_text(hit, &verdict.reported()?.rule));
                text.map(|text| LoggedKey::Plain(text[..text.floor_char_boundary(MAX_PLAIN_LEN)].into()))
            }
        };
        key.unwrap_or(LoggedKey::None)
    }
}
