//! Writes a value of the API as YAML that the library reads back unchanged, and converts a parsed document.

use serde_json::{Map, Value};
use tollgate::internal::document::Node;

/// Words with another meaning if they are not quoted.
const WORDS: [&str; 9] = ["true", "on", "yes", "false", "off", "no", "null", "~", ""];

/// A rule as one item of a list.
pub fn item(map: &Map<String, Value>) -> Vec<String> {
    if map.is_empty() {
        return vec!["- {}".to_owned()];
    }
    let fields = map.iter().flat_map(|(name, value)| field(name, value));
    fields.enumerate().map(|(n, line)| format!("{}{line}", if n == 0 { "- " } else { "  " })).collect()
}

/// One field of a map: one line, or one line per item of a list of maps.
pub fn field(name: &str, value: &Value) -> Vec<String> {
    let name = scalar(name);
    match value {
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let items = items.iter().map(|item| format!("  - {}", flow(item)));
            [format!("{name}:")].into_iter().chain(items).collect()
        }
        _ => vec![format!("{name}: {}", flow(value))],
    }
}

/// A value on one line.
pub fn flow(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => scalar(text),
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(map) if map.is_empty() => "{}".to_owned(),
        Value::Object(map) => {
            let entries = map.iter().map(|(name, value)| format!("{}: {}", scalar(name), flow(value)));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A string, quoted wherever it could be read as something else.
fn scalar(text: &str) -> String {
    let is_word = WORDS.iter().any(|word| text.eq_ignore_ascii_case(word));
    let starts_well = text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '/');
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "/_.@+*-=:".contains(c);
    let has_inner_blanks = text.contains(' ') && !text.contains("  ") && !text.ends_with(' ');
    let is_plain = text.chars().all(|c| is_safe(c) || (c == ' ' && has_inner_blanks));
    let is_key = text.contains(": ") || text.ends_with(':');
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    if starts_well && is_plain && !is_word && !is_key && !is_number {
        return text.to_owned();
    }
    // JSON does not escape DEL and the C1 controls; YAML requires it.
    let quoted = Value::from(text).to_string();
    let is_strange = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}');
    quoted
        .chars()
        .map(|c| if is_strange(c) { format!("\\u{:04x}", c as u32) } else { c.to_string() })
        .collect()
}

/// A parsed node as JSON: plain numbers and booleans are such.
pub fn to_json(node: &Node<'_>) -> Value {
    if let Some(map) = node.as_map() {
        return map.iter().map(|entry| (entry.key().to_owned(), to_json(entry.value()))).collect();
    }
    if let Some(list) = node.as_list() {
        return list.iter().map(to_json).collect();
    }
    match (node.as_u64(), node.as_bool(), node.as_str()) {
        (Some(number), ..) => number.into(),
        (_, Some(truth), _) => truth.into(),
        (_, _, text) => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use tollgate::internal::document;

    use super::*;

    #[test]
    fn a_rule_is_formatted_as_in_a_hand_written_file() {
        let rule = json!({
            "id": "login", "uid": "42", "match": "POST /login/{name}", "key": ["email", "header:x-a"],
            "limits": ["5/m", "20/h"], "mode": "off", "track": true, "burst": 5,
            "ban": { "key": ["ip"], "after": 3 },
            "overrides": [{ "email": "ceo@example.com", "limits": ["50/m"] }],
        });
        let expected = "- id: login\n  uid: \"42\"\n  match: \"POST /login/{name}\"\n  key: [email, header:x-a]\n  \
                        limits: [5/m, 20/h]\n  mode: \"off\"\n  track: true\n  burst: 5\n  \
                        ban: { key: [ip], after: 3 }\n  overrides:\n    - { email: ceo@example.com, limits: [50/m] }";
        assert_eq!(item(rule.as_object().expect("a map")).join("\n"), expected);
    }

    fn any_text() -> impl Strategy<Value = String> {
        prop_oneof![
            "[-a-z0-9 :#,&*'\"{}\\[\\]|>%@`!?~/.=+\\\\\n\t\u{7f}\u{85}\u{2028}é\u{feff}]{0,8}",
            "(on|NO|null|5|007|a: b)"
        ]
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any_text().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(any_text(), inner, 0..4)
                    .prop_map(|map| map.into_iter().collect::<Value>()),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(fields in prop::collection::btree_map(any_text(), any_value(), 1..5)) {
            let map: Map<_, _> = fields.into_iter().collect();
            let text = item(&map).join("\n");
            let node = document::read(&text).map_err(|problems| TestCaseError::fail(format!("{problems} in\n{text}")))?;
            prop_assert_eq!(to_json(&node), Value::Array(vec![Value::Object(map)]), "{}", text);
        }
    }
}
