//! Rules and bans as stored: compact JSON that the library's parser reads.

use serde_json::{Map, Number, Value};
use tollgate::Time;
use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::document::{self, Node, Problem, Problems, TextPosition};
use tollgate::internal::rule::{Rule, parse};

use crate::rules::{DbError, ItemKind};

/// The fields of the short form, which have columns of their own; written first and in this order.
pub(super) const COLUMNS: [&str; 6] = ["id", "uid", "url", "time", "requests", "algorithm"];
/// Boolean fields. In any other field `off` is a string.
const BOOLEAN_KEYS: [&str; 2] = ["track", "count_denied"];

/// A valid rule as compact JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleText {
    id: Box<str>,
    text: String,
}

impl RuleText {
    /// Parses one rule, in YAML or JSON.
    pub fn parse(text: &str) -> Result<RuleText, Problems> {
        RuleText::from_node(&document::read(text)?, "rule")
    }

    pub fn from_node(node: &Node<'_>, path: &str) -> Result<RuleText, Problems> {
        let mut problems = Problems::new();
        match parse::rule(node, path, &mut problems) {
            Some(rule) => RuleText::of(&rule, node, path),
            None => Err(problems),
        }
    }

    pub(super) fn of(rule: &Rule, node: &Node<'_>, path: &str) -> Result<RuleText, Problems> {
        let id = rule.id.as_str().into();
        let text = to_compact_json(node);
        if survives_json(node, "") {
            return Ok(RuleText { id, text });
        }
        let again = document::read(&text).and_then(|node| {
            let mut problems = Problems::new();
            let again = parse::rule(&node, path, &mut problems);
            problems.or(again)
        })?;
        if again.as_ref() != Some(rule) {
            let why = "has another meaning as JSON: write numbers and booleans in their plain form";
            let mut problems = Problems::new();
            problems.push(Problem::new(Some(node.position()), path, why));
            return Err(problems);
        }
        Ok(RuleText { id, text })
    }

    /// From the stored text of [`RuleText::as_str`] and its id.
    pub(super) fn from_stored(id: Box<str>, text: String) -> RuleText {
        RuleText { id, text }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn into_text(self) -> String {
        self.text
    }
}

/// A rule of a longer text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParsedRule {
    pub position: TextPosition,
    pub rule: Rule,
    pub text: RuleText,
}

/// Parses the stored text of a ban.
pub fn parse_ban(text: &str) -> Result<Ban, DbError> {
    let corrupt = || DbError::Corrupt(format!("the ban {text}"));
    let ban: Value = serde_json::from_str(text).map_err(|_| corrupt())?;
    let source = ban["source"].as_str().and_then(BanSource::parse).ok_or_else(corrupt)?;
    let strikes = ban["strikes"].as_u64().and_then(|strikes| u32::try_from(strikes).ok());
    Ok(Ban {
        until: ban["until"].as_u64().map(Time::from_nanos).ok_or_else(corrupt)?,
        reason: ban["reason"].as_str().ok_or_else(corrupt)?.to_owned(),
        source,
        strikes: strikes.ok_or_else(corrupt)?,
    })
}

/// When an item expires, in nanoseconds; `None` if it never does.
pub(super) fn expiry(kind: ItemKind, text: &str) -> Result<Option<i64>, DbError> {
    Ok(if kind == ItemKind::Ban { i64::try_from(parse_ban(text)?.until.nanos()).ok() } else { None })
}

fn to_compact_json(node: &Node<'_>) -> String {
    let Value::Object(mut all) = to_json(node, "") else { return "{}".to_owned() };
    let mut map = Map::new();
    for name in COLUMNS {
        map.extend(all.shift_remove(name).map(|value| (name.to_owned(), value)));
    }
    map.extend(all);
    Value::Object(map).to_string()
}

/// Whether [`to_json`] preserves every way in which a value can be parsed: string, number or boolean.
fn survives_json(node: &Node<'_>, name: &str) -> bool {
    if let Some(entries) = node.as_map() {
        return entries.iter().all(|entry| survives_json(entry.value(), entry.key()));
    }
    if let Some(nodes) = node.as_list() {
        return nodes.iter().all(|node| survives_json(node, ""));
    }
    match (node.as_u64(), node.as_bool(), node.as_str()) {
        (Some(number), _, Some(text)) => number.to_string() == text && name != "uid",
        (_, Some(_), _) => BOOLEAN_KEYS.contains(&name),
        _ => true,
    }
}

fn to_json(node: &Node<'_>, name: &str) -> Value {
    if let Some(entries) = node.as_map() {
        let entries =
            entries.iter().map(|entry| (entry.key().to_owned(), to_json(entry.value(), entry.key())));
        return Value::Object(entries.collect());
    }
    if let Some(nodes) = node.as_list() {
        return Value::Array(nodes.iter().map(|node| to_json(node, "")).collect());
    }
    let Some(text) = node.as_str() else { return Value::Null };
    match (node.as_u64(), node.as_bool()) {
        (Some(number), _) if number.to_string() == text && name != "uid" => Number::from(number).into(),
        (_, Some(truth)) if BOOLEAN_KEYS.contains(&name) => truth.into(),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{ParsedRule, for_each_rule};

    fn rules_of(text: &str) -> Result<Vec<ParsedRule>, Problems> {
        for_each_rule(text, Vec::new, Vec::push)
    }

    #[test]
    fn a_rule_is_written_compactly_and_in_one_order() {
        let yaml = "requests: 5\nurl: GET /search\ntime: minute\nuid: 42\nid: short\nmode: off\ntrack: yes\n";
        let text = r#"{"id":"short","uid":"42","url":"GET /search","time":"minute","requests":5,"mode":"off","track":true}"#;
        let rule = RuleText::parse(yaml).expect("valid");
        assert_eq!((rule.id(), rule.as_str()), ("short", text));
        assert_eq!(RuleText::parse(text).expect("valid"), rule);
    }

    #[test]
    fn the_meaning_of_a_rule_is_preserved() {
        let yaml = "rules:\n- {id: a, match: POST /login, key: [email, ip], limits: [5/m, 20/h], algorithm: sliding-log, \
                    ban: {key: [ip], after: 3, within: 10m, for: 1h, max: 24h}, overrides: [{email: a@b.c, limits: [50/m]}]}\n\
                    - {id: b, limit: 007/m, cost: 2}\n";
        assert_eq!(rules_of(yaml).expect("valid").len(), 2);
        let error = rules_of("rules: []\nlisten: {}").expect_err("more than rules").to_string();
        assert!(error.starts_with("2:1: listen: only 'rules'"), "{error}");
        let error = rules_of("- {id: a, limit: 9/m, cost: 007}").expect_err("a number that JSON lacks");
        assert!(error.to_string().contains("cost"), "{error}");
    }

    #[test]
    fn one_bad_rule_among_many_is_named_by_its_line() {
        let mut yaml: String = (0..1_000).map(|n| format!("- {{id: r{n}, limit: 5/m}}\n")).collect();
        yaml += "- {id: bad, limit: five}\n- {id: r7, limit: 5/m}\n- {id: odd, limit: 5/m, colour: red}\n";
        let error = rules_of(&yaml).expect_err("three are bad").to_string();
        for line in ["1001:", "1002:", "1003:"] {
            assert!(error.contains(line), "{error}");
        }
    }
}
