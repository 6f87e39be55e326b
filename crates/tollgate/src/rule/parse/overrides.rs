//! The overrides of a rule: limits for single values of its key.

use crate::document::MapReader;
use crate::identity::{Attribute, Key};
use crate::rule::parse::LimitContext;
use crate::rule::{Override, Overrides};

pub(super) fn read(map: &mut MapReader<'_, '_>, key: &[Attribute], context: &LimitContext<'_>) -> Overrides {
    let Some(nodes) = map.optional_list("overrides") else { return Overrides::default() };
    let mut list = Vec::with_capacity(nodes.len());
    for (n, node) in nodes.iter().enumerate() {
        let path = format!("overrides[{n}]");
        let Some(entries) = node.as_map() else {
            map.reject(&path, node, "expected a map such as {user: \"42\", limits: [50/m]}");
            continue;
        };
        let mut values = Vec::new();
        let mut limits = None;
        let before = map.problems().count();
        for entry in entries {
            let name = entry.key();
            let value = entry.value();
            if matches!(name, "limit" | "limits") {
                limits = context.limits(map, &format!("{path}.{name}"), value);
                continue;
            }
            match override_value(key, name, value.as_str()) {
                Ok(pair) => values.push(pair),
                Err(message) => map.reject(&path, value, message),
            }
        }
        match limits {
            Some(limits) if !values.is_empty() => list.push(Override { values, limits }),
            _ if map.problems().count() > before => {}
            Some(_) => map.reject(&path, node, "names no attribute of the rule's key"),
            None => map.reject(&path, node, "'limits' is missing"),
        }
    }
    Overrides::new(key, list)
}

fn override_value(key: &[Attribute], name: &str, value: Option<&str>) -> Result<(Attribute, String), String> {
    let attribute = Attribute::parse(name)?;
    if !key.contains(&attribute) {
        let names: Vec<_> = key.iter().map(ToString::to_string).collect();
        return Err(format!("{attribute} is not in the rule's key [{}]", names.join(", ")));
    }
    let value = value.ok_or_else(|| format!("expected a value for {attribute}"))?;
    let escaped = value.replace('%', "%25").replace('+', "%2B");
    let key = Key::parse(&format!("{attribute}:{escaped}")).map_err(|error| error.to_string())?;
    key.parts().first().cloned().ok_or_else(|| format!("no value for {attribute}"))
}
