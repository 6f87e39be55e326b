//! Keys as the admin API shows them: addresses and user ids are readable; email addresses, API keys, tokens and cookies
//! are replaced by a mark, unless `log_keys` is `plain`.

use std::fmt::Write as _;
use std::sync::Arc;

use tollgate::internal::engine::LogKeys;
use tollgate::internal::identity::Key;

/// Bytes of a key's text; a longer one is cut, and ends with its mark.
pub const MAX_KEY_TEXT: usize = 128;
/// Bytes that a shared text takes beside its own: two counts.
pub const SHARED_TEXT_BYTES: usize = 16;
/// `…#` and a mark of 16 digits.
const CUT_MARK_LEN: usize = "…#".len() + 16;

/// The text of a key. `mark` is a fingerprint of the key: the same key has the same mark during the lifetime of the
/// process.
pub fn key_text(key: &Key, mark: u64, log_keys: LogKeys) -> Arc<str> {
    let mut text = String::new();
    for part in key.encoded_parts() {
        if !text.is_empty() {
            text.push('+');
        }
        let written = match part.is_sensitive && log_keys == LogKeys::Redacted {
            true => write!(text, "{}:#{mark:016x}", part.name),
            false => write!(text, "{}:{}", part.name, part.value),
        };
        written.expect("writing to a string cannot fail");
    }
    if text.len() > MAX_KEY_TEXT {
        text.truncate(text.floor_char_boundary(MAX_KEY_TEXT - CUT_MARK_LEN));
        write!(text, "…#{mark:016x}").expect("writing to a string cannot fail");
    }
    text.into()
}

/// A key whose text is not known yet.
pub fn unknown_key(mark: u64) -> String {
    format!("#{mark:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, log_keys: LogKeys, expected: &str) {
        let key = Key::parse(key).expect("a valid key");
        assert_eq!(&*key_text(&key, 0xabc, log_keys), expected);
    }

    #[test]
    fn addresses_and_users_are_readable_and_credentials_are_not() {
        check("ip:192.0.2.1", LogKeys::Redacted, "ip:192.0.2.1");
        check("user:ann", LogKeys::Redacted, "user:ann");
        check("user:ann@example.com", LogKeys::Redacted, "user:#0000000000000abc");
        check("email:ann@example.com", LogKeys::Redacted, "email:#0000000000000abc");
        check("api_key:k+ip:192.0.2.1", LogKeys::Redacted, "api_key:#0000000000000abc+ip:192.0.2.1");
        check("cookie:sid:1", LogKeys::Redacted, "cookie:sid:#0000000000000abc");
        check("api_key:k", LogKeys::Plain, "api_key:k");
    }

    #[test]
    fn a_long_key_is_cut_and_still_distinct() {
        let key = Key::parse(&format!("user:{}", "ä".repeat(400))).expect("a valid key");
        let text = key_text(&key, 7, LogKeys::Redacted);
        assert!(text.len() <= MAX_KEY_TEXT && text.ends_with("…#0000000000000007"), "{text}");
    }
}
