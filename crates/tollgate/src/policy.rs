//! The policy in force: rules, allow list and the sources of identities, as one snapshot.
//!
//! A policy is built separately and swapped in as a whole; a request sees either the old or the new one. It keeps what
//! it has replaced for as long as counters created under that may matter (I6).

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::ban::{Ban, BanSource};
use crate::document::{self, MapReader, Node, Problem, Problems};
use crate::fingerprint::{Fingerprint, Secret};
use crate::hit::{AttributeValues, Hit};
use crate::identity::{Attribute, Key, normal};
use crate::key_list::KeyList;
use crate::plan::check_key_parts;
use crate::rule::{
    MAX_MATCHES, Matches, OnStoreError, PathCase, Rule, RuleInForce, RuleSet, RuleSetError, Rules, Warnings,
    parse,
};
use crate::time::{Time, calendar};

mod change;
mod dependencies;
mod layer_settings;
mod settings;

pub use crate::store::KeyVisibility;
pub use change::{PolicyChange, PolicyDraft};
pub use layer_settings::{LayerSettings, shared_secret};
pub use settings::{Settings, StoreSettings};

pub struct PolicySnapshot {
    pub(crate) rules: RuleSet,
    pub(crate) file_allow: KeyList<()>,
    /// Beside the file's list; changed at run time.
    pub(crate) allow: KeyList<()>,
    pub(crate) file_bans: KeyList<Ban>,
    settings: Settings,
    generation: u64,
}

/// Where a key of the allow list comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllowSource {
    File,
    /// A [`PolicyChange`] at run time.
    Change,
}

/// The parts of a configuration that make up a policy: allow list, bans and rules.
#[derive(Default)]
pub struct PolicyParts {
    pub rules: Vec<Rule>,
    pub allow: Vec<Key>,
    pub bans: Vec<(Key, Ban)>,
    pub settings: Settings,
}

impl PolicySnapshot {
    pub fn new(mut parts: PolicyParts) -> Result<PolicySnapshot, RuleSetError> {
        let ipv6_prefix = parts.settings.ipv6_prefix;
        for rule in &mut parts.rules {
            group_overrides(rule, ipv6_prefix)?;
        }
        let rules = RuleSet::with_case(parts.rules, parts.settings.path_case)?;
        let mut file_allow = KeyList::default();
        let mut file_bans = KeyList::<Ban>::default();
        for key in parts.allow {
            file_allow.insert(key.grouped_in_combination(ipv6_prefix), ());
        }
        for (key, ban) in parts.bans {
            let key = key.as_banned(ipv6_prefix);
            if file_bans.get(&key).is_none_or(|known| known.until < ban.until) {
                file_bans.insert(key, ban);
            }
        }
        let allow = KeyList::default();
        let settings = parts.settings;
        Ok(PolicySnapshot { rules, file_allow, allow, file_bans, settings, generation: 1 })
    }

    /// The failure mode of a rule.
    pub(crate) fn on_store_error(&self, rule: &Rule) -> OnStoreError {
        rule.on_store_error.unwrap_or(self.settings.store.on_error)
    }

    /// Reads `rules`, `allow` and `bans` from YAML or JSON.
    pub fn from_yaml(text: &str) -> Result<PolicySnapshot, Problems> {
        let root = document::read(text)?;
        let mut problems = Problems::new();
        let mut parts = PolicyParts::default();
        if !root.is_null()
            && let Some(mut map) = MapReader::new(&root, "", &mut problems)
        {
            parts.read(&mut map);
            map.finish();
        }
        problems.or(())?;
        PolicySnapshot::new(parts).map_err(|error| Problems::from(Problem::new(None, "rules", error)))
    }

    /// Succeeds the policy in force: takes over its statistics, generation, predecessors, and allow list entries that
    /// are not from the file.
    pub fn inherit(mut self, old: &PolicySnapshot, now: Time) -> PolicySnapshot {
        self.generation = old.generation + 1;
        self.allow = old.allow.clone();
        for number in 0..self.rules.rules().len() {
            let rule = &self.rules.rules()[number];
            let Some(was) = old.rules.get(rule.id.as_str()) else { continue };
            let next = match was == rule && was.position() == rule.position() {
                true => Arc::clone(was),
                false => Arc::new(was.next_version(Rule::clone(rule), rule.position(), now)),
            };
            self.rules.set_version(number, next);
        }
        self
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// All rules: in the order in which they were given, until some are changed.
    pub fn rules(&self) -> &Rules {
        self.rules.rules()
    }

    /// Warnings about rules that are valid but probably not intended.
    pub fn warnings(&self) -> Warnings {
        Warnings::of(self.rules().iter().map(|rule| &***rule), &self.settings.identity)
    }

    /// Whether both were made from the same list of rules, whatever was added to either.
    pub fn has_same_list(&self, other: &PolicySnapshot) -> bool {
        let same = |rule: &Arc<RuleInForce>| {
            let there = other.rule(rule.id.as_str());
            there.is_some_and(|there| there == rule && there.position() == rule.position())
        };
        let listed = self.listed();
        listed.len() == other.listed().len() && listed.into_iter().all(same)
    }

    /// The rules that it was made from, in their order, without those that were added since.
    pub fn listed(&self) -> Vec<&Arc<RuleInForce>> {
        let mut listed: Vec<_> = self.rules().iter().filter(|rule| !rule.is_added()).collect();
        listed.sort_by_key(|rule| rule.position());
        listed
    }

    pub fn rule(&self, id: &str) -> Option<&Arc<RuleInForce>> {
        self.rules.get(id)
    }

    pub fn file_bans(&self) -> impl Iterator<Item = &(Key, Ban)> {
        self.file_bans.iter()
    }

    /// The keys of the allow list with their source; a key may be on it twice.
    pub fn allow_list(&self) -> impl Iterator<Item = (&Key, AllowSource)> {
        let file = self.file_allow.iter().map(|(key, ())| (key, AllowSource::File));
        file.chain(self.allow.iter().map(|(key, ())| (key, AllowSource::Change)))
    }

    pub fn is_allow_listed(&self, key: &Key, source: AllowSource) -> bool {
        let list = if source == AllowSource::File { &self.file_allow } else { &self.allow };
        list.get(&key.clone().grouped_in_combination(self.settings.ipv6_prefix)).is_some()
    }

    /// The rules that apply to a hit, in their order, whatever its keys.
    pub fn matching(&self, hit: &Hit<'_>) -> impl ExactSizeIterator<Item = &Arc<RuleInForce>> {
        let mut matches = Matches::new();
        self.find_matching(hit, &mut matches);
        Vec::from(&*matches).into_iter()
    }

    /// Writes the rules that apply to a hit, in their order, into an empty list.
    #[inline(always)]
    pub(crate) fn find_matching<'p>(&'p self, hit: &Hit<'_>, matches: &mut Matches<'p>) {
        let several = Cell::new(false);
        let only = || {
            let users = self.values(hit, &Attribute::User);
            several.set(users.is_ambiguous());
            users.single()
        };
        self.rules.find_matching(hit.target(), only, matches);
        if several.get() {
            self.add_matching_users(hit, matches);
        }
    }

    /// Adds the rules for single users to the general ones, where a hit names several users.
    #[cold]
    fn add_matching_users<'p>(&'p self, hit: &Hit<'_>, matches: &mut Matches<'p>) {
        // Also of more values than are counted: the rules found then deny the request.
        for user in &self.all_values(hit, &Attribute::User) {
            if matches.len() > MAX_MATCHES {
                break;
            }
            for rule in self.rules.matching(hit.target(), || Some(user)).iter().copied() {
                if !matches.iter().any(|known| Arc::ptr_eq(known, rule)) {
                    matches.push(rule);
                }
            }
        }
        matches.sort_unstable_by_key(|rule| rule.order());
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The attributes that the policy may need of a hit. Their number does not depend on that of the rules; some may be
    /// there twice.
    pub fn attributes(&self) -> impl Iterator<Item = &Attribute> {
        let sources = self.settings.identity.iter().map(|(_, source)| source);
        self.rules.attributes().chain(sources).chain(self.listed_attributes())
    }

    /// The attributes by which requests are looked up in lists of keys.
    fn listed_attributes(&self) -> impl Iterator<Item = &Attribute> {
        let allow = self.file_allow.attributes().chain(self.allow.attributes());
        allow.chain(self.file_bans.attributes())
    }

    /// The value of an attribute, the first of several: from the hit itself, or from its configured source.
    pub fn value<'h>(&self, hit: &'h Hit<'_>, attribute: &Attribute) -> Option<Cow<'h, str>> {
        let prefix = self.settings.ipv6_prefix;
        if self.ignores_case(attribute) {
            return hit.value(attribute, prefix).map(|path| Cow::Owned(path.to_lowercase()));
        }
        hit.value(attribute, prefix).or_else(|| {
            hit.value(self.source_of(attribute)?, prefix).and_then(|value| normalize_as(attribute, value))
        })
    }

    /// The key of a hit under a rule, of the first of several values; `None` if a part is missing. It is empty for a
    /// rule without a key.
    pub fn key_of(&self, hit: &Hit<'_>, rule: &Rule) -> Option<Key> {
        let part =
            |attribute: &Attribute| Some((attribute.clone(), self.value(hit, attribute)?.into_owned()));
        let parts = rule.key.iter().map(part).collect::<Option<Vec<_>>>()?;
        Key::new(parts).ok()
    }

    /// A key as a rule counts it, and its fingerprint there, in the domain of requests that name none; `None` if the rule
    /// counts by other attributes.
    pub fn counted_key(&self, rule: &str, key: &Key, secret: &Secret) -> Option<(Key, Fingerprint)> {
        let rule = self.rule(rule)?;
        let key = key.clone().grouped(self.settings.ipv6_prefix);
        check_key_parts(rule, &key).ok()?;
        let never = Time::from_secs(0);
        let (fingerprint, _) = self.counters_of(rule, Hit::DEFAULT_DOMAIN, &key, secret, never);
        Some((key, fingerprint))
    }

    /// The different values of an attribute.
    #[inline]
    pub fn values<'h>(&self, hit: &'h Hit<'_>, attribute: &Attribute) -> AttributeValues<'h> {
        let prefix = self.settings.ipv6_prefix;
        if self.ignores_case(attribute) {
            return self.value(hit, attribute).map_or(AttributeValues::Missing, AttributeValues::One);
        }
        match hit.values(attribute, prefix) {
            AttributeValues::Missing => match self.source_of(attribute) {
                Some(source) => hit.values(source, prefix).map(|value| normalize_as(attribute, value)),
                None => AttributeValues::Missing,
            },
            found => found,
        }
    }

    /// Every value of an attribute, without a bound: a ban must be found, however many other values there are.
    pub(crate) fn all_values<'h>(
        &self,
        hit: &'h Hit<'_>,
        attribute: &Attribute,
    ) -> SmallVec<[Cow<'h, str>; 1]> {
        let prefix = self.settings.ipv6_prefix;
        if self.ignores_case(attribute) {
            return self.value(hit, attribute).into_iter().collect();
        }
        let own = hit.all_values(attribute, prefix);
        match self.source_of(attribute).filter(|_| own.is_empty()) {
            Some(source) => {
                let values = hit.all_values(source, prefix).into_iter();
                values.filter_map(|value| normalize_as(attribute, value)).collect()
            }
            None => own,
        }
    }

    /// Whether an attribute is a path that is compared case-insensitively.
    #[inline]
    fn ignores_case(&self, attribute: &Attribute) -> bool {
        self.settings.path_case == PathCase::Insensitive && *attribute == Attribute::Path
    }

    /// Whether any rule is for some hosts only.
    pub fn names_hosts(&self) -> bool {
        self.rules.names_hosts()
    }

    /// The configured source of an identity that a hit does not have itself.
    fn source_of(&self, attribute: &Attribute) -> Option<&Attribute> {
        self.settings.identity.iter().find(|(name, _)| name == attribute).map(|(_, source)| source)
    }
}

/// The value of a source field, in the normal form of the identity.
fn normalize_as<'h>(identity: &Attribute, value: Cow<'h, str>) -> Option<Cow<'h, str>> {
    match identity {
        Attribute::Mac => normal::mac(&value).map(|mac| Cow::Owned(mac.into_owned())),
        Attribute::Email => Some(Cow::Owned(crate::identity::key::email(&value))),
        _ => Some(value),
    }
}

/// Groups the addresses in a rule's overrides like those of requests.
fn group_overrides(rule: &mut Rule, ipv6_prefix: u8) -> Result<(), RuleSetError> {
    if rule.overrides.is_empty() {
        return Ok(());
    }
    let grouped = rule.overrides.clone().grouped(&rule.key, ipv6_prefix);
    let out_of_group = |range| RuleSetError::Range { rule: rule.id.clone(), range, ipv6_prefix };
    let overrides = grouped.map_err(out_of_group)?;
    Arc::make_mut(&mut rule.settings).overrides = overrides;
    Ok(())
}

impl PolicyParts {
    /// Reads the keys of a configuration that make up a policy.
    pub fn read(&mut self, map: &mut MapReader<'_, '_>) {
        if let Some(node) = map.optional("rules") {
            self.rules = parse::rules(node, &map.path_of("rules"), map.problems());
        }
        for (n, node) in map.optional_list("allow").unwrap_or_default().iter().enumerate() {
            match node.as_str().ok_or("expected a key such as ip:10.0.0.0/8".to_owned()).and_then(key_of) {
                Ok(key) => self.allow.push(key),
                Err(message) => map.reject(&format!("allow[{n}]"), node, message),
            }
        }
        let bans = map.optional("bans");
        for (n, node) in bans.and_then(Node::as_list).unwrap_or_default().iter().enumerate() {
            self.bans.extend(file_ban(node, &format!("bans[{n}]"), map.problems()));
        }
        if let Some(node) = bans.filter(|node| node.as_list().is_none()) {
            map.reject("bans", node, document::expected("a list", node));
        }
    }
}

fn key_of(text: &str) -> Result<Key, String> {
    Key::parse(text).map_err(|error| error.to_string())
}

/// `{ key: "ip:203.0.113.9", until: 2027-01-01T00:00:00Z, reason: scraping }`.
fn file_ban(node: &Node<'_>, path: &str, problems: &mut Problems) -> Option<(Key, Ban)> {
    let mut map = MapReader::new(node, path.to_owned(), problems)?;
    let key = map.required_text("key").map(key_of);
    let until_node = map.optional("until");
    let until = until_node.map(|node| node.as_str().and_then(calendar::parse_rfc3339));
    let reason = map.optional_text("reason").unwrap_or_default().to_owned();
    if let (Some(None), Some(node)) = (until, until_node) {
        map.reject("until", node, "expected a timestamp such as 2027-01-01T00:00:00Z");
    }
    if let (Some(Err(message)), Some(node)) = (&key, map.optional("key")) {
        map.reject("key", node, message);
    }
    map.finish();
    let until = until.unwrap_or(Some(Time::MAX))?;
    Some((key?.ok()?, Ban { until, reason, source: BanSource::File, strikes: 0 }))
}
