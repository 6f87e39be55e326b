//! One view as lines of text.

use serde_json::Value;

use crate::cli::out::{escape_control, text_field};
use crate::cli::table::TextTable;

/// Rules that are listed above the keys.
const RULES: usize = 8;

/// At most `rows` lines.
pub fn lines(view: &Value, rows: usize) -> Vec<String> {
    let mut lines = vec![summary(view)];
    lines.extend(missing(view).map(missing_row));
    let rate = &view["per_second"];
    let per_second = |name: &str| format!("{:.1}/s", rate[name].as_f64().unwrap_or_default());
    lines.push(format!(
        "{} allowed, {} denied, {} banned, {} would be denied",
        per_second("allowed"),
        per_second("denied"),
        per_second("banned"),
        per_second("shadow_denied")
    ));
    let rules: Vec<_> = view["rules"].as_array().into_iter().flatten().take(RULES).map(rule_row).collect();
    if !rules.is_empty() {
        lines.push(String::new());
        let head = &["RULE", "ALLOWED 1m", "DENIED 1m", "SHADOW 1m", "NEAR 1m", "CLIENTS 1h"];
        lines.extend(TextTable::new(head).lines(&rules));
    }
    lines.push(String::new());
    lines.push(format!("keys, {} within {}", outcome(view), text_field(view, "window")));
    let keys: Vec<_> = view["keys"].as_array().into_iter().flatten().map(key_row).collect();
    match keys.is_empty() {
        true => lines.push("none".to_owned()),
        false => lines.extend(TextTable::new(&["COUNT", "RULE", "KEY"]).lines(&keys)),
    }
    lines.truncate(rows.max(1));
    lines
}

fn summary(view: &Value) -> String {
    let status = text_field(view, "status");
    let enforce = text_field(view, "enforce");
    let answered: Vec<_> =
        view["nodes"]["answered"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut summary = match view["scope"].as_str() {
        Some("fleet") => {
            let total = answered.len() + missing(view).count();
            format!(
                "tollgate, {} of {total} nodes answer; this one: {status}, enforce {enforce}",
                answered.len()
            )
        }
        _ => format!("tollgate, node {}: {status}, enforce {enforce}", answered.join(", ")),
    };
    if enforce != "on" {
        summary += " - NOTHING IS DENIED";
    }
    escape_control(&summary)
}

fn missing(view: &Value) -> impl Iterator<Item = &Value> {
    view["nodes"]["missing"].as_array().into_iter().flatten()
}

fn missing_row(node: &Value) -> String {
    escape_control(&format!("not counted: {}: {}", text_field(node, "address"), text_field(node, "why")))
}

fn outcome(view: &Value) -> &'static str {
    match view["outcome"].as_str() {
        Some("allowed") => "most allowed first",
        Some("near") => "near their limit, most often first",
        _ => "most denied first",
    }
}

fn rule_row(rule: &Value) -> Vec<String> {
    let number = |name: &str| rule[name].to_string();
    let mut row = vec![text_field(rule, "rule")];
    row.extend(["allowed", "denied", "shadow_denied", "near_limit", "clients_limited"].map(number));
    row
}

/// The true count is between the difference and the count.
fn key_row(key: &Value) -> Vec<String> {
    let error = key["error"].as_u64().filter(|error| *error > 0);
    let bound = error.map(|error| format!(" -{error}")).unwrap_or_default();
    // Each node has another mark for a masked key.
    let node = key["node"].as_str().map(|node| escape_control(&format!(" on {node}"))).unwrap_or_default();
    let name = format!("{}{node}", text_field(key, "key"));
    vec![format!("{}{bound}", key["count"]), text_field(key, "rule"), name]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_view_lists_rules_and_keys_and_fits_its_rows() {
        let view = json!({
            "status": "ok", "enforce": "shadow", "outcome": "denied", "window": "1m",
            "per_second": { "allowed": 12.34, "denied": 3.0, "banned": 0.0, "shadow_denied": 0.0 },
            "rules": [{ "rule": "login", "allowed": 9, "denied": 30, "shadow_denied": 0, "near_limit": 1, "clients_limited": 2 }],
            "keys": [{ "rule": "login", "key": "ip:192.0.2.1\u{1b}[2J", "count": 30, "error": 2 }],
            "nodes": { "answered": ["5a1e53d2"], "missing": [] },
        });
        let all = lines(&view, 100);
        assert_eq!(all[0], "tollgate, node 5a1e53d2: ok, enforce shadow - NOTHING IS DENIED");
        assert_eq!(all[1], "12.3/s allowed, 3.0/s denied, 0.0/s banned, 0.0/s would be denied");
        assert_eq!(all[4], "login  9           30         0          1        2");
        assert_eq!(all.last().map(String::as_str), Some("30 -2  login  ip:192.0.2.1\\u{1b}[2J"));
        assert_eq!(lines(&view, 3).len(), 3);
    }

    #[test]
    fn a_view_of_all_nodes_names_those_that_do_not_answer() {
        let view = json!({
            "scope": "fleet", "status": "ok", "enforce": "on", "outcome": "denied", "window": "1m",
            "keys": [{ "rule": "mail", "key": "email:#0123456789abcdef", "count": 3, "error": 0, "node": "77c0a1b9" }],
            "nodes": {
                "answered": ["5a1e53d2", "77c0a1b9"],
                "missing": [{ "node": "0e4d2f10", "address": "https://node3:7070", "why": "no answer within 2s" }],
            },
        });
        let all = lines(&view, 100);
        assert_eq!(all[0], "tollgate, 2 of 3 nodes answer; this one: ok, enforce on");
        assert_eq!(all[1], "not counted: https://node3:7070: no answer within 2s");
        assert_eq!(all.last().map(String::as_str), Some("3      mail  email:#0123456789abcdef on 77c0a1b9"));
    }
}
