//! Normal forms of identity values, so that one user is one key.
//!
//! Invariant: normalising is idempotent, and a value in normal form is borrowed, never copied. An invalid value is
//! `None`; the rule decides what a missing value means. This module must not know where values come from, and it
//! checks no more than distinguishing users needs: it does not validate addresses.

use std::borrow::Cow;

use crate::identity::{FieldSource, cookie, key};

/// The lengths of an EUI-48 and an EUI-64, in bytes.
const MAC_BYTES: [usize; 2] = [6, 8];

/// A MAC address as `aa:bb:cc:dd:ee:ff`, an EUI-64 with eight groups.
///
/// Reads `AA-BB-CC-DD-EE-FF`, `aa:bb:cc:dd:ee:ff`, `aabb.ccdd.eeff` and
/// `AABBCCDDEEFF`.
pub fn mac(text: &str) -> Option<Cow<'_, str>> {
    let text = text.trim_ascii();
    if !is_mac(text) {
        return None;
    }
    if text[2..].starts_with(':') && !text.bytes().any(|b| b.is_ascii_uppercase()) {
        return Some(Cow::Borrowed(text));
    }
    let mut normal = String::with_capacity(MAC_BYTES[1] * 3);
    for (at, digit) in text.chars().filter(char::is_ascii_hexdigit).enumerate() {
        if at > 0 && at % 2 == 0 {
            normal.push(':');
        }
        normal.push(digit.to_ascii_lowercase());
    }
    Some(Cow::Owned(normal))
}

/// An email address in lower case, without surrounding space or a final dot.
///
/// The local part is in lower case too: no major provider distinguishes case there, and a limit must not be bypassed
/// by changing it.
pub fn email(text: &str) -> Option<Cow<'_, str>> {
    let text = text.trim_ascii_start().trim_end_matches(|c: char| c == '.' || c.is_ascii_whitespace());
    let (local, domain) = text.rsplit_once('@')?;
    if local.is_empty() || domain.is_empty() {
        return None;
    }
    Some(if is_lower(text) { Cow::Borrowed(text) } else { Cow::Owned(text.to_lowercase()) })
}

/// Any other value, without surrounding ASCII white space; blank is missing. Other white space is part of a value: an
/// API that does not trim it sees another value, and a value of nothing else would be missing here and present there.
#[inline]
pub fn text(text: &str) -> Option<&str> {
    let graphic = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_graphic);
    if graphic(text.as_bytes().first()) && graphic(text.as_bytes().last()) {
        return Some(text); // the common case
    }
    Some(text.trim_ascii()).filter(|text| !text.is_empty())
}

/// The scheme and the credentials of an `Authorization` value, with one space between them. The scheme is in lower case
/// except for its first letter (`Bearer abc`): schemes are case-insensitive (RFC 9110, 11.1).
fn credentials(value: &str) -> Option<Cow<'_, str>> {
    let value = text(value)?;
    let Some((scheme, rest)) = value.split_once([' ', '\t']) else { return Some(Cow::Borrowed(value)) };
    let credentials = rest.trim_ascii_start();
    let is_lower = |byte: u8| !byte.is_ascii_uppercase();
    let is_normal = scheme.len() + 1 + credentials.len() == value.len()
        && !value[scheme.len()..].starts_with('\t')
        && !scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme.bytes().skip(1).all(is_lower);
    if is_normal {
        return Some(Cow::Borrowed(value));
    }
    let mut scheme = scheme.to_ascii_lowercase();
    if let Some(first) = scheme.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    Some(Cow::Owned(format!("{scheme} {credentials}")))
}

/// The value of a named field. An email address in a body or a query is normalised to lower case.
pub(crate) fn field<'v>(source: FieldSource, name: &str, value: Cow<'v, str>) -> Option<Cow<'v, str>> {
    if is_email_field(source, name) {
        return Some(Cow::Owned(key::email(&value))).filter(|email: &Cow<'_, str>| !email.is_empty());
    }
    match source {
        FieldSource::Cookie => mapped(value, cookie::normal),
        FieldSource::Header if name == "authorization" => mapped(value, credentials),
        _ => mapped(value, |value| text(value).map(Cow::Borrowed)),
    }
}

/// The normal form of a value; a value in normal form is not copied.
fn mapped<'v>(value: Cow<'v, str>, normal: impl Fn(&str) -> Option<Cow<'_, str>>) -> Option<Cow<'v, str>> {
    match value {
        Cow::Borrowed(value) => normal(value),
        Cow::Owned(value) => {
            let changed = match normal(&value)? {
                Cow::Borrowed(same) if same.len() == value.len() => None,
                other => Some(other.into_owned()),
            };
            Some(Cow::Owned(changed.unwrap_or(value)))
        }
    }
}

/// `json:email`, `json:user.email`, `form:email` and `query:email`.
fn is_email_field(source: FieldSource, name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    matches!(source, FieldSource::Json | FieldSource::Form | FieldSource::Query)
        && last.eq_ignore_ascii_case("email")
}

fn is_mac(text: &str) -> bool {
    let bytes = text.as_bytes();
    let separator = bytes.iter().copied().find(|b| !b.is_ascii_hexdigit());
    let width = match separator {
        None => bytes.len(),
        Some(b':' | b'-') => 2,
        Some(b'.') => 4,
        Some(_) => return false,
    };
    let mut groups = bytes.split(|b| Some(*b) == separator);
    let regular = groups.all(|group| group.len() == width && group.iter().all(u8::is_ascii_hexdigit));
    let digits = bytes.iter().filter(|b| b.is_ascii_hexdigit()).count();
    regular && MAC_BYTES.iter().any(|count| count * 2 == digits)
}

fn is_lower(text: &str) -> bool {
    if text.is_ascii() {
        return !text.bytes().any(|b| b.is_ascii_uppercase());
    }
    text.chars().all(|c| c.to_lowercase().eq([c]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_mac(text: &str, expected: Option<&str>) {
        assert_eq!(mac(text).as_deref(), expected, "{text:?}");
    }

    #[track_caller]
    fn check_email(text: &str, expected: Option<&str>) {
        let normal = email(text);
        assert_eq!(normal.as_deref(), expected, "{text:?}");
        if let Some(normal) = normal {
            assert_eq!(email(&normal), Some(Cow::Borrowed(&*normal)), "its own normal form");
        }
    }

    #[test]
    fn every_spelling_of_a_mac_is_one_mac() {
        for text in [
            "aa:bb:cc:dd:ee:0f",
            "AA:BB:CC:DD:EE:0F",
            "AA-BB-CC-DD-EE-0F",
            "aa-bb-cc-dd-ee-0f",
            "aabb.ccdd.ee0f",
            "AABB.CCDD.EE0F",
            "AABBCCDDEE0F",
            "aabbccddee0f",
            " aa:bb:cc:dd:ee:0f\t",
        ] {
            check_mac(text, Some("aa:bb:cc:dd:ee:0f"));
        }
        for text in
            ["01-23-45-67-89-AB-CD-EF", "01:23:45:67:89:ab:cd:ef", "0123.4567.89ab.cdef", "0123456789ABCDEF"]
        {
            check_mac(text, Some("01:23:45:67:89:ab:cd:ef"));
        }
    }

    #[test]
    fn invalid_macs_have_no_normal_form() {
        for text in [
            "",
            " ",
            ":",
            ".",
            "-----",
            "aa",
            "aa:bb:cc:dd:ee",
            "aa:bb:cc:dd:ee:ff:",
            ":aa:bb:cc:dd:ee:ff",
            "aa:bb:cc:dd:ee:ff:00",
            "aa:bb:cc:dd:ee:ff:00:11:22",
            "aa:bb-cc:dd-ee:ff",
            "aa:bb:cc:dd:ee:fg",
            "a:b:c:d:e:f",
            "aabb:ccdd:eeff",
            "aabb.ccdd",
            "aabbcc.ddeeff",
            "aabbccddeef",
            "aabbccddeeff0",
            "aabbccddeeff00",
            "0xaabbccddeeff",
            "aa bb cc dd ee ff",
            "aa::bb:cc:dd:ee",
            "ａａ:bb:cc:dd:ee:ff",
            "éabbccddeeff",
            "aa:bb:cc:dd:ee:ff\0",
        ] {
            check_mac(text, None);
        }
        check_mac(&"a".repeat(1 << 20), None);
        check_mac(&"aa:".repeat(1 << 18), None);
    }

    #[test]
    fn every_spelling_of_an_email_is_one_email() {
        for text in
            ["a@example.com", "A@Example.COM", " a@example.com\r\n", "a@example.com.", "a@example.com. ."]
        {
            check_email(text, Some("a@example.com"));
        }
        check_email("JÜRGEN@BÜCHER.example", Some("jürgen@bücher.example"));
        check_email("İ@x", Some("i\u{307}@x"));
        check_email("ΟΔΟΣ@x", Some("οδος@x"));
        check_email("\u{a0}a@x", Some("\u{a0}a@x"));
        check_email("a.@x", Some("a.@x"));
        check_email("a@b@c", Some("a@b@c"));
    }

    #[test]
    fn an_email_has_a_local_part_and_a_domain() {
        for text in ["", " ", "a", "@", "a@", "@x", " @x", "a@ ", "a@.", "a@ . .", "@."] {
            check_email(text, None);
        }
    }

    #[test]
    fn normal_values_are_borrowed() {
        for text in ["a@example.com", " a@example.com. ", "jürgen@bücher.example", "用户@例子"] {
            assert!(matches!(email(text), Some(Cow::Borrowed(_))), "{text:?}");
        }
        for text in ["aa:bb:cc:dd:ee:ff", "01:23:45:67:89:ab:cd:ef"] {
            assert!(matches!(mac(text), Some(Cow::Borrowed(_))), "{text:?}");
        }
    }

    #[test]
    fn every_spelling_of_credentials_is_one() {
        let authorization = |value| field(FieldSource::Header, "authorization", Cow::Borrowed(value));
        for value in ["Bearer X", "bEARER X", "Bearer  X", "BEARER\tX", " bearer \t X "] {
            assert_eq!(authorization(value).as_deref(), Some("Bearer X"), "{value:?}");
        }
        for value in ["Bearer X", "X", "Digest a=\"B  c\"", "éa X"] {
            assert!(matches!(authorization(value), Some(Cow::Borrowed(same)) if same == value), "{value:?}");
        }
        assert_eq!(authorization(" "), None);
        let owned = field(FieldSource::Header, "authorization", Cow::Owned("basic  X".to_owned()));
        assert_eq!(owned.as_deref(), Some("Basic X"));
        let other = field(FieldSource::Header, "x-token", Cow::Borrowed("bearer  X"));
        assert_eq!(other.as_deref(), Some("bearer  X"));
    }

    #[test]
    fn text_is_trimmed_and_blank_is_missing() {
        assert_eq!(text(" 42\t"), Some("42"));
        assert_eq!(text("a b"), Some("a b"));
        assert_eq!(text("\0"), Some("\0"));
        assert_eq!(text(""), None);
        assert_eq!(text(" \r\n"), None);
        assert_eq!(text(" \u{2003}42\u{a0} "), Some("\u{2003}42\u{a0}"));
        assert_eq!(text("\u{2003}"), Some("\u{2003}"));
    }
}
