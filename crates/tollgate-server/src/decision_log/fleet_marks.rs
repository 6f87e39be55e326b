//! Marks of keys that are the same on every node: with counters in a central store, `tollgate verify` adds up what a key
//! was charged on all nodes.
//!
//! The nodes share a secret. Without one, marks that all nodes agree on would let a reader of the log confirm a guessed
//! key.

use std::fmt;

use ring::hmac;
use tollgate::internal::store::central::CounterId;

use super::ChargeMark;

/// What the secret is used for here: it also signs receipts or hashes names of counters.
const PURPOSE: &[u8] = b"tollgate decision log marks";

pub struct FleetMarks {
    key: hmac::Key,
    id: u32,
}

impl FleetMarks {
    pub fn new(secret: &[u8]) -> FleetMarks {
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), PURPOSE);
        let key = hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref());
        // Shorter than what a mark is of.
        let id = u32::from_be_bytes(first_bytes(hmac::sign(&key, b"id").as_ref()));
        FleetMarks { key, id }
    }

    /// The mark of a counter's key.
    pub(super) fn of(&self, counter: &CounterId) -> ChargeMark {
        let mut digest = hmac::Context::with_key(&self.key);
        let names = [&*counter.domain, &*counter.rule];
        let parts = counter.key.parts().iter().flat_map(|part| [&*part.name, &*part.value]);
        for text in names.into_iter().chain(parts) {
            digest.update(&(text.len() as u64).to_be_bytes());
            digest.update(text.as_bytes());
        }
        ChargeMark::Fleet { secret: self.id, mark: u64::from_be_bytes(first_bytes(digest.sign().as_ref())) }
    }
}

fn first_bytes<const N: usize>(digest: &[u8]) -> [u8; N] {
    *digest.first_chunk().expect("a digest has 32 bytes")
}

impl fmt::Display for ChargeMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChargeMark::Node(mark) => write!(f, "#{:016x}", mark.to_bits()),
            ChargeMark::Fleet { secret, mark } => write!(f, "#{secret:08x}:{mark:016x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate::internal::store::{CounterKey, KeyPart, Sensitivity};

    use super::*;

    fn counter(rule: &str, values: &[(&str, &str)]) -> CounterId {
        let part = |(name, value): &(&str, &str)| KeyPart {
            name: (*name).into(),
            value: (*value).into(),
            sensitivity: Sensitivity::Public,
        };
        let key = CounterKey::shared(values.iter().map(part).collect());
        CounterId { domain: "default".into(), rule: rule.into(), key }
    }

    #[test]
    fn nodes_with_one_secret_mark_a_key_alike_and_other_keys_differ() {
        let mark = |secret: &[u8], counter: &CounterId| FleetMarks::new(secret).of(counter).to_string();
        let ann = counter("login", &[("user", "ann")]);
        let known = mark(b"one", &ann);
        assert_eq!(known, mark(b"one", &ann));
        assert_eq!(known.len(), "#01234567:0123456789abcdef".len());
        let others = [
            mark(b"one", &counter("login", &[("user", "bob")])),
            mark(b"one", &counter("other", &[("user", "ann")])),
            mark(b"one", &counter("login", &[("use", "rann")])),
            mark(b"one", &counter("login", &[])),
        ];
        assert!(others.iter().all(|other| *other != known && other[..9] == known[..9]), "{others:?}");
        assert_ne!(mark(b"another", &ann)[..9], known[..9], "the id is the secret's");
    }
}
