//! Lookups in raw HTTP fields: cookies, queries, credentials.
//!
//! Invariant: one pass, and no allocation unless the value found is encoded. The work is bounded by the field's
//! length, which the listener bounds. There is no bound on the number of pairs: a client could hide its key behind
//! padding, and a missing key is a limit not applied. This module must not know identities or rules; values are
//! unverified.

use std::borrow::Cow;

use super::percent::{self, Plus};

/// The cookies called `name` in a `Cookie` value (RFC 6265, 4.2), in their order.
///
/// Names are case-sensitive. The quotes around a value are not part of it.
pub fn cookies<'a>(header_value: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    header_value.split(';').filter_map(move |pair| {
        let (found, value) = pair.split_once('=')?;
        (found.trim_ascii() == name).then(|| unquoted(value.trim_ascii()))
    })
}

/// The first parameter called `name`; see [`parameters`].
pub fn query<'a>(raw_query: &'a str, name: &str) -> Option<Cow<'a, str>> {
    parameters(raw_query, name).next()
}

/// The parameters called `name`, in any case, of an `application/x-www-form-urlencoded` query or body, in their
/// order and decoded once.
///
/// A parameter without `=` has an empty value. Bytes that are not UTF-8 stay
/// as `%XX`.
pub fn parameters<'a>(raw_query: &'a str, name: &str) -> impl Iterator<Item = Cow<'a, str>> {
    raw_query.split('&').filter_map(move |pair| {
        let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
        let same = |found: &str| {
            let lower = percent::decode(found, Plus::Space).map(|byte| byte.to_ascii_lowercase());
            lower.eq(name.bytes().map(|byte| byte.to_ascii_lowercase()))
        };
        (!pair.is_empty() && same(found)).then(|| decoded(value))
    })
}

/// The token of a `Bearer` credential (RFC 6750, 2.1).
///
/// `None` for another scheme, and for a token that is empty or not one word of
/// visible ASCII.
pub fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.trim_ascii().split_once(' ')?;
    let token = token.trim_start_matches(' ');
    let is_token = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case("bearer") && is_token).then_some(token)
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value)
}

fn decoded(value: &str) -> Cow<'_, str> {
    if value.bytes().any(|b| matches!(b, b'%' | b'+')) {
        Cow::Owned(percent::text(percent::decode(value, Plus::Space).collect()))
    } else {
        Cow::Borrowed(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_cookie(header: &str, expected: Option<&str>) {
        assert_eq!(cookies(header, "sid").next(), expected, "{header:?}");
    }

    #[track_caller]
    fn check_query(raw: &str, expected: Option<&str>) {
        assert_eq!(query(raw, "api key").as_deref(), expected, "{raw:?}");
    }

    #[track_caller]
    fn check_bearer(header: &str, expected: Option<&str>) {
        assert_eq!(bearer(header), expected, "{header:?}");
    }

    #[test]
    fn a_cookie_is_found_by_its_exact_name() {
        check_cookie("sid=1", Some("1"));
        check_cookie("a=2; sid=1; b=3", Some("1"));
        check_cookie("a=2;sid=1", Some("1"));
        check_cookie(" sid = 1 ;", Some("1"));
        check_cookie("xsid=2; sidx=3; SID=4", None);
        check_cookie("a=sid=1", None);
        check_cookie("a=\"x\"; sid", None);
    }

    #[test]
    fn all_cookies_of_a_name_are_found() {
        let all = |header| cookies(header, "sid").collect::<Vec<_>>();
        assert_eq!(all("sid=1; a=3; sid=2"), ["1", "2"]);
        assert_eq!(all("sid; sid=2"), ["2"]);
        assert_eq!(all("sid=; sid=2"), ["", "2"]);
    }

    #[test]
    fn the_quotes_of_a_cookie_are_not_its_value() {
        check_cookie("sid=\"1\"", Some("1"));
        check_cookie("sid=\"\"", Some(""));
        check_cookie("sid=\"", Some("\""));
        check_cookie("sid=\"1", Some("\"1"));
        check_cookie("sid=a\"1\"", Some("a\"1\""));
    }

    #[test]
    fn a_cookie_value_is_otherwise_kept_as_written() {
        check_cookie("sid=a=b==", Some("a=b=="));
        check_cookie("sid=%41+é", Some("%41+é"));
        check_cookie("sid=a,b", Some("a,b"));
    }

    #[test]
    fn a_parameter_is_found_by_its_decoded_name() {
        check_query("api+key=1", Some("1"));
        check_query("a=2&api%20key=1", Some("1"));
        check_query("%61pi%20%6bey=1", Some("1"));
        check_query("api%2Bkey=2", None);
        check_query("api%2520key=2", None);
        check_query("xapi+key=2&api+keyx=2&=2", None);
        check_query("API+key=2", Some("2"));
        check_query("a=2;api+key=1", None);
        assert_eq!(query("api+key", "api+key"), None);
    }

    #[test]
    fn all_parameters_of_a_name_are_found() {
        let all = |raw| parameters(raw, "api key").collect::<Vec<_>>();
        assert_eq!(all("api+key=1&a=3&Api%20Key=2"), ["1", "2"]);
        assert_eq!(all("api+key&api+key=2"), ["", "2"]);
        assert_eq!(all("&&api+key=&api+key=2"), ["", "2"]);
    }

    #[test]
    fn a_parameter_is_decoded_once() {
        check_query("api+key=a+b%2Bc", Some("a b+c"));
        check_query("api+key=%2541", Some("%41"));
        check_query("api+key=a%26b%3Dc=d", Some("a&b=c=d"));
        check_query("api+key=%C3%A9", Some("é"));
        check_query("api+key=100%&a", Some("100%"));
        check_query("api+key=%ff%00", Some("%FF\0"));
    }

    #[test]
    fn a_value_without_escapes_is_borrowed() {
        assert!(matches!(query("a=1&b=é", "b"), Some(Cow::Borrowed("é"))));
        assert!(matches!(query("%61=1", "a"), Some(Cow::Borrowed("1"))));
    }

    #[test]
    fn a_bearer_token_is_found_whatever_the_case_of_its_scheme() {
        check_bearer("Bearer abc.d-e_f~+/==", Some("abc.d-e_f~+/=="));
        check_bearer("bearer abc", Some("abc"));
        check_bearer("BEARER   abc ", Some("abc"));
    }

    #[test]
    fn other_credentials_are_not_a_bearer_token() {
        for header in [
            "",
            " ",
            "Bearer",
            "Bearer ",
            "Bearer\tabc",
            "Bearerabc",
            "Basic abc",
            "abc",
            "Bearer abc def",
            "Bearer a,b c",
            "Bearer a\tb",
            "Bearer a\0b",
            "Bearer é",
            "Bearér abc",
            "Bear",
            "ééé abc",
            "Bearer\u{a0}abc",
        ] {
            check_bearer(header, None);
        }
    }

    #[test]
    fn padding_hides_nothing() {
        check_cookie(&("; =;".repeat(1 << 18) + "sid=1"), Some("1"));
        check_cookie(&("=".repeat(1 << 20) + ";sid=1"), Some("1"));
        check_query(&("&=".repeat(1 << 18) + "&api+key=1"), Some("1"));
        check_query(&("%".repeat(1 << 20) + "&api+key=1"), Some("1"));
        check_bearer(&" ".repeat(1 << 20), None);
    }

    #[test]
    fn hostile_fields_have_no_value() {
        for field in ["", ";", "=", "&", "==", "\0", "\"", "%", "é", ";;==;;", "sid\0=1", "s\u{200b}id=1"] {
            check_cookie(field, None);
            check_query(field, None);
        }
    }
}
