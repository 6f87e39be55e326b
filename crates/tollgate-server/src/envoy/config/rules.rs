//! Limits of the configuration as rules: for the policy that counts them, and as native rules to start from.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

use ring::digest::{SHA256, digest};
use serde_json::{Map, Value, json};
use tollgate::internal::PolicySnapshot;
use tollgate::internal::document::Problems;
use tollgate::internal::policy::Settings;
use tollgate::internal::rule::RuleId;

use super::ConfigTexts;
use super::tree::{Domain, LimitMode, Quantity};
use crate::envoy::hit::{COUNTED_BY, counter_key};
use crate::envoy::{Compat, policy_of};

/// Bytes of the readable part of a rule's id; a hash follows.
const READABLE_BYTES: usize = 40;
/// Stands for no limit where a rule must have one: it is not reached.
const NO_LIMIT: &str = "1000000000/s";

/// The path of a limit's rule: the same for the same descriptors, so that a reload keeps its counters.
pub fn path(domain: &str, descriptors: &[(String, String)]) -> String {
    let entries = descriptors.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let whole = counter_key([("", domain)].into_iter().chain(entries));
    let words = std::iter::once(domain).chain(descriptors.iter().map(|(key, _)| key.as_str()));
    let words = words.collect::<Vec<_>>().join(".");
    let mut id = id_text(&words);
    id.truncate(READABLE_BYTES);
    let hash = digest(&SHA256, whole.as_bytes());
    let hash = u64::from_be_bytes(hash.as_ref()[..8].try_into().expect("a hash has 32 bytes"));
    format!("/{id}-{hash:016x}")
}

/// The characters that an id may have.
fn id_text(text: &str) -> String {
    let allowed = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    text.chars().map(|char| if allowed(char) { char } else { '_' }).collect()
}

/// A rule for each limit, matched by its path and counted by the descriptor.
pub fn policy(
    domains: &HashMap<Box<str>, Domain>,
    compat: Compat,
    settings: Settings,
) -> Result<PolicySnapshot, Problems> {
    let mut rules = String::from("rules:\n");
    let count_denied = compat == Compat::Envoy;
    for domain in domains.values() {
        domain.visit(&mut Vec::new(), &mut |_, node| {
            let Some(limit) = &node.limit else { return };
            let Quantity::PerUnit { requests, unit } = limit.quantity else { return };
            let mode = if limit.mode == LimitMode::Enforce { "enforce" } else { "shadow" };
            let id = &limit.path[1..];
            let rate = unit.rate(requests);
            writeln!(
                rules,
                "- {{ id: '{id}', match: '{}', key: 'attr:{COUNTED_BY}', limit: {rate}, algorithm: fixed-window, \
                 mode: {mode}, count_denied: {count_denied} }}",
                limit.path
            )
            .expect("writing to a string cannot fail");
        });
    }
    if rules.ends_with(":\n") {
        rules.push_str("  []\n");
    }
    policy_of(&rules, settings)
}

/// Rules that decide about as the files do, as values of the API, and what they do not express.
pub struct NativeRules {
    pub rules: Vec<Map<String, Value>>,
    pub notes: Vec<String>,
}

/// The limits of descriptors with the same keys and mode.
#[derive(Default)]
struct Group {
    /// The limit of any values.
    general: Option<String>,
    /// The limits of some values, by key.
    specific: Vec<(Vec<(String, String)>, String)>,
}

/// Translates files into native rules: the limits of descriptors with the same keys become one rule.
pub fn native_rules(texts: &ConfigTexts) -> Result<NativeRules, Problems> {
    let domains = texts.domains()?;
    let mut notes = Vec::new();
    if domains.len() > 1 {
        notes.push("rules apply in every domain: the limits of all domains are merged".to_owned());
    }
    let mut names: Vec<_> = domains.keys().collect();
    names.sort();
    let mut groups: BTreeMap<(Vec<String>, bool), Group> = BTreeMap::new();
    for name in names {
        domains[name].visit(&mut Vec::new(), &mut |entries, node| {
            let shown = || format!("{name}: {}", counter_key(entries.iter().copied()));
            let is_allowed = node.limit.is_none() && node.next.keys.is_empty();
            let Some(rate) = (match node.limit.as_ref().map(|limit| limit.quantity) {
                Some(Quantity::PerUnit { requests, unit }) => Some(unit.rate(requests)),
                Some(Quantity::Unlimited) => Some(NO_LIMIT.to_owned()),
                None => is_allowed.then(|| NO_LIMIT.to_owned()),
            }) else {
                return;
            };
            if entries.iter().any(|(_, value)| value.contains('*')) {
                return notes.push(format!("{}: a rule has no wildcards for values", shown()));
            }
            if node.limit.as_ref().is_some_and(|limit| !limit.replaces.is_empty()) {
                notes.push(format!("{}: replaces is left out, all matching rules apply", shown()));
            }
            let is_shadow = node.limit.as_ref().is_some_and(|limit| limit.mode != LimitMode::Enforce);
            let keys = entries.iter().map(|(key, _)| (*key).to_owned()).collect();
            let group = groups.entry((keys, is_shadow)).or_default();
            let fixed = entries.iter().filter(|(_, value)| !value.is_empty());
            let fixed: Vec<_> = fixed.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            if let Some(kept) = group.add(fixed, &rate) {
                let [lost, kept] =
                    [&*rate, kept].map(|rate| if rate == NO_LIMIT { "no limit" } else { rate });
                notes.push(format!("{}: {lost} is left out: these keys have {kept} elsewhere", shown()));
            }
        });
    }
    let mut ids = HashSet::new();
    let rules = groups.into_iter().map(|((keys, is_shadow), group)| {
        let id = unused_id(&keys, is_shadow, &mut ids);
        native_rule(id, &keys, is_shadow, group)
    });
    Ok(NativeRules { rules: rules.collect(), notes })
}

impl Group {
    /// Adds a limit, unless one of the same descriptors differs, which is returned.
    fn add(&mut self, fixed: Vec<(String, String)>, rate: &str) -> Option<&str> {
        let kept = match self.specific.iter().position(|(other, _)| *other == fixed) {
            Some(n) => &self.specific[n].1,
            None if fixed.is_empty() => self.general.get_or_insert_with(|| rate.to_owned()),
            None => {
                self.specific.push((fixed, rate.to_owned()));
                return None;
            }
        };
        (kept != rate).then_some(kept)
    }
}

/// The keys as an id; with a number if other keys have the same.
fn unused_id(keys: &[String], is_shadow: bool, used: &mut HashSet<String>) -> String {
    let mode = if is_shadow { "-shadow" } else { "" };
    let mut words = id_text(&keys.join("."));
    words.truncate(RuleId::MAX_LEN - "-shadow".len());
    let mut id = format!("{words}{mode}");
    for n in 2.. {
        if used.insert(id.clone()) {
            break;
        }
        let number = format!("-{n}");
        words.truncate(RuleId::MAX_LEN - "-shadow".len() - number.len());
        id = format!("{words}{number}{mode}");
    }
    id
}

fn native_rule(id: String, keys: &[String], is_shadow: bool, group: Group) -> Map<String, Value> {
    let attribute = |key: &String| format!("attr:{key}");
    let mut rule = Map::new();
    rule.insert("id".to_owned(), id.into());
    rule.insert("key".to_owned(), keys.iter().map(attribute).collect::<Vec<_>>().into());
    rule.insert("limit".to_owned(), group.general.unwrap_or_else(|| NO_LIMIT.to_owned()).into());
    rule.insert("algorithm".to_owned(), "fixed-window".into());
    if is_shadow {
        rule.insert("mode".to_owned(), "shadow".into());
    }
    let specific = group.specific.into_iter().map(|(fixed, rate)| {
        let mut map: Map<String, Value> =
            fixed.into_iter().map(|(key, value)| (attribute(&key), value.into())).collect();
        map.insert("limit".to_owned(), rate.into());
        Value::Object(map)
    });
    let specific: Vec<_> = specific.collect();
    if !specific.is_empty() {
        rule.insert("overrides".to_owned(), json!(specific));
    }
    rule
}
