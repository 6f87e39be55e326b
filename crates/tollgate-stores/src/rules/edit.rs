//! What somebody wants changed. An edit is valid once it exists.

use serde_json::json;
use tollgate::Time;
use tollgate::ban::Ban;
use tollgate::identity::Key;

use crate::rules::{Enforce, Item, Kind, RuleText, Version};

/// Edits in one go.
pub const MAX_EDITS: usize = 1_000_000;

/// Who makes a change, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Author {
    pub who: String,
    pub at: Time,
}

/// What must be there for an edit to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    Anything,
    Nothing,
    /// The version that the author has seen.
    At(Version),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edit {
    pub(super) item: Item,
    pub(super) expected: Expected,
    pub(super) text: Option<String>,
}

impl Edit {
    pub fn rule(rule: RuleText, expected: Expected) -> Edit {
        Edit { item: Item::rule(rule.id()), expected, text: Some(rule.into_text()) }
    }

    pub fn ban(key: &Key, ban: &Ban, expected: Expected) -> Edit {
        let text = json!({
            "until": ban.until.nanos(), "reason": ban.reason,
            "source": ban.source.name(), "strikes": ban.strikes,
        });
        Edit { item: Item::new(Kind::Ban, key.to_string()), expected, text: Some(text.to_string()) }
    }

    pub fn allow(key: &Key, note: &str, expected: Expected) -> Edit {
        Edit { item: Item::new(Kind::Allow, key.to_string()), expected, text: Some(note.to_owned()) }
    }

    pub fn enforce(enforce: Enforce, expected: Expected) -> Edit {
        Edit { item: Item::enforce(), expected, text: Some(enforce.name().to_owned()) }
    }

    pub fn delete(item: Item, expected: Expected) -> Edit {
        Edit { item, expected, text: None }
    }

    pub fn item(&self) -> &Item {
        &self.item
    }
}
