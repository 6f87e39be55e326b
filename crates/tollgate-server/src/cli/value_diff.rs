//! The difference that a change makes to an item, field by field.

use serde_json::{Map, Value};

use crate::cli::{out, yaml};

/// A heading with its [`sign`], and below it the fields that differ, except those `unseen`, which are shown elsewhere.
pub fn diff_lines(name: &str, before: &Value, after: &Value, unseen: &[&str]) -> Vec<String> {
    let heading = format!("{} {name}", sign(before, after));
    [heading].into_iter().chain(fields(before, after, unseen)).collect()
}

/// The kind of a change: `+` created, `-` deleted, `~` modified.
pub fn sign(before: &Value, after: &Value) -> char {
    match (before.is_null(), after.is_null()) {
        (true, _) => '+',
        (false, true) => '-',
        (false, false) => '~',
    }
}

fn fields(before: &Value, after: &Value, unseen: &[&str]) -> Vec<String> {
    if let (Some(before), Some(after)) = (map_of(before), map_of(after)) {
        let new = after.keys().filter(|name| !before.contains_key(*name));
        let names = before.keys().chain(new).filter(|name| !unseen.contains(&name.as_str()));
        return names.flat_map(|name| field(name, before.get(name), after.get(name))).collect();
    }
    let one = |sign: char, value: &Value| {
        let text = value.as_str().map_or_else(|| yaml::flow(value), out::escape_control);
        Some(format!("    {sign} {text}")).filter(|_| !value.is_null())
    };
    if before == after { Vec::new() } else { one('-', before).into_iter().chain(one('+', after)).collect() }
}

fn field(name: &str, before: Option<&Value>, after: Option<&Value>) -> Vec<String> {
    if before == after {
        return Vec::new();
    }
    let written = |value: Option<&Value>| value.map_or_else(Vec::new, |value| yaml::field(name, value));
    let before = written(before);
    let after = written(after);
    let only = |sign: char, these: &[String], others: &[String]| {
        let own: Vec<_> = these.iter().filter(|line| !others.contains(line)).collect();
        own.into_iter().map(|line| format!("    {sign} {line}")).collect::<Vec<_>>()
    };
    // Of a long list of overrides only those that differ are shown, under the list's name.
    let shared = before.first().filter(|head| after.first() == Some(head) && after.len() > 1);
    let head = shared.map(|head| format!("      {head}"));
    head.into_iter().chain(only('-', &before, &after)).chain(only('+', &after, &before)).collect()
}

/// `null` is a map without fields.
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
        assert_eq!(diff_lines("a", &before, &after, &["id"]), expected);
    }

    #[test]
    fn new_and_deleted_rules_show_all_of_their_fields() {
        const UNSEEN: &[&str] = &["id", "source"];
        let rule = json!({ "id": "a", "limit": "5/m", "source": "database" });
        assert_eq!(diff_lines("a", &Value::Null, &rule, UNSEEN), ["+ a", "    + limit: 5/m"]);
        assert_eq!(diff_lines("a", &rule, &Value::Null, UNSEEN), ["- a", "    - limit: 5/m"]);
        assert_eq!(
            diff_lines("enforce", &json!("on"), &json!("off"), &[]),
            ["~ enforce", "    - on", "    + off"]
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
        assert_eq!(diff_lines("a", &rule(["1/m", "2/m"]), &rule(["1/m", "3/m"]), &[]), expected);
    }
}
