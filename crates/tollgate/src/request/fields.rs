//! Lookups in raw HTTP fields: cookies, queries, credentials.
//!
//! Invariant: one pass, and no allocation unless the value found is encoded. The work is bounded by the field's
//! length, which the listener bounds. There is no bound on the number of pairs: a client could hide its key behind
//! padding, and a missing key is a limit not applied. This module must not know identities or rules; values are
//! unverified.

use std::borrow::Cow;
use std::iter;

use super::percent::{self, Plus};

/// The cookies called `name` in a `Cookie` value (RFC 6265, 4.2), in their order.
///
/// Names are case-sensitive, apart from [`is_field`]. A value is as it was written, with its quotes.
pub fn cookies<'a>(header_value: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    header_value.split(';').filter_map(move |pair| {
        let (found, value) = pair.split_once('=')?;
        is_field(found.trim_ascii().bytes(), name, |byte| byte).then(|| value.trim_ascii())
    })
}

/// The first parameter called `name` of a query to one of our own APIs, where only `&` separates parameters.
pub fn query<'a>(raw_query: &'a str, name: &str) -> Option<Cow<'a, str>> {
    raw_query.split('&').find_map(|pair| {
        let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
        let is_named = || percent::decode(found, Plus::Space).map(lower).eq(name.bytes().map(lower));
        (!pair.is_empty() && is_named()).then(|| decoded(value))
    })
}

/// The parameters called `name`, in any case, of an `application/x-www-form-urlencoded` query or body, in their
/// order and decoded once. [`is_field`] is how names are compared.
///
/// A parameter without `=` has an empty value. Bytes that are not UTF-8 stay
/// as `%XX`. Some servers separate parameters by `;`, too: a pair with a raw `;` is returned in both readings.
pub fn parameters<'a>(raw_query: &'a str, name: &str) -> impl Iterator<Item = Cow<'a, str>> {
    raw_query.split('&').flat_map(move |pair| {
        let pieces = pair.contains(';').then(|| pair.split(';')).into_iter().flatten();
        iter::once(pair).chain(pieces).filter_map(move |pair| parameter(pair, name))
    })
}

/// The value of a pair, if it has this name.
fn parameter<'a>(pair: &'a str, name: &str) -> Option<Cow<'a, str>> {
    let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
    let is_named = || is_field(percent::decode(found, Plus::Space), name, lower);
    (!pair.is_empty() && is_named()).then(|| decoded(value))
}

/// Whether some server reads a field of the name `found` as `wanted`, once `fold` has made their cases equal.
///
/// `email[]` and `email[0]` are elements of a list `email` for PHP, Rails and Express. PHP also reads a dot, a space
/// and an open bracket as an underscore, skips leading spaces, and ends a name at a NUL.
pub fn is_field(found: impl Iterator<Item = u8>, wanted: &str, fold: impl Fn(u8) -> u8) -> bool {
    let read = |byte| match byte {
        b'.' | b' ' | b'[' => b'_',
        other => fold(other),
    };
    let mut found = found.skip_while(|byte| *byte == b' ');
    let mut wanted = wanted.bytes().skip_while(|byte| *byte == b' ');
    wanted.all(|byte| found.next().is_some_and(|found| read(found) == read(byte)))
        && matches!(found.next(), None | Some(b'[' | 0))
}

/// The case in which names of parameters are compared.
pub fn lower(byte: u8) -> u8 {
    byte.to_ascii_lowercase()
}

/// The token of a `Bearer` credential (RFC 6750, 2.1).
///
/// `None` for another scheme, and unless there is exactly one token.
pub fn bearer(authorization: &str) -> Option<&str> {
    let mut tokens = bearer_tokens(authorization);
    let token = tokens.next()?;
    tokens.next().is_none().then_some(token)
}

/// Every word of visible ASCII behind the scheme `Bearer`. Servers differ in which white space they split at, and in
/// which of several words they take.
pub fn bearer_tokens(authorization: &str) -> impl Iterator<Item = &str> {
    let mut words = words(authorization);
    let is_bearer = words.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case("bearer"));
    is_bearer.then_some(words).into_iter().flatten()
}

/// The credentials of an `Authorization` value: the value itself, or one for each word behind a scheme of one word.
pub fn credentials(authorization: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let mut words = words(authorization);
    let scheme = words.next().filter(|scheme| {
        let one_word = ["basic", "bearer"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        let is_plain = words.clone().nth(1).is_none() && authorization.is_ascii();
        one_word && !is_plain
    });
    let each = scheme.map(|scheme| words.map(move |word| Cow::Owned(format!("{scheme} {word}"))));
    let whole = scheme.is_none().then_some(Cow::Borrowed(authorization));
    each.into_iter().flatten().chain(whole)
}

fn words(text: &str) -> impl Iterator<Item = &str> + Clone {
    text.split(|char: char| !char.is_ascii_graphic()).filter(|word| !word.is_empty())
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
        check_cookie("sid\0a=1", Some("1"));
    }

    #[test]
    fn all_cookies_of_a_name_are_found() {
        let all = |header| cookies(header, "sid").collect::<Vec<_>>();
        assert_eq!(all("sid=1; a=3; sid=2"), ["1", "2"]);
        assert_eq!(all("sid; sid=2"), ["2"]);
        assert_eq!(all("sid=; sid=2"), ["", "2"]);
    }

    #[test]
    fn a_cookie_value_is_kept_as_written() {
        check_cookie("sid=\"1\"", Some("\"1\""));
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
    fn a_name_that_servers_read_as_another_one_is_that_one() {
        let all = |raw, name| parameters(raw, name).collect::<Vec<_>>();
        assert_eq!(all("id=1&id[]=2&ID[0]=3&id%5Bx%5D=4&ids=5&id]=6", "id"), ["1", "2", "3", "4"]);
        assert_eq!(
            all("a_b=1&a.b=2&a+b=3&a[b=4&+a_b=5&a_b%00c=6&ab=7&a-b=8", "a_b"),
            ["1", "2", "3", "4", "5", "6"]
        );
        assert_eq!(all("user[id]=1&user[name]=2", "user[id]"), ["1"]);
        assert_eq!(all("[]=1&=2&[=3", "id"), [""; 0]);
        assert_eq!(cookies("sid[]=1; s.d=2; SID[]=3", "sid").collect::<Vec<_>>(), ["1"]);
        assert_eq!(query("id[]=1&id=2", "id").as_deref(), Some("2"), "our own parameters have one name");
    }

    #[test]
    fn parameters_are_separated_by_semicolons_in_another_reading() {
        let all = |raw| parameters(raw, "key").collect::<Vec<_>>();
        assert_eq!(all("key=decoy;key=real"), ["decoy;key=real", "decoy", "real"]);
        assert_eq!(all("a=1;key=real&b"), ["real"]);
        assert_eq!(all("key=real;1"), ["real;1", "real"]);
        assert_eq!(all("key=a%3Bb"), ["a;b"], "an escaped semicolon separates nothing");
        assert_eq!(all(";;&;"), [""; 0]);
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
        check_bearer("Bearer\tabc", Some("abc"));
        check_bearer("\tBearer \t abc\t", Some("abc"));
        check_bearer("Bearer\u{a0}abc", Some("abc"));
    }

    #[test]
    fn other_credentials_are_not_a_bearer_token() {
        for header in [
            "",
            " ",
            "Bearer",
            "Bearer ",
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
        ] {
            check_bearer(header, None);
        }
    }

    #[test]
    fn every_word_behind_a_scheme_may_be_the_credential() {
        assert_eq!(bearer_tokens("Bearer a\tb").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(bearer_tokens("Basic a b").count(), 0);
        let all = |value| credentials(value).collect::<Vec<_>>();
        assert_eq!(all("Bearer a  b"), ["Bearer a", "Bearer b"]);
        for whole in ["Bearer a", "Bearer  a", "Bearer", "abc", "Digest a=\"b c\", d", ""] {
            assert_eq!(all(whole), [whole]);
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
        for field in ["", ";", "=", "&", "==", "\0", "\"", "%", "é", ";;==;;", "s\u{200b}id=1"] {
            check_cookie(field, None);
            check_query(field, None);
        }
    }
}
