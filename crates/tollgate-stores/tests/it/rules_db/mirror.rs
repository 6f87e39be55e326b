//! A model of a node: what it holds of the database, whatever order changes arrive in.

use std::collections::HashMap;

use tollgate_stores::rules::{ItemChange, ItemId, StoredItem, Version};

/// The state of every thing with the version that made it so; what was deleted stays as a tombstone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mirror {
    items: HashMap<ItemId, (Version, Option<String>)>,
    seen: Version,
}

impl Mirror {
    /// The latest change that is in it: where to go on reading.
    pub fn seen(&self) -> Version {
        self.seen
    }

    /// What was loaded, up to a version.
    pub fn load(version: Version, rows: impl IntoIterator<Item = StoredItem>) -> Mirror {
        let items = rows.into_iter().map(|row| (row.item, (row.version, Some(row.text))));
        Mirror { items: items.collect(), seen: version }
    }

    /// Takes a change in; `false` if a later one was there already.
    pub fn apply(&mut self, change: ItemChange) -> bool {
        self.seen = self.seen.max(change.version);
        let held = self.items.entry(change.item).or_default();
        if held.0 >= change.version {
            return false;
        }
        *held = (change.version, change.text);
        true
    }

    pub fn get(&self, item: &ItemId) -> Option<&str> {
        self.items.get(item)?.1.as_deref()
    }

    /// What is there, without what was deleted.
    pub fn live(&self) -> impl Iterator<Item = (&ItemId, Version, &str)> {
        let items = self.items.iter();
        items.filter_map(|(item, (version, text))| Some((item, *version, text.as_deref()?)))
    }
}

#[test]
fn changes_in_any_order_and_number_end_in_the_same_state() {
    let change = |number, name: &str, text: Option<&str>| ItemChange {
        item: ItemId::rule(name),
        version: Version::new(0, number),
        previous: None,
        text: text.map(str::to_owned),
    };
    let changes = [
        change(1, "a", Some("1")),
        change(2, "b", Some("2")),
        change(3, "a", None),
        change(4, "b", Some("4")),
        change(5, "c", Some("5")),
    ];
    let mut expected = Mirror::default();
    changes.iter().for_each(|change| assert!(expected.apply(change.clone())));
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut arriving: Vec<_> = changes.iter().chain(&changes).cloned().collect();
        random.shuffle(&mut arriving);
        let mut mirror = Mirror::default();
        arriving.into_iter().for_each(|change| _ = mirror.apply(change));
        assert_eq!(mirror, expected, "seed {seed}");
    }
}
