//! A rule as columns: one for each field of the short form, and one for all other options, if there are any.
//!
//! A row is as large as its rule requires; [`RuleRow::from_json`] and [`RuleRow::to_json`] are inverse.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::rules::DbError;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct RuleRow {
    pub(super) id: String,
    pub(super) uid: Option<String>,
    pub(super) method: Option<String>,
    pub(super) url: Option<String>,
    pub(super) unit: Option<String>,
    pub(super) requests: Option<i64>,
    pub(super) algorithm: Option<String>,
    pub(super) options: Option<String>,
}

impl RuleRow {
    pub(super) fn from_json(text: &str) -> Result<RuleRow, DbError> {
        let corrupt = || DbError::Corrupt(format!("the rule {text}"));
        let mut map: Map<String, Value> = serde_json::from_str(text).map_err(|_| corrupt())?;
        let mut row = RuleRow { id: take_string(&mut map, "id").ok_or_else(corrupt)?, ..RuleRow::default() };
        row.uid = take_string(&mut map, "uid");
        row.url = take_string(&mut map, "url");
        let url = row.url.as_deref().and_then(|url| url.split_once(' '));
        if let Some((method, path)) = url.map(|(method, path)| (method.to_owned(), path.to_owned())) {
            row.method = Some(method);
            row.url = Some(path);
        }
        row.unit = take_string(&mut map, "time");
        row.requests = map.get("requests").and_then(Value::as_i64);
        if row.requests.is_some() {
            map.shift_remove("requests");
        }
        row.algorithm = take_string(&mut map, "algorithm");
        row.options = (!map.is_empty()).then(|| Value::Object(map).to_string());
        Ok(row)
    }

    pub(super) fn to_json(&self) -> String {
        let mut text = String::with_capacity(160);
        text.push_str("{\"id\":");
        push_quoted(&mut text, &self.id);
        let url = match (&self.method, &self.url) {
            (Some(method), Some(url)) => Some(format!("{method} {url}")),
            (_, url) => url.clone(),
        };
        for (name, value) in [("uid", &self.uid), ("url", &url), ("time", &self.unit)] {
            push_field(&mut text, name, value.as_deref());
        }
        if let Some(requests) = self.requests {
            write!(text, ",\"requests\":{requests}").expect("a text can be written");
        }
        push_field(&mut text, "algorithm", self.algorithm.as_deref());
        if let Some(options) = self.options.as_deref().and_then(|options| options.strip_prefix('{')) {
            text.push(',');
            text.push_str(options);
        } else {
            text.push('}');
        }
        text
    }
}

/// Removes a field that is a string; any other stays among the options.
fn take_string(map: &mut Map<String, Value>, name: &str) -> Option<String> {
    match map.get(name) {
        Some(Value::String(_)) => match map.shift_remove(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

fn push_field(text: &mut String, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        text.push_str(",\"");
        text.push_str(name);
        text.push_str("\":");
        push_quoted(text, value);
    }
}

fn push_quoted(text: &mut String, value: &str) {
    let plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
    if value.bytes().all(plain) {
        text.push('"');
        text.push_str(value);
        text.push('"');
    } else {
        text.push_str(&Value::from(value).to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_and_its_row_are_equivalent() {
        for text in [
            r#"{"id":"short","uid":"42","url":"GET /search","time":"minute","requests":5}"#,
            r#"{"id":"a","url":"/x/**","time":"hour","requests":9,"algorithm":"sliding-log","mode":"shadow"}"#,
            r#"{"id":"b","match":"POST /login","key":["email","ip"],"limits":["5/m","20/h"]}"#,
            r#"{"id":"c","uid":"a\"\\\n","url":"/ü","time":"s","requests":1}"#,
            r#"{"id":"d","url":"GET  /two","limit":"5/m"}"#,
        ] {
            assert_eq!(RuleRow::from_json(text).expect("a rule").to_json(), text);
        }
    }

    #[test]
    fn the_short_form_has_no_options() {
        let text = r#"{"id":"short","uid":"42","url":"GET /search","time":"minute","requests":5}"#;
        let row = RuleRow::from_json(text).expect("a rule");
        assert_eq!(
            (row.method.as_deref(), row.url.as_deref(), row.options),
            (Some("GET"), Some("/search"), None)
        );
        assert!(RuleRow::from_json("[]").is_err());
    }
}
