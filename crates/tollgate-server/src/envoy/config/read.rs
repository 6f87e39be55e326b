//! One file of envoyproxy/ratelimit's configuration.

use tollgate::internal::document::{self, MapReader, Node, Problems};

use super::glob::Glob;
use super::rules;
use super::tree::{ConfiguredLimit, DescriptorNode, Domain, KeyNodes, Level, LimitMode, Quantity};
use crate::envoy::LimitUnit;

/// Deeper nesting is rejected.
const MAX_DEPTH: usize = 32;

/// The domain of a file, and its descriptors.
pub fn domain(text: &str) -> Result<(String, Domain), Problems> {
    let root = document::read(text)?;
    let mut problems = Problems::new();
    let mut name = String::new();
    let mut level = Level::default();
    if let Some(mut map) = MapReader::new(&root, "", &mut problems) {
        name = map.required_text("domain").unwrap_or_default().to_owned();
        if name.is_empty()
            && let Some(node) = map.optional("domain")
        {
            map.reject("domain", node, "must not be empty");
        }
        let descriptors = map.optional("descriptors");
        map.finish();
        if let Some(node) = descriptors.filter(|node| !node.is_null()) {
            level = ConfigReader { problems: &mut problems, domain: &name }.level(
                node,
                "descriptors",
                &mut Vec::new(),
            );
        }
    }
    problems.or((name, level))
}

struct ConfigReader<'p> {
    problems: &'p mut Problems,
    domain: &'p str,
}

impl ConfigReader<'_> {
    fn level(&mut self, list: &Node<'_>, path: &str, parents: &mut Vec<(String, String)>) -> Level {
        let mut level = Level::default();
        let Some(items) = list.as_list() else {
            let message = document::expected("a list of descriptors", list);
            self.problems.push(document::Problem::new(Some(list.position()), path, message));
            return level;
        };
        if parents.len() >= MAX_DEPTH {
            let message = format!("descriptors are nested more than {MAX_DEPTH} levels deep");
            self.problems.push(document::Problem::new(Some(list.position()), path, message));
            return level;
        }
        for (n, item) in items.iter().enumerate() {
            let path = format!("{path}[{n}]");
            let Some((key, node)) = self.descriptor(item, &path, parents) else { continue };
            let value = node.value.clone();
            if !add(level.keys.entry(key.as_str().into()).or_default(), node) {
                let value =
                    if value.is_empty() { String::new() } else { format!(" with the value '{value}'") };
                let message = format!("the key '{key}'{value} is in this list twice");
                self.problems.push(document::Problem::new(Some(item.position()), &path, message));
            }
        }
        level
    }

    fn descriptor(
        &mut self,
        item: &Node<'_>,
        path: &str,
        parents: &mut Vec<(String, String)>,
    ) -> Option<(String, DescriptorNode)> {
        let mut map = MapReader::new(item, path.to_owned(), self.problems)?;
        let key = map.required_text("key").unwrap_or_default().to_owned();
        if key.is_empty()
            && let Some(node) = map.optional("key")
        {
            map.reject("key", node, "must not be empty");
        }
        let value = map.optional("value").and_then(scalar_text).unwrap_or_default();
        let is_shadow = map.optional_bool("shadow_mode").unwrap_or_default();
        let is_quota = map.optional_bool("quota_mode").unwrap_or_default();
        let shares = map.optional_bool("share_threshold").unwrap_or_default();
        if shares
            && !value.contains('*')
            && let Some(node) = map.optional("share_threshold")
        {
            map.reject(
                "share_threshold",
                node,
                "only a value with a wildcard ('*') has values that could share",
            );
        }
        // For metrics of the original, whose labels are values of clients.
        map.optional_bool("detailed_metric");
        map.optional_bool("value_to_metric");
        let mode = match (is_shadow, is_quota) {
            (true, _) => LimitMode::Shadow,
            (false, true) => LimitMode::Quota,
            (false, false) => LimitMode::Enforce,
        };
        parents.push((key.clone(), value.clone()));
        let rule_path = rules::path(self.domain, parents);
        let limit = map.optional_map("rate_limit").and_then(|map| limit(map, mode, rule_path));
        let nested = map.optional("descriptors");
        map.finish();
        let next = match nested.filter(|node| !node.is_null()) {
            Some(node) => self.level(node, &format!("{path}.descriptors"), parents),
            None => Level::default(),
        };
        parents.pop();
        Some((key, DescriptorNode { value: value.into(), limit, is_shared: shares, next }))
    }
}

/// Adds a node; `false` if its value is there already.
fn add(nodes: &mut KeyNodes, node: DescriptorNode) -> bool {
    match Glob::parse(&node.value) {
        _ if node.value.is_empty() => nodes.bare.replace(Box::new(node)).is_none(),
        Some(glob) => {
            let is_new = nodes.patterns.insert(node.value.clone());
            nodes.wildcards.push((glob, node));
            is_new
        }
        None => nodes.exact.insert(node.value.clone(), node).is_none(),
    }
}

/// The text of a value that YAML may read as a number or a truth.
fn scalar_text(node: &Node<'_>) -> Option<String> {
    node.as_str()
        .map(str::to_owned)
        .or_else(|| node.as_u64().map(|number| number.to_string()))
        .or_else(|| node.as_bool().map(|truth| truth.to_string()))
}

fn limit(mut map: MapReader<'_, '_>, mode: LimitMode, path: String) -> Option<ConfiguredLimit> {
    let name: Box<str> = map.optional_text("name").unwrap_or_default().into();
    let is_unlimited = map.optional_bool("unlimited").unwrap_or_default();
    let requests = map.optional_u64("requests_per_unit");
    let unit = map.optional_text("unit");
    let replaces = replaces(&mut map, &name);
    let quantity = if is_unlimited {
        if unit.is_some()
            && let Some(node) = map.optional("unit")
        {
            map.reject("unit", node, "an unlimited limit has no unit");
        }
        Some(Quantity::Unlimited)
    } else {
        per_unit(&mut map, requests, unit)
    };
    map.finish();
    Some(ConfiguredLimit { name, replaces, mode, quantity: quantity?, path: path.into() })
}

fn per_unit(map: &mut MapReader<'_, '_>, requests: Option<u64>, unit: Option<&str>) -> Option<Quantity> {
    let found = unit.and_then(LimitUnit::parse);
    let requests = match requests.map(u32::try_from) {
        Some(Err(_)) => {
            if let Some(node) = map.optional("requests_per_unit") {
                map.reject("requests_per_unit", node, format!("is above {}", u32::MAX));
            }
            return None;
        }
        // The original counts a missing number as 0.
        requests => requests.and_then(Result::ok).unwrap_or_default(),
    };
    if found.is_none() {
        let message = "expected second, minute, hour, day, week, month or year";
        match map.optional("unit") {
            Some(node) => map.reject("unit", node, message),
            None => map.reject_map(format!("unit is missing: {message}")),
        }
    }
    Some(Quantity::PerUnit { requests, unit: found? })
}

fn replaces(map: &mut MapReader<'_, '_>, own: &str) -> Vec<Box<str>> {
    let path = map.path_of("replaces");
    let mut names = Vec::new();
    let items = map.optional_list("replaces").unwrap_or_default();
    for (n, item) in items.iter().enumerate() {
        let Some(mut map) = MapReader::new(item, format!("{path}[{n}]"), map.problems()) else { continue };
        let name = map.required_text("name").unwrap_or_default();
        if name.is_empty() || name == own {
            map.reject_map("names no other limit");
        }
        map.finish();
        names.push(name.into());
    }
    names
}
