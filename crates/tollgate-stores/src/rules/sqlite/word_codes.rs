//! Frequent words as one byte each: a control character, with which no word of a rule begins.

use std::borrow::Cow;

/// In the order of their codes, from 1. Codes are stored in files: words may be added at the end, none removed.
const WORDS: [&str; 30] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "PATCH",
    "OPTIONS",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "year",
    "s",
    "m",
    "h",
    "d",
    "gcra",
    "token-bucket",
    "leaky-bucket",
    "fixed-window",
    "sliding-log",
    "sliding-compact",
    "sliding-counter",
    "tiered-window",
    "concurrency",
    "sec",
    "min",
    "w",
];

/// The word as stored in a row.
pub(super) fn encode(word: Option<&str>) -> Option<Cow<'_, str>> {
    let word = word?;
    let code = WORDS.iter().position(|known| *known == word);
    let code = code.and_then(|n| char::from_u32(n as u32 + 1));
    Some(code.map_or(Cow::Borrowed(word), |code| Cow::Owned(code.to_string())))
}

/// The word that a row stores.
pub(super) fn decode(held: Option<String>) -> Option<String> {
    let held = held?;
    let known = match held.as_bytes() {
        [code] => usize::from(*code).checked_sub(1).and_then(|n| WORDS.get(n)),
        _ => None,
    };
    Some(known.map_or(held, |word| (*word).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_comes_back_and_known_ones_take_a_byte() {
        for word in WORDS.into_iter().chain(["", "PURGE", "G", "fortnight", "\u{1}x"]) {
            let held = encode(Some(word)).map(Cow::into_owned);
            assert!(!WORDS.contains(&word) || held.as_ref().is_some_and(|held| held.len() == 1));
            assert_eq!(decode(held).as_deref(), Some(word));
        }
        assert_eq!((encode(None), decode(None)), (None, None));
        assert!(WORDS.len() < usize::from(b' '), "codes are control characters");
    }
}
