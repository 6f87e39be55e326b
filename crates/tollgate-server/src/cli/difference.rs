//! What a change makes of a thing, field by field.

use serde_json::{Map, Value};

use crate::cli::yaml;

/// Said in the heading, or of no use to a reader.
const UNSEEN: [&str; 3] = ["id", "version", "source"];

/// A heading, `+` for new, `-` for gone, `~` for changed, and under it the fields that differ.
pub fn lines(name: &str, before: &Value, after: &Value) -> Vec<String> {
    let (before, after) = (parsed(before), parsed(after));
    let sign = match (before.is_null(), after.is_null()) {
        (true, _) => '+',
        (false, true) => '-',
        (false, false) => '~',
    };
    [format!("{sign} {name}")].into_iter().chain(fields(&before, &after)).collect()
}

/// The fields that differ, those that were before those that are.
pub fn fields(before: &Value, after: &Value) -> Vec<String> {
    let (before, after) = (parsed(before), parsed(after));
    if let (Some(before), Some(after)) = (map_of(&before), map_of(&after)) {
        let new = after.keys().filter(|name| !before.contains_key(*name));
        let names = before.keys().chain(new).filter(|name| !UNSEEN.contains(&name.as_str()));
        return names.flat_map(|name| field(name, before.get(name), after.get(name))).collect();
    }
    let one = |sign: char, value: &Value| {
        Some(format!("    {sign} {}", yaml::flow(value))).filter(|_| !value.is_null())
    };
    if before == after { Vec::new() } else { one('-', &before).into_iter().chain(one('+', &after)).collect() }
}

fn field(name: &str, before: Option<&Value>, after: Option<&Value>) -> Vec<String> {
    if before == after {
        return Vec::new();
    }
    let written = |value: Option<&Value>| value.map_or_else(Vec::new, |value| yaml::field(name, value));
    let (before, after) = (written(before), written(after));
    let only = |sign: char, these: &[String], others: &[String]| {
        let own: Vec<_> = these.iter().filter(|line| !others.contains(line)).collect();
        own.into_iter().map(|line| format!("    {sign} {line}")).collect::<Vec<_>>()
    };
    // Of a long list of overrides only those that differ are of interest, under the list's name.
    let shared = before.first().filter(|head| after.first() == Some(head) && after.len() > 1);
    let head = shared.map(|head| format!("      {head}"));
    head.into_iter().chain(only('-', &before, &after)).chain(only('+', &after, &before)).collect()
}

/// The log keeps things as texts of JSON.
fn parsed(value: &Value) -> Value {
    let text = value.as_str().filter(|text| text.starts_with('{'));
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| value.clone())
}

/// Nothing at all is a map without fields.
fn map_of(value: &Value) -> Option<&Map<String, Value>> {
    static NOTHING: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    if value.is_null() { Some(&NOTHING) } else { value.as_object() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_changed_rule_shows_the_fields_that_differ() {
        let before = json!({ "id": "a", "limits": ["5/m"], "track": true, "key": "ip" });
        let after = json!({ "id": "a", "limits": ["9/m"], "key": "ip", "burst": 2 });
        let expected =
            ["~ a", "    - limits: [5/m]", "    + limits: [9/m]", "    - track: true", "    + burst: 2"];
        assert_eq!(lines("a", &before, &after), expected);
        assert_eq!(lines("a", &before.to_string().into(), &after.to_string().into()), expected, "as texts");
    }

    #[test]
    fn new_and_deleted_rules_show_all_of_their_fields() {
        let rule = json!({ "id": "a", "limit": "5/m", "source": "database" });
        assert_eq!(lines("a", &Value::Null, &rule), ["+ a", "    + limit: 5/m"]);
        assert_eq!(lines("a", &rule, &Value::Null), ["- a", "    - limit: 5/m"]);
        assert_eq!(
            lines("enforce", &json!("on"), &json!("off")),
            ["~ enforce", "    - \"on\"", "    + \"off\""]
        );
    }

    #[test]
    fn of_many_overrides_only_those_that_differ_are_shown() {
        let rule = |limits: [&str; 2]| json!({ "overrides": [{ "user": "a", "limits": [limits[0]] }, { "user": "b", "limits": [limits[1]] }] });
        let expected = [
            "~ a",
            "      overrides:",
            "    -   - { user: b, limits: [2/m] }",
            "    +   - { user: b, limits: [3/m] }",
        ];
        assert_eq!(lines("a", &rule(["1/m", "2/m"]), &rule(["1/m", "3/m"])), expected);
    }
}
