//! The JSON of `/v1/check`, parsed strictly.

use std::borrow::Cow;
use std::ops::Deref;

use serde::{Deserialize, Deserializer};
use tollgate::Hit;
use tollgate::internal::identity::address::parse_ip;
use tollgate::internal::identity::{FieldSource, normal};
use tollgate::internal::request::fields;

use crate::check_bounds::{MAX_COST, MAX_PATH_BYTES, MAX_VALUE_BYTES};
use crate::json_body::{self, JsonObject, shorten};
use crate::response::ProblemDetails;

const MAX_FIELDS: usize = 256;

/// A null is the same as an absent field.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct CheckRequest<'a> {
    #[serde(borrow)]
    domain: Option<Text<'a>>,
    #[serde(borrow)]
    method: Option<Text<'a>>,
    #[serde(borrow)]
    path: Option<Text<'a>>,
    #[serde(borrow)]
    host: Option<Text<'a>>,
    #[serde(borrow)]
    ip: Option<Text<'a>>,
    #[serde(borrow)]
    user: Option<ScalarText<'a>>,
    #[serde(borrow)]
    email: Option<Text<'a>>,
    #[serde(borrow)]
    mac: Option<Text<'a>>,
    #[serde(borrow)]
    api_key: Option<Text<'a>>,
    #[serde(borrow)]
    headers: Option<MultiMap<'a>>,
    #[serde(borrow)]
    attributes: Option<MultiMap<'a>>,
    cost: Option<u64>,
    peek: Option<bool>,
    receipt: Option<bool>,
}

/// A text. An `Option<Cow<str>>` itself would be copied by serde.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> CheckRequest<'a> {
    pub fn parse(body: &'a [u8]) -> Result<Self, ProblemDetails> {
        json_body::parse(body).map(|JsonObject(request)| request)
    }

    pub fn parse_batch(body: &'a [u8]) -> Result<Vec<Self>, ProblemDetails> {
        let requests: Vec<JsonObject<Self>> = json_body::parse(body)?;
        Ok(requests.into_iter().map(|JsonObject(each)| each).collect())
    }

    /// `userId=&ipAddress=`
    pub fn from_query(query: &'a str) -> Result<Self, ProblemDetails> {
        let mut names = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let name = pair.split('=').next().unwrap_or_default();
            if !matches!(name, "userId" | "ipAddress") {
                let detail = format!("unknown parameter '{name}': use userId and ipAddress");
                return Err(ProblemDetails::bad_field(name, detail));
            }
            if names.contains(&name) {
                return Err(ProblemDetails::bad_field(name, format!("'{name}' is given twice")));
            }
            names.push(name);
        }
        let value = |name| fields::query(query, name).filter(|value| !value.is_empty());
        Ok(CheckRequest {
            user: value("userId").map(ScalarText),
            ip: value("ipAddress").map(Text),
            ..CheckRequest::default()
        })
    }

    /// Whether nothing is to be charged.
    pub fn is_peek(&self) -> bool {
        self.peek.unwrap_or_default()
    }

    /// Whether the caller requires a receipt.
    pub fn wants_receipt(&self) -> bool {
        self.receipt.unwrap_or_default()
    }

    /// The hit of the request.
    pub fn hit(&self) -> Result<Hit<'_>, ProblemDetails> {
        let text = |name: &str, value: Option<&str>, max: usize| match value {
            Some(value) if value.len() > max => {
                Err(ProblemDetails::bad_field(name, format!("'{name}' is longer than {max} bytes")))
            }
            _ => Ok(()),
        };
        text("domain", self.domain.as_deref(), MAX_VALUE_BYTES)?;
        text("method", self.method.as_deref(), MAX_VALUE_BYTES)?;
        text("host", self.host.as_deref(), MAX_VALUE_BYTES)?;
        text("path", self.path.as_deref(), MAX_PATH_BYTES)?;
        text("email", self.email.as_deref(), MAX_VALUE_BYTES)?;
        text("api_key", self.api_key.as_deref(), MAX_VALUE_BYTES)?;
        let user = self.user.as_ref().map(|ScalarText(user)| user.as_ref());
        text("user", user, MAX_VALUE_BYTES)?;
        let [method, host, path] =
            [&self.method, &self.host, &self.path].map(|part| part.as_deref().unwrap_or_default());
        let mut hit = Hit::on(method, host, path).cost(self.cost()?);
        if let Some(ip) = &self.ip {
            let detail = || format!("'ip' is not an IP address: {}", shorten(ip));
            hit = hit.ip(parse_ip(ip).ok_or_else(|| ProblemDetails::bad_field("ip", detail()))?);
        }
        if let Some(mac) = &self.mac {
            let detail = || format!("'mac' is not a MAC address: {}", shorten(mac));
            hit = hit.mac(
                normal::mac(mac).ok_or_else(|| ProblemDetails::bad_field("mac", detail()))?.into_owned(),
            );
        }
        if let Some(domain) = self.domain.as_deref().filter(|domain| !domain.is_empty()) {
            hit = hit.domain(domain);
        }
        if let Some(user) = user {
            hit = hit.user(user);
        }
        if let Some(email) = self.email.as_deref() {
            hit = hit.email(email);
        }
        if let Some(api_key) = self.api_key.as_deref() {
            hit = hit.api_key(api_key);
        }
        let hit = with_fields(hit, "headers", FieldSource::Header, &self.headers)?;
        with_fields(hit, "attributes", FieldSource::Attr, &self.attributes)
    }

    fn cost(&self) -> Result<u64, ProblemDetails> {
        match self.cost.unwrap_or(1) {
            cost if cost > MAX_COST => {
                Err(ProblemDetails::bad_field("cost", format!("'cost' is above {MAX_COST}")))
            }
            cost => Ok(cost),
        }
    }
}

fn with_fields<'h>(
    mut hit: Hit<'h>,
    whole: &str,
    source: FieldSource,
    fields: &'h Option<MultiMap<'_>>,
) -> Result<Hit<'h>, ProblemDetails> {
    let Some(MultiMap(fields)) = fields else { return Ok(hit) };
    if fields.len() > MAX_FIELDS {
        return Err(ProblemDetails::bad_field(
            whole,
            format!("'{whole}' has more than {MAX_FIELDS} entries"),
        ));
    }
    for (name, ScalarText(value)) in fields {
        if name.len().max(value.len()) > MAX_VALUE_BYTES {
            let field = format!("{whole}.{}", shorten(name));
            let detail = format!("'{field}' is longer than {MAX_VALUE_BYTES} bytes");
            return Err(ProblemDetails::bad_field(field, detail));
        }
        let lower = source == FieldSource::Header && name.bytes().any(|byte| byte.is_ascii_uppercase());
        let name = if lower { Cow::Owned(name.to_ascii_lowercase()) } else { Cow::Borrowed(name.as_ref()) };
        hit = hit.field(source, name, value.as_ref());
    }
    Ok(hit)
}

/// A map in which a name may occur more than once: each of its values counts.
struct MultiMap<'a>(Vec<(Cow<'a, str>, ScalarText<'a>)>);

impl<'de: 'a, 'a> Deserialize<'de> for MultiMap<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = MultiMap<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<M: serde::de::MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut pairs = Vec::new();
                while let Some((ScalarText(name), value)) =
                    map.next_entry::<ScalarText<'de>, ScalarText<'de>>()?
                {
                    pairs.push((name, value));
                }
                Ok(MultiMap(pairs))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// A string, or a number or boolean converted to its text.
#[derive(Default)]
struct ScalarText<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for ScalarText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text or a number")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(text))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text.to_owned()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(Cow::Owned(number.to_string()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(Cow::Owned(number.to_string()))
            }

            fn visit_bool<E>(self, truth: bool) -> Result<Self::Value, E> {
                Ok(Cow::Owned(truth.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor).map(ScalarText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(body: &str) -> (String, String) {
        let problem =
            CheckRequest::parse(body.as_bytes()).and_then(|request| request.hit().map(drop)).expect_err(body);
        (problem.field.unwrap_or_default(), problem.detail)
    }

    /// The first of them was taken.
    #[test]
    fn a_parameter_of_a_query_that_is_given_twice_is_rejected() {
        assert!(CheckRequest::from_query("userId=ann&ipAddress=10.0.0.1").is_ok());
        for (query, name) in
            [("userId=ann&userId=bob", "userId"), ("ipAddress=::1&userId=ann&ipAddress=::1", "ipAddress")]
        {
            let problem = CheckRequest::from_query(query).map(drop).expect_err(query);
            assert_eq!(problem.field.as_deref(), Some(name), "{query}");
        }
    }

    #[test]
    fn bad_input_is_rejected_by_the_name_of_its_field() {
        for (body, name) in [
            (r#"{"ip": "1.2.3"}"#, "ip"),
            (r#"{"mac": "xyz"}"#, "mac"),
            (r#"{"colour": "red"}"#, "colour"),
            (r#"{"cost": -1}"#, "cost"),
            (r#"{"cost": "many"}"#, "cost"),
            (r#"{"cost": 1.5}"#, "cost"),
            (r#"{"peek": 1}"#, "peek"),
            (r#"{"headers": []}"#, "headers"),
            (r#"{"headers": {"a": {}}}"#, "headers.a"),
            (r#"{"user": "a", "user": "b"}"#, "user"),
            ("not json", "body"),
            ("[]", "body"),
            ("", "body"),
            ("{} {}", "body"),
        ] {
            let (found, detail) = field(body);
            assert_eq!(found, name, "{body}: {detail}");
        }
        let long = format!(r#"{{"user": "{}"}}"#, "x".repeat(5000));
        assert_eq!(field(&long).0, "user");
        let many = format!(
            r#"{{"attributes": {{{}}}}}"#,
            (0..300).map(|n| format!("\"{n}\":1")).collect::<Vec<_>>().join(",")
        );
        assert_eq!(field(&many).0, "attributes");
        assert!(CheckRequest::parse(b"\xff\xfe").is_err());
    }
}
