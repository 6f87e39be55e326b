//! The rules of a configuration as text for a server: without the settings that it does not need, some of which are
//! secret, and with the variables of this environment.

use serde_json::{Map, Value, json};
use tollgate::internal::document::{self, Node, Problems};
use tollgate_stores::rules::RuleText;

/// Lists and settings that change decisions, beside the rules.
const SETTINGS: [&str; 5] = ["allow", "bans", "identity", "ipv6_prefix", "case_insensitive_paths"];

/// The policy of a valid configuration, as JSON.
pub fn policy_text(config: &str) -> Result<String, Problems> {
    let mut root = document::read(config)?;
    document::expand_variables(&mut root, crate::config::environment).or(())?;
    let mut policy = Map::new();
    let mut rules = Vec::new();
    for entry in root.as_map().unwrap_or_default() {
        if entry.key() == "rules" {
            for (n, rule) in entry.value().as_list().unwrap_or_default().iter().enumerate() {
                rules.push(RuleText::from_node(rule, &format!("rules[{n}]"))?.into_text());
            }
        } else if SETTINGS.contains(&entry.key()) {
            policy.insert(entry.key().to_owned(), plain_json(entry.value()));
        }
    }
    let rest = Value::Object(policy).to_string();
    let separator = if rest == "{}" { "" } else { "," };
    Ok(format!("{{\"rules\":[{}]{separator}{}", rules.join(","), &rest[1..]))
}

/// Values of these settings are texts, numbers and booleans.
fn plain_json(node: &Node<'_>) -> Value {
    if node.is_null() {
        return Value::Null;
    }
    if let Some(list) = node.as_list() {
        return list.iter().map(plain_json).collect();
    }
    if let Some(entries) = node.as_map() {
        let entries = entries.iter().map(|entry| (entry.key().to_owned(), plain_json(entry.value())));
        return Value::Object(entries.collect());
    }
    match (node.as_bool(), node.as_u64(), node.as_str()) {
        (Some(flag), _, _) => json!(flag),
        (_, Some(number), _) => json!(number),
        (_, _, text) => json!(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::simulate::policy_of;

    #[test]
    fn only_what_decides_is_sent_and_it_means_the_same() {
        let config = "
counters: redis://:secret@127.0.0.1
listen: { admin: 127.0.0.1:0 }
ipv6_prefix: 48
case_insensitive_paths: true
identity: { user: 'header:x-user' }
allow: [ip:192.0.2.3]
bans: [{ key: 'ip:203.0.113.9', until: 2099-01-01T00:00:00Z, reason: \"a, b\" }]
rules:
  - { id: login, match: POST /login, key: ip, limits: [5/m, 20/h], track: yes, mode: off }
  - { id: short, uid: '42', url: /search, time: minute, requests: 5 }
";
        let text = policy_text(config).expect("a policy");
        assert!(!text.contains("secret") && !text.contains("listen"), "{text}");
        let policy = policy_of(&text).unwrap_or_else(|problems| panic!("{problems}: {text}"));
        let ids: Vec<_> = policy.rules().iter().map(|rule| rule.id.to_string()).collect();
        assert_eq!(ids, ["login", "short"]);
        assert_eq!((policy.allow_list().count(), policy.file_bans().count()), (1, 1));
        assert_eq!(policy.settings().ipv6_prefix, 48);
        assert_eq!(policy_text("rules: []").expect("a policy"), r#"{"rules":[]}"#);
        assert!(policy_text("rules: [{ id: a, limit: '${NO_SUCH_VARIABLE}' }]").is_err());
    }
}
