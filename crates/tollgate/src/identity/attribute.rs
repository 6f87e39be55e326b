//! Attributes of a request: the names that keys are made of.

use std::fmt;

/// One property of a request, as a rule names it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Attribute {
    Ip,
    User,
    Email,
    Mac,
    ApiKey,
    Path,
    Method,
    Host,
    Field(FieldSource, Box<str>),
}

/// The source of a named field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[deny(missing_docs)]
#[non_exhaustive]
pub enum FieldSource {
    /// A header of the request.
    Header,
    /// A cookie.
    Cookie,
    /// A parameter of the query.
    Query,
    /// A claim of a token whose signature was verified.
    Jwt,
    /// A field of a JSON body.
    Json,
    /// A field of a form.
    Form,
    /// An attribute that the caller passes: a descriptor, a field of the decision API.
    Attr,
}

impl FieldSource {
    const ALL: [(FieldSource, &str); 7] = [
        (FieldSource::Header, "header"),
        (FieldSource::Cookie, "cookie"),
        (FieldSource::Query, "query"),
        (FieldSource::Jwt, "jwt"),
        (FieldSource::Json, "json"),
        (FieldSource::Form, "form"),
        (FieldSource::Attr, "attr"),
    ];

    pub(crate) fn parse(word: &str) -> Option<FieldSource> {
        Self::ALL.iter().find(|(_, name)| *name == word).map(|(source, _)| *source)
    }

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(source, _)| *source == self).map_or("", |(_, name)| name)
    }
}

impl Attribute {
    const PLAIN: [(Attribute, &str); 8] = [
        (Attribute::Ip, "ip"),
        (Attribute::User, "user"),
        (Attribute::Email, "email"),
        (Attribute::Mac, "mac"),
        (Attribute::ApiKey, "api_key"),
        (Attribute::Path, "path"),
        (Attribute::Method, "method"),
        (Attribute::Host, "host"),
    ];

    /// Reads `ip`, `user`, `header:X`, …. Names of headers are in lower case.
    pub fn parse(text: &str) -> Result<Attribute, String> {
        if let Some((plain, _)) = Self::PLAIN.iter().find(|(_, name)| *name == text) {
            return Ok(plain.clone());
        }
        let (source, name) = text.split_once(':').unwrap_or((text, ""));
        match FieldSource::parse(source) {
            Some(_) if name.is_empty() => Err(format!("'{text}' lacks a name: write {source}:NAME")),
            Some(source) => Ok(Attribute::field(source, name)),
            None => Err(format!(
                "unknown attribute '{text}': use ip, user, email, mac, api_key, header:X, cookie:X, query:X, \
                 jwt:X, json:X, form:X, path, method, host or attr:X"
            )),
        }
    }

    /// The name of an attribute that is not a field.
    pub(crate) fn plain_name(&self) -> &'static str {
        Self::PLAIN.iter().find(|(known, _)| known == self).map_or("", |(_, name)| name)
    }

    pub fn field(source: FieldSource, name: &str) -> Attribute {
        let name = if source == FieldSource::Header { name.to_ascii_lowercase() } else { name.to_owned() };
        Attribute::Field(source, name.into())
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::Field(source, name) => write!(f, "{}:{name}", source.name()),
            plain => f.write_str(plain.plain_name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_and_written() {
        for text in
            ["ip", "user", "email", "mac", "api_key", "path", "method", "host", "jwt:sub", "attr:plan"]
        {
            assert_eq!(Attribute::parse(text).map(|attribute| attribute.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(
            Attribute::parse("header:X-Tenant"),
            Ok(Attribute::Field(FieldSource::Header, "x-tenant".into()))
        );
        assert!(Attribute::parse("header:").expect_err("no name").contains("lacks a name"));
        assert!(Attribute::parse("colour").expect_err("unknown").contains("unknown attribute 'colour'"));
    }
}
