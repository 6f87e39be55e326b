//! Values that counter names must not show by default: email addresses, API keys, tokens and cookies.
//!
//! Most are recognised by their attribute, some by their form in any attribute. A false positive is only harder to
//! read, so names are matched broadly.

use crate::identity::{Attribute, FieldSource};

/// A field whose name contains one of these, in any case, holds a credential or an email address: `X-Api-Key`,
/// `access_token`, `PHPSESSID`, `userEmail`.
pub const SENSITIVE_NAMES: [&str; 14] = [
    "auth",
    "bearer",
    "cookie",
    "credential",
    "csrf",
    "jwt",
    "key",
    "mail",
    "otp",
    "passw",
    "secret",
    "sess",
    "signature",
    "token",
];

/// Whether the value of an attribute is an email address or a credential.
pub fn is_sensitive(attribute: &Attribute, value: &str) -> bool {
    let by_name = match attribute {
        Attribute::Email
        | Attribute::ApiKey
        | Attribute::Field(FieldSource::Cookie | FieldSource::Jwt, _) => true,
        Attribute::Field(_, name) => is_sensitive_name(name),
        _ => false,
    };
    by_name || is_email(value) || is_jwt(value) || is_authorization(value)
}

fn is_sensitive_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SENSITIVE_NAMES.iter().any(|word| name.contains(word))
}

/// `local@domain.tld`.
fn is_email(value: &str) -> bool {
    let Some((local, domain)) = value.rsplit_once('@') else { return false };
    let in_domain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-') || !byte.is_ascii();
    !local.is_empty()
        && !local.contains(['/', ' '])
        && domain.trim_matches('.').contains('.')
        && domain.bytes().all(in_domain)
}

/// Three parts in base64url, the first of which is a JSON object.
fn is_jwt(value: &str) -> bool {
    let is_base64url =
        |part: &str| part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    value.starts_with("eyJ") && value.split('.').count() == 3 && value.split('.').all(is_base64url)
}

/// A scheme of HTTP authentication with its credentials.
fn is_authorization(value: &str) -> bool {
    let scheme = value.split_once(' ').map_or("", |(scheme, _)| scheme);
    ["basic", "bearer", "digest"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(attribute: &str, value: &str, expected: bool) {
        let parsed = Attribute::parse(attribute).expect("a valid attribute");
        assert_eq!(is_sensitive(&parsed, value), expected, "{attribute} = {value}");
    }

    #[test]
    fn credentials_and_emails_are_known_by_their_attribute() {
        for attribute in [
            "email",
            "api_key",
            "cookie:lang",
            "jwt:sub",
            "header:Authorization",
            "header:Proxy-Authorization",
            "header:X-API-Key",
            "header:Ocp-Apim-Subscription-Key",
            "header:X-Amz-Security-Token",
            "header:Cookie",
            "header:X-User-Email",
            "query:access_token",
            "query:apikey",
            "json:email",
            "json:e-mail",
            "json:userEmail",
            "form:Password",
            "attr:session_id",
            "attr:PHPSESSID",
        ] {
            check(attribute, "x", true);
        }
        for attribute in [
            "ip",
            "user",
            "mac",
            "path",
            "method",
            "host",
            "header:x-tenant",
            "header:user-agent",
            "query:q",
            "json:username",
            "attr:plan",
        ] {
            check(attribute, "x", false);
        }
    }

    #[test]
    fn emails_and_tokens_are_known_by_their_form_anywhere() {
        check("user", "ann@example.com", true);
        check("user", "ann+tag@mail.example.com", true);
        check("attr:id", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl-_", true);
        check("header:x-forwarded", "Bearer abc", true);
        for value in
            ["ann", "@example.com", "ann@", "ann@host", "eyJa.b", "eyJa.b.c!", "Bearer", "bear er", "a@.com"]
        {
            check("user", value, false);
        }
        check("path", "/users/ann@example.com/photos", false);
    }
}
