//! Parses rules: one map each, in YAML or JSON, in the long form or the short one.
//!
//! Parsing does not stop at the first problem: all of them are collected, each with its position.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use smallvec::SmallVec;

use crate::document::{MapReader, Node, Problem, Problems, TextPosition};
use crate::identity::{Attribute, Key};
use crate::limit::Limit;
use crate::rule::rule_interner::RuleInterner;
use crate::rule::{
    AmbiguousKey, BanPolicy, CompactText, CountWhen, DenyOptions, EnforcedShare, HostPattern, Limits,
    MissingKey, OnExceed, OnStoreError, Pattern, Rule, RuleId, RuleLimit, RuleMethod, RuleMode, RuleSettings,
    Tracking,
};
use crate::time::parse_duration;

mod algorithm_options;
mod overrides;

/// Named bounds of a rule.
const MAX_KEY_ATTRIBUTES: usize = 8;
const MAX_LIMITS: usize = 8;
const MAX_COST: u64 = 1_000_000_000;
const MAX_BAN_AFTER: u64 = 1_000;

pub(crate) const ON_STORE_ERROR: [(&str, OnStoreError); 3] =
    [("open", OnStoreError::Open), ("closed", OnStoreError::Closed), ("local", OnStoreError::Local)];

/// Reads a list of rules; invalid ones are left out, and their problems collected.
pub fn rules(list: &Node<'_>, path: &str, problems: &mut Problems) -> Vec<Rule> {
    let Some(nodes) = list.as_list() else {
        problems.push(Problem::new(Some(list.position()), path, "expected a list of rules"));
        return Vec::new();
    };
    let mut positions: HashMap<RuleId, TextPosition> = HashMap::with_capacity(nodes.len());
    let mut rules = Vec::with_capacity(nodes.len());
    let mut interner = RuleInterner::default();
    for (n, node) in nodes.iter().enumerate() {
        let path = format!("{path}[{n}]");
        rules.extend(self::rule(node, &path, problems).map(|rule| interner.share(rule)));
        let Some(id) = id_of(node) else { continue };
        match positions.get(&id) {
            Some(first) => {
                let message = format!("rule id '{id}' is used twice, first at line {}", first.line);
                problems.push(Problem::new(Some(node.position()), &path, message));
            }
            None => _ = positions.insert(id, node.position()),
        }
    }
    rules
}

/// Reads one limit with its algorithm, as a rule has them.
pub(crate) fn limit(text: &str) -> Result<Limit, Problems> {
    let root = crate::document::read(text)?;
    let mut problems = Problems::new();
    let limit = MapReader::new(&root, "", &mut problems).and_then(|mut map| {
        let shapes = algorithm_options::AlgorithmOptions::read(&mut map, None);
        let read = LimitContext { shapes: &shapes, cost: 1 };
        let rate = map.required("limit");
        let text = rate.and_then(|rate| rate.as_str());
        let limit = rate.zip(text).and_then(|(rate, text)| read.limit(&mut map, "limit", text, rate));
        map.finish();
        limit
    });
    problems.or(())?;
    limit.ok_or_else(|| Problems::from(Problem::new(None, "limit", "expected a rate such as 5/m")))
}

/// The id of a rule, even if the rule is otherwise invalid.
fn id_of(node: &Node<'_>) -> Option<RuleId> {
    let id = node.as_map()?.iter().find(|entry| entry.key() == "id")?;
    id.value().as_str().and_then(RuleId::new)
}

/// Reads one rule; `None` if it has a problem.
pub fn rule(node: &Node<'_>, path: &str, problems: &mut Problems) -> Option<Rule> {
    let before = problems.count();
    let mut map = MapReader::new(node, path.to_owned(), problems)?;
    let rule = read_rule(&mut map);
    map.finish();
    rule.filter(|_| problems.count() == before)
}

fn read_rule(map: &mut MapReader<'_, '_>) -> Option<Rule> {
    let id = rule_id(map);
    let short = ShortForm::read(map);
    let (method, pattern) = pattern(map, &short);
    let key = attributes(map, "key").unwrap_or_else(|| short.default_key());
    let uid = rule_user(map, &short, &key);
    let missing_key = map.optional_choice("missing_key", &MISSING_KEY).unwrap_or_default();
    let ambiguous_key = map
        .optional_choice("ambiguous_key", &AMBIGUOUS_KEY)
        .unwrap_or_else(|| AmbiguousKey::default_for(missing_key));
    let on_exceed = map.optional_choice("on_exceed", &ON_EXCEED);
    let shapes = algorithm_options::AlgorithmOptions::read(map, on_exceed);
    let cost = cost(map);
    let read = LimitContext { shapes: &shapes, cost };
    let limits = limits(map, &short, &read);
    let overrides = overrides::read(map, &key, &read);
    // Every field is read before the first return: a field that is not read would be reported as unknown.
    let mode = map.optional_choice("mode", &MODE).unwrap_or_default();
    let enforced = enforced(map, &key, uid.as_deref());
    let track = Tracking::read(map);
    let on_store_error = map.optional_choice("on_store_error", &ON_STORE_ERROR);
    let count_denied = map.optional_bool("count_denied").unwrap_or_default();
    let count_when = count_when(map).unwrap_or_default();
    let cost_from = cost_from(map);
    let ban = ban(map, &key);
    let deny = DenyOptions::read(map);
    let settings = RuleSettings {
        method,
        key,
        missing_key,
        ambiguous_key,
        overrides,
        cost,
        mode,
        enforced,
        track,
        on_exceed: on_exceed.unwrap_or_else(|| shapes.default_on_exceed()),
        on_store_error,
        count_denied,
        count_when,
        cost_from,
        ban,
        deny,
    };
    Some(Rule { id: id?, pattern, uid, limits: limits?.into(), settings: settings.into() })
}

const MISSING_KEY: [(&str, MissingKey); 3] =
    [("skip", MissingKey::Skip), ("deny", MissingKey::Deny), ("shared", MissingKey::Shared)];
const AMBIGUOUS_KEY: [(&str, AmbiguousKey); 2] = [("deny", AmbiguousKey::Deny), ("each", AmbiguousKey::Each)];
const ON_EXCEED: [(&str, OnExceed); 3] =
    [("reject", OnExceed::Reject), ("hold", OnExceed::Hold), ("queue", OnExceed::Queue)];
const MODE: [(&str, RuleMode); 3] =
    [("enforce", RuleMode::Enforce), ("shadow", RuleMode::Shadow), ("off", RuleMode::Off)];

fn rule_id(map: &mut MapReader<'_, '_>) -> Option<RuleId> {
    let node = map.required("id")?;
    let id = node.as_str().and_then(RuleId::new);
    if id.is_none() {
        let shown = node.as_str().unwrap_or(node.kind());
        map.reject(
            "id",
            node,
            format!(
                "'{shown}' is not a valid id: use 1 to {} characters of A-Z a-z 0-9 . _ -",
                RuleId::MAX_LEN
            ),
        );
    }
    id
}

/// The short form: `{id, uid, url, time, requests}`.
struct ShortForm<'n> {
    url: Option<&'n Node<'n>>,
    uid: Option<&'n Node<'n>>,
    rate: Option<(String, &'n Node<'n>)>,
}

impl<'n> ShortForm<'n> {
    fn read(map: &mut MapReader<'n, '_>) -> ShortForm<'n> {
        let url = map.optional("url");
        let uid = map.optional("uid");
        let time = map.optional("time");
        let requests = map.optional("requests");
        let rate = match (time, requests) {
            (Some(time), Some(requests)) => match (time.as_str(), requests.as_str()) {
                (Some(unit), Some(number)) => Some((format!("{number}/{unit}"), requests)),
                (None, _) => {
                    map.reject("time", time, "expected a unit such as minute");
                    None
                }
                (_, None) => {
                    map.reject("requests", requests, "expected a number");
                    None
                }
            },
            (None, None) => None,
            (Some(_), None) => {
                map.reject_map("'time' needs 'requests' as well");
                None
            }
            (None, Some(_)) => {
                map.reject_map("'requests' needs 'time' as well");
                None
            }
        };
        ShortForm { url, uid, rate }
    }

    fn is_used(&self) -> bool {
        self.url.is_some() || self.uid.is_some() || self.rate.is_some()
    }

    fn default_key(&self) -> Vec<Attribute> {
        if self.is_used() { vec![Attribute::User] } else { Vec::new() }
    }
}

fn pattern(map: &mut MapReader<'_, '_>, short: &ShortForm<'_>) -> (RuleMethod, Pattern) {
    let long = map.optional("match");
    if let (Some(node), Some(_)) = (long, short.url) {
        map.reject("match", node, "'match' and 'url' are the same setting: keep one");
    }
    let (name, node) = if long.is_some() { ("match", long) } else { ("url", short.url) };
    let mut method = RuleMethod::default();
    let mut pattern = Pattern::default();
    if let Some(node) = node {
        match node.as_str().ok_or("expected [METHOD ]PATH".to_owned()).and_then(Pattern::parse) {
            Ok(read) => (method, pattern) = read,
            Err(message) => map.reject(name, node, message),
        }
    }
    if let Some(node) = map.optional("host") {
        match node.as_str().ok_or("expected a host".to_owned()).and_then(HostPattern::parse) {
            Ok(host) => pattern.host = Some(host),
            Err(message) => map.reject("host", node, message),
        }
    }
    (method, pattern)
}

fn rule_user(map: &mut MapReader<'_, '_>, short: &ShortForm<'_>, key: &[Attribute]) -> Option<CompactText> {
    let node = short.uid?;
    let uid = node.as_str().map(str::trim_ascii).filter(|uid| !uid.is_empty());
    if uid.is_none() {
        map.reject("uid", node, "expected a user id");
    } else if uid.is_some_and(|uid| uid.len() > Key::MAX_LEN) {
        map.reject("uid", node, format!("user id is longer than {} bytes", Key::MAX_LEN));
        return None;
    } else if !key.contains(&Attribute::User) {
        map.reject("uid", node, "a rule for one user is counted by user: add user to its key");
    }
    uid.map(Into::into)
}

/// A list of attributes in the order of their names.
fn attributes(map: &mut MapReader<'_, '_>, name: &'static str) -> Option<Vec<Attribute>> {
    let nodes = map.one_or_many(name)?;
    let mut attributes: Vec<Attribute> = Vec::new();
    for node in nodes {
        match node.as_str().ok_or("expected an attribute".to_owned()).and_then(Attribute::parse) {
            Ok(attribute) if attributes.contains(&attribute) => {
                map.reject(name, node, format!("{attribute} is named twice"));
            }
            Ok(attribute) => attributes.push(attribute),
            Err(message) => map.reject(name, node, message),
        }
    }
    if let Some(node) = nodes.get(MAX_KEY_ATTRIBUTES) {
        map.reject(name, node, format!("more than {MAX_KEY_ATTRIBUTES} attributes"));
    }
    attributes.sort_by_cached_key(ToString::to_string);
    Some(attributes)
}

/// The share of keys for which a rule is enforced.
fn enforced(map: &mut MapReader<'_, '_>, key: &[Attribute], uid: Option<&str>) -> EnforcedShare {
    let Some(node) = map.optional("enforce_percent") else { return EnforcedShare::ALL };
    let share = match node.as_u64().and_then(EnforcedShare::new) {
        None => Err("expected a whole number from 0 to 100"),
        // In shadow it would still replace the general rule, and the user would not be limited at all.
        Some(_) if uid.is_some() => Err("a rule for one user is enforced or not: use mode"),
        Some(_) if key.is_empty() => Err("the rule has no key, so no share of it can be chosen: use mode"),
        Some(share) => Ok(share),
    };
    share.map_err(|message| map.reject("enforce_percent", node, message)).unwrap_or(EnforcedShare::ALL)
}

fn cost(map: &mut MapReader<'_, '_>) -> u64 {
    let cost = map.optional_u64("cost").unwrap_or(1);
    if !(1..=MAX_COST).contains(&cost) {
        map.reject_map(format!("cost {cost} is out of range: 1 to {MAX_COST}"));
        return 1;
    }
    cost
}

/// Context that the limits of one rule share.
struct LimitContext<'r> {
    shapes: &'r algorithm_options::AlgorithmOptions,
    cost: u64,
}

fn limits(map: &mut MapReader<'_, '_>, short: &ShortForm<'_>, read: &LimitContext<'_>) -> Option<Limits> {
    let one = map.optional("limit");
    let many = map.optional("limits");
    let by = map.optional("limits_by");
    let given = [one.is_some(), many.is_some(), by.is_some(), short.rate.is_some()];
    match given.iter().filter(|given| **given).count() {
        0 => {
            map.reject_map("no limit: write limit: 5/m, limits: [5/m, 20/h] or limits_by");
            return None;
        }
        1 => {}
        _ => {
            map.reject_map("more than one of 'limit', 'limits', 'limits_by' and 'time': keep one");
            return None;
        }
    }
    if let Some((rate, node)) = &short.rate {
        let limit = read.limit(map, "requests", rate, node)?;
        return Some(Limits::Same(SmallVec::from_buf([RuleLimit::new(limit)])));
    }
    if let Some(node) = by {
        return limits_by(map, node, read);
    }
    let (name, node) = if one.is_some() { ("limit", one?) } else { ("limits", many?) };
    read.limits(map, name, node).map(|limits| Limits::Same(limits.into_vec().into()))
}

impl LimitContext<'_> {
    fn limits(&self, map: &mut MapReader<'_, '_>, name: &str, node: &Node<'_>) -> Option<Box<[RuleLimit]>> {
        let nodes = node.as_list().unwrap_or(std::slice::from_ref(node));
        if nodes.is_empty() || nodes.len() > MAX_LIMITS {
            map.reject(name, node, format!("expected 1 to {MAX_LIMITS} limits, found {}", nodes.len()));
            return None;
        }
        let mut limits: Vec<Limit> = Vec::with_capacity(nodes.len());
        let mut whole = true;
        for (n, each) in nodes.iter().enumerate() {
            let name = if node.as_list().is_some() { format!("{name}[{n}]") } else { name.to_owned() };
            let Some(text) = each.as_str() else {
                map.reject(&name, each, "expected a rate such as 5/m");
                whole = false;
                continue;
            };
            match self.limit(map, &name, text, each) {
                Some(limit) if limits.iter().any(|known| known.rate().period() == limit.rate().period()) => {
                    let period = limit.rate().period();
                    map.reject(
                        &name,
                        each,
                        format!("two limits per {period}: the smaller one would always decide"),
                    );
                    whole = false;
                }
                Some(limit) => limits.push(limit),
                None => whole = false,
            }
        }
        whole.then(|| limits.into_iter().map(RuleLimit::new).collect())
    }

    fn limit(&self, map: &mut MapReader<'_, '_>, name: &str, text: &str, node: &Node<'_>) -> Option<Limit> {
        let made = text.parse().map_err(|error: crate::limit::RateError| error.to_string());
        let made =
            made.and_then(|rate| Limit::new(rate, self.shapes.shape()?).map_err(|error| error.to_string()));
        match made {
            Ok(limit) if limit.capacity() < self.cost && limit.rate().count() > 0 => {
                let message = format!(
                    "{limit} lets {} pass at once, less than the cost {}: nothing would ever pass",
                    limit.capacity(),
                    self.cost
                );
                map.reject(name, node, message);
                None
            }
            Ok(limit) => Some(limit),
            Err(message) => {
                if !message.is_empty() {
                    map.reject(name, node, message);
                }
                None
            }
        }
    }
}

/// `{attr: plan, free: [10/m], pro: [100/m], default: [5/m]}`.
fn limits_by(map: &mut MapReader<'_, '_>, node: &Node<'_>, read: &LimitContext<'_>) -> Option<Limits> {
    let Some(entries) = node.as_map() else {
        map.reject("limits_by", node, "expected a map such as {attr: plan, free: [10/m], pro: [100/m]}");
        return None;
    };
    let before = map.problems().count();
    let mut attribute = None;
    let mut values = Vec::new();
    let mut default = None;
    for entry in entries {
        let name = entry.key();
        let path = format!("limits_by.{}", entry.key());
        match name {
            "attr" => {
                match entry.value().as_str().ok_or("expected an attribute".to_owned()).and_then(by_attribute)
                {
                    Ok(read) => attribute = Some(read),
                    Err(message) => map.reject(&path, entry.value(), message),
                }
            }
            "default" => default = read.limits(map, &path, entry.value()),
            value => {
                values.extend(read.limits(map, &path, entry.value()).map(|limits| (value.into(), limits)))
            }
        }
    }
    if map.problems().count() > before {
        return None;
    }
    if attribute.is_none() {
        map.reject("limits_by", node, "'attr' is missing: the attribute whose value chooses the limits");
    } else if values.is_empty() && default.is_none() {
        map.reject("limits_by", node, "no limits: write some for a value, such as free: [10/m], or default");
        return None;
    }
    Some(Limits::By { attribute: attribute?, values, default })
}

/// `plan` is the caller's attribute of that name; `header:x-plan` and the like name their source.
fn by_attribute(text: &str) -> Result<Attribute, String> {
    match Attribute::parse(text) {
        Err(_) if !text.contains(':') => Attribute::parse(&format!("attr:{text}")),
        other => other,
    }
}

fn count_when(map: &mut MapReader<'_, '_>) -> Option<CountWhen> {
    let node = map.optional("count_when")?;
    let statuses = |list: &str| {
        let codes: Result<Vec<u16>, _> = list.split(',').map(|code| code.trim().parse()).collect();
        codes.ok().filter(|codes| codes.iter().all(|code| (100..600).contains(code)))
    };
    let read = match node.as_str() {
        Some("always") => Some(CountWhen::Always),
        Some("success") => Some(CountWhen::Success),
        Some("failure") => Some(CountWhen::Failure),
        Some(text) => text.strip_prefix("status:").and_then(statuses).map(CountWhen::Status),
        None => None,
    };
    if read.is_none() {
        map.reject("count_when", node, "expected always, success, failure or status:401,403");
    }
    read
}

fn cost_from(map: &mut MapReader<'_, '_>) -> Option<Box<str>> {
    let node = map.optional("cost_from")?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let name = node.as_str().filter(|name| !name.is_empty() && name.bytes().all(token));
    if name.is_none() {
        map.reject("cost_from", node, "expected the name of a header, such as x-cost");
    }
    name.map(|name| name.to_ascii_lowercase().into())
}

fn ban(map: &mut MapReader<'_, '_>, rule_key: &[Attribute]) -> Option<BanPolicy> {
    let mut map = map.optional_map("ban")?;
    let key = attributes(&mut map, "key").unwrap_or_else(|| rule_key.to_vec());
    if key.is_empty() {
        map.reject_map("'key' is missing: the attributes to ban by, such as [ip]");
    }
    let after = map.required("after").and_then(|node| {
        let after = node.as_u64().filter(|after| (1..=MAX_BAN_AFTER).contains(after));
        if after.is_none() {
            map.reject("after", node, format!("expected a number of denials from 1 to {MAX_BAN_AFTER}"));
        }
        after
    });
    let within = read_duration(&mut map, "within").unwrap_or(Duration::from_secs(600));
    let first = read_duration(&mut map, "for").unwrap_or(Duration::from_secs(3_600));
    let max = read_duration(&mut map, "max").unwrap_or(first.max(Duration::from_secs(86_400)));
    if max < first {
        map.reject_map("'max' is shorter than 'for'");
    }
    map.finish();
    let after = u32::try_from(after?).ok()?;
    Some(BanPolicy { key, after, within, first, max })
}

/// A duration above zero.
pub(crate) fn read_duration(map: &mut MapReader<'_, '_>, name: &'static str) -> Option<Duration> {
    let node = map.optional(name)?;
    let read = node.as_str().ok_or(Cow::Borrowed("expected a duration such as 30s")).and_then(|text| {
        let duration = parse_duration(text).map_err(Cow::Owned)?;
        if duration.is_zero() {
            Err(Cow::Owned(format!("'{text}' is zero: write a duration such as 30s")))
        } else {
            Ok(duration)
        }
    });
    read.map_err(|message| map.reject(name, node, message)).ok()
}
