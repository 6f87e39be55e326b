//! Overrides: other limits for some keys of the same rule.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use crate::identity::{Attribute, address};
use crate::rule::RuleLimit;

/// Limits for the keys that have these values.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Override {
    pub values: Vec<(Attribute, String)>,
    pub limits: Box<[RuleLimit]>,
}

/// The overrides of a rule, found by value: the one that names most attributes wins, then the first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    list: Vec<Override>,
    /// Most attributes first.
    indexes: Vec<OverrideIndex>,
}

/// The overrides that name the same attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct OverrideIndex {
    /// Indexes of the attributes in the rule's key.
    positions: Vec<usize>,
    by_value: HashMap<Vec<String>, usize>,
}

/// Everything else is derived from the list.
impl Hash for Overrides {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.list.hash(state);
    }
}

impl Overrides {
    /// Every override's attributes are in `key`.
    pub fn new(key: &[Attribute], list: Vec<Override>) -> Overrides {
        let mut shapes: Vec<OverrideIndex> = Vec::new();
        for (n, each) in list.iter().enumerate() {
            let value_of = |attribute: &Attribute| {
                each.values.iter().find(|(named, _)| named == attribute).map(|(_, value)| value.clone())
            };
            let positions: Vec<_> = (0..key.len()).filter(|at| value_of(&key[*at]).is_some()).collect();
            let values: Vec<_> = positions.iter().filter_map(|at| value_of(&key[*at])).collect();
            match shapes.iter_mut().find(|shape| shape.positions == positions) {
                Some(shape) => _ = shape.by_value.entry(values).or_insert(n),
                None => shapes.push(OverrideIndex { positions, by_value: HashMap::from([(values, n)]) }),
            }
        }
        shapes.sort_by_key(|shape| std::cmp::Reverse(shape.positions.len()));
        Overrides { list, indexes: shapes }
    }

    /// The same overrides with IPv6 addresses replaced by their groups. `Err` if a range is not a group.
    pub(crate) fn grouped(mut self, key: &[Attribute], ipv6_prefix: u8) -> Result<Overrides, String> {
        let mut changed = false;
        for (attribute, value) in self.list.iter_mut().flat_map(|each| &mut each.values) {
            if *attribute != Attribute::Ip {
                continue;
            }
            let address = value.split('/').next().and_then(address::parse_ip);
            let group = address.map(|ip| address::group(ip, ipv6_prefix).to_string());
            let Some(group) = group.filter(|group| !value.contains('/') || group == value) else {
                return Err(value.clone());
            };
            changed |= group != *value;
            *value = group;
        }
        Ok(if changed { Overrides::new(key, self.list) } else { self })
    }

    /// The limits for a key's values, given in the order of the rule's key.
    pub fn find(&self, values: &[Cow<'_, str>]) -> Option<&[RuleLimit]> {
        self.indexes.iter().find_map(|OverrideIndex { positions, by_value }| {
            let wanted: Vec<String> = positions.iter().map(|at| values[*at].to_string()).collect();
            by_value.get(&wanted).map(|n| self.list[*n].limits.as_ref())
        })
    }

    pub fn limits(&self) -> impl Iterator<Item = &RuleLimit> {
        self.list.iter().flat_map(|each| &each.limits)
    }

    pub fn list(&self) -> &[Override] {
        &self.list
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}
