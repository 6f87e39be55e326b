//! The items of the database, and their changes.

use std::fmt;
use std::str::FromStr;

use tollgate::Time;

use crate::rules::ChangeSet;

/// The version of a change: the server's timeline, and a number that every change increments by one.
///
/// A promoted standby starts a new timeline, so that its changes never compare as old. Both are packed into one
/// integer; SQLite uses only timeline 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version(i64);

const NUMBER_BITS: u32 = 40;

impl Version {
    /// Before any change.
    pub const ZERO: Version = Version(0);

    pub fn new(timeline: u32, number: u64) -> Version {
        let number = i64::try_from(number).unwrap_or(i64::MAX) & ((1 << NUMBER_BITS) - 1);
        Version((i64::from(timeline) << NUMBER_BITS) | number)
    }

    pub const fn timeline(self) -> u32 {
        (self.0 >> NUMBER_BITS) as u32
    }

    pub const fn number(self) -> u64 {
        (self.0 & ((1 << NUMBER_BITS) - 1)) as u64
    }

    /// The version of the next change on a timeline.
    pub(super) fn next_on_timeline(self, timeline: u32) -> Version {
        Version::new(timeline.max(self.timeline()), self.number() + 1)
    }

    pub(super) const fn packed(self) -> i64 {
        self.0
    }

    pub(super) const fn from_packed(packed: i64) -> Version {
        Version(packed)
    }
}

/// `2-1047`, as in an ETag.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.timeline(), self.number())
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Version, String> {
        let parts = text.split_once('-').and_then(|(timeline, number)| {
            let timeline = timeline.parse::<u32>().ok()?;
            let number = number.parse::<u64>().ok()?;
            Some(Version::new(timeline, number)).filter(|version| version.number() == number)
        });
        parts.ok_or_else(|| format!("'{text}' is not a valid version: expected TIMELINE-NUMBER such as 0-17"))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ItemKind {
    Rule = 0,
    Ban = 1,
    Allow = 2,
    Setting = 3,
}

impl ItemKind {
    pub(super) const ALL: [ItemKind; 4] = [ItemKind::Rule, ItemKind::Ban, ItemKind::Allow, ItemKind::Setting];

    pub const fn name(self) -> &'static str {
        match self {
            ItemKind::Rule => "rule",
            ItemKind::Ban => "ban",
            ItemKind::Allow => "allow",
            ItemKind::Setting => "setting",
        }
    }

    pub(super) fn from_code(code: i16) -> Option<ItemKind> {
        ItemKind::ALL.into_iter().find(|kind| *kind as i16 == code)
    }
}

/// Identifies one item: a rule's id, a banned or allowed key, a setting.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ItemId {
    pub kind: ItemKind,
    pub name: Box<str>,
}

impl ItemId {
    pub fn new(kind: ItemKind, name: impl Into<Box<str>>) -> ItemId {
        ItemId { kind, name: name.into() }
    }

    pub fn rule(id: &str) -> ItemId {
        ItemId::new(ItemKind::Rule, id)
    }

    /// The fleet-wide enforcement switch.
    pub fn enforce() -> ItemId {
        ItemId::new(ItemKind::Setting, "enforce")
    }
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.name)
    }
}

/// An item: a rule or a ban as JSON, the note of an allow entry, the value of a setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredItem {
    pub item: ItemId,
    /// The change that wrote it.
    pub version: Version,
    pub text: String,
}

/// One change: the new text of the item, `None` if it was deleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ItemChange {
    pub item: ItemId,
    pub version: Version,
    /// The item's previous version, if it existed.
    pub previous: Option<Version>,
    pub text: Option<String>,
}

/// A log entry: author, time, text before and after.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangeLogEntry {
    pub change: ItemChange,
    pub before: Option<String>,
    pub author: String,
    pub at: Time,
    /// The change that this one reverts.
    pub undoes: Option<Version>,
    /// Why it was made, if its author says so.
    pub note: Option<String>,
    /// The set that it belongs to.
    pub set: Option<ChangeSet>,
}

impl ChangeLogEntry {
    /// The version that one rollback reverts: of the whole set.
    pub fn set_version(&self) -> Version {
        self.set.map_or(self.change.version, |set| set.last)
    }
}

/// A query for a page of items of one kind, ordered by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageQuery {
    pub kind: ItemKind,
    /// Prefix of the names.
    pub prefix: String,
    /// The last name of the previous page; empty for the first page.
    pub after: String,
    pub limit: usize,
}

impl PageQuery {
    /// The range of names with the prefix: inclusive start, exclusive end.
    pub(super) fn range(&self) -> (&str, String) {
        (&self.prefix, format!("{}\u{10ffff}", self.prefix))
    }
}

/// The changes since a version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeFeed {
    /// In order; fewer than requested means that there are no more.
    Changes(Vec<ItemChange>),
    /// The version is not in the history of this database, for example after the loss of a primary: load everything
    /// again.
    Diverged,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_timeline_is_later_than_any_number_of_an_old_one() {
        let old = Version::new(1, 1_000_000);
        let new = Version::new(2, 7);
        assert!(new > old && old > Version::ZERO);
        assert_eq!((new.timeline(), new.number()), (2, 7));
        assert_eq!(Version::from_packed(new.packed()), new);
        assert_eq!(old.next_on_timeline(2), Version::new(2, 1_000_001));
    }

    #[test]
    fn a_version_is_read_as_it_is_written() {
        for version in [Version::ZERO, Version::new(0, 17), Version::new(3, (1 << 40) - 1)] {
            assert_eq!(version.to_string().parse(), Ok(version));
        }
        for text in ["", "7", "1-", "a-1", "1-99999999999999"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }
}
