//! Keys as the admin API shows them: addresses and user ids are readable; email addresses, API keys, tokens and cookies
//! are replaced by a mark, unless `log_keys` is `plain`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tollgate::internal::engine::LogKeys;
use tollgate::internal::identity::Key;

/// Bytes of a key's text; a longer one is cut, and ends with its mark.
pub const MAX_KEY_TEXT: usize = 128;
/// Bytes that a shared text takes beside its own: two counts.
pub const SHARED_TEXT_BYTES: usize = 16;
/// `…#` and a mark of 16 digits.
const CUT_MARK_LEN: usize = "…#".len() + 16;

/// Makes texts of keys, at most [`PER_SECOND`](Self::PER_SECOND) in each second.
pub struct KeyTexts {
    log_keys: LogKeys,
    left: AtomicU32,
}

impl KeyTexts {
    /// Keys that occur once have half of them; the rest is for keys that occur again.
    const PER_SECOND: u32 = 1_024;
    /// Bytes of the texts in batches that are not merged yet: of two seconds, and as much again, since the budget is
    /// approximate.
    pub const MAX_BYTES: usize = 4 * Self::PER_SECOND as usize * (MAX_KEY_TEXT + SHARED_TEXT_BYTES);

    pub fn new(log_keys: LogKeys) -> KeyTexts {
        KeyTexts { log_keys, left: AtomicU32::new(Self::PER_SECOND) }
    }

    /// Whether a text is made at the first occurrence of a key.
    pub fn is_first_made(&self) -> bool {
        self.left.load(Ordering::Relaxed) > Self::PER_SECOND / 2
    }

    pub fn is_recurring_made(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    pub fn make(&self, key: &Key, mark: u64) -> Arc<str> {
        // Two threads may take the same one: the budget is approximate.
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        key_text(key, mark, self.log_keys)
    }

    /// Begins a new second.
    pub fn refill(&self) {
        self.left.store(Self::PER_SECOND, Ordering::Relaxed);
    }

    pub fn log_keys(&self) -> LogKeys {
        self.log_keys
    }
}

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

/// A key without a text yet.
pub fn unknown_key(mark: u64) -> String {
    format!("#{mark:016x}")
}

/// Whether this stands for a key without a text.
pub fn is_unknown(text: &str) -> bool {
    text.starts_with('#')
}

/// Whether a text has the mark of a node, so that other nodes have another text for the same key.
pub fn has_mark(text: &str) -> bool {
    let is_mark = |rest: &str| rest.len() >= 16 && rest.bytes().take(16).all(|byte| byte.is_ascii_hexdigit());
    text.split('#').skip(1).any(is_mark)
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
