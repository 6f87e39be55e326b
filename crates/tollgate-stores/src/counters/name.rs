//! What a store calls a counter: readable with the store's own tools, or hashed where identities are sensitive.
//!
//! `tg1:default:login:{user:42}:gcra-m` is rule `login` of domain `default` for user 42, a GCRA over a minute. The
//! braces are Redis's hash tag: all counters of one owner share a slot. Names of different counters differ,
//! whatever strangers put into their keys. The number before the first colon is the version of the states.

use std::fmt::Write;

use ring::{digest, hmac};
use tollgate::Limit;
use tollgate::limit::{Refill, Shape, WindowStart};

use crate::counters::Counter;

/// The version of names and states. Another one is another set of counters.
pub const VERSION: &str = "tg1";
/// A longer part of a name is hashed.
pub const MAX_PART_BYTES: usize = 100;

/// How identities are written into names.
#[derive(Clone)]
pub enum Naming {
    Plain,
    /// Under a secret that all nodes share.
    Hashed(hmac::Key),
}

impl Naming {
    pub fn hashed(secret: &[u8]) -> Naming {
        Naming::Hashed(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The name of a counter under a limit. The limit's number is no part of it.
    pub fn name(&self, counter: &Counter, limit: &Limit) -> String {
        let mut name = String::with_capacity(96);
        name.push_str(VERSION);
        name.push(':');
        match counter.owner.as_deref() {
            None => {
                name.push('{');
                self.write_rule(&mut name, counter);
                self.write_identity(&mut name, &counter.key);
                name.push('}');
            }
            Some(owner) => {
                self.write_rule(&mut name, counter);
                name.push('{');
                self.write_identity(&mut name, owner);
                name.push('}');
                if owner != &*counter.key {
                    name.push('|');
                    self.write_identity(&mut name, &counter.key);
                }
            }
        }
        name.push(':');
        write_kind(&mut name, limit);
        name
    }

    /// The name of what is held against a ban key. No counter has such a name: theirs have a rule.
    pub fn ban_record(&self, key: &str) -> String {
        let mut name = format!("{VERSION}:bans:{{");
        self.write_identity(&mut name, key);
        name.push('}');
        name
    }

    fn write_rule(&self, name: &mut String, counter: &Counter) {
        write_part(name, &counter.domain, ":");
        name.push(':');
        write_part(name, &counter.rule, ":");
        name.push(':');
    }

    fn write_identity(&self, name: &mut String, identity: &str) {
        match self {
            Naming::Plain => write_part(name, identity, ""),
            Naming::Hashed(key) => write_hash(name, hmac::sign(key, identity.as_bytes()).as_ref()),
        }
    }
}

/// What the names of one owner's counters have in common, and no others: their hash tag.
pub fn tag(name: &str) -> &str {
    let inside = name.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    inside.map_or(name, |(tag, _)| tag)
}

impl std::fmt::Debug for Naming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Naming::Plain => "Plain",
            Naming::Hashed(_) => "Hashed(…)",
        })
    }
}

/// Escapes what has a meaning in a name or is not printable; a long part is hashed.
fn write_part(name: &mut String, part: &str, separators: &str) {
    let start = name.len();
    for char in part.chars() {
        if char.is_ascii_graphic() && !"{}|%#".contains(char) && !separators.contains(char) {
            name.push(char);
        } else {
            let mut bytes = [0; 4];
            for byte in char.encode_utf8(&mut bytes).bytes() {
                write!(name, "%{byte:02X}").expect("a string takes all that is written");
            }
        }
        if name.len() - start > MAX_PART_BYTES {
            name.truncate(start);
            return write_hash(name, digest::digest(&digest::SHA256, part.as_bytes()).as_ref());
        }
    }
}

/// Half of the hash, in hexadecimal: 128 bits.
fn write_hash(name: &mut String, hash: &[u8]) {
    name.push('#');
    for byte in &hash[..16] {
        write!(name, "{byte:02x}").expect("a string takes all that is written");
    }
}

/// What is counted, whatever the number that limits it: limits that [count alike](Limit::counts_like) are
/// of one kind.
pub fn kind(limit: &Limit) -> String {
    let mut kind = String::new();
    write_kind(&mut kind, limit);
    kind
}

fn write_kind(name: &mut String, limit: &Limit) {
    name.push_str(limit.shape().name());
    let written = match limit.shape() {
        Shape::TokenBucket { refill: Refill::Tick(tick), .. } => write!(name, "-tick{tick:?}"),
        Shape::TokenBucket { refill: Refill::Calendar, .. } => write!(name, "-calendar"),
        Shape::FixedWindow { start: WindowStart::FirstHit } => write!(name, "-first-hit"),
        Shape::SlidingCompact { resolution } => write!(name, "-{resolution:?}"),
        Shape::TieredWindow { levels } => levels.names().try_for_each(|level| write!(name, "-{level}")),
        _ => Ok(()),
    };
    written
        .and_then(|()| write!(name, "-{}", limit.rate().period()))
        .expect("a string takes all that is written");
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;

    fn counter(rule: &str, key: &str, owner: Option<&str>) -> Counter {
        Counter { domain: "default".into(), rule: rule.into(), key: key.into(), owner: owner.map(Into::into) }
    }

    fn limit(rate: &str, shape: Shape) -> Limit {
        Limit::new(rate.parse().expect("a rate"), shape).expect("a valid limit")
    }

    #[test]
    fn a_name_says_rule_identity_and_window() {
        let gcra = limit("5/m", Shape::GCRA);
        let name = |rule, key, owner| Naming::Plain.name(&counter(rule, key, owner), &gcra);
        assert_eq!(name("login", "user:42", Some("user:42")), "tg1:default:login:{user:42}:gcra-m");
        assert_eq!(
            name("login", "ip:1.2.3.4+user:42", Some("user:42")),
            "tg1:default:login:{user:42}|ip:1.2.3.4+user:42:gcra-m"
        );
        assert_eq!(name("all", "", None), "tg1:{default:all:}:gcra-m");
        assert_eq!(name("all", "ip:a b{é}", None), "tg1:{default:all:ip:a%20b%7B%C3%A9%7D}:gcra-m");
    }

    #[test]
    fn a_number_is_no_part_of_a_name_but_what_is_counted_is() {
        let bucket = |refill| Shape::TokenBucket { burst: None, refill };
        let second = Duration::from_secs(1);
        let shapes = [
            Shape::GCRA,
            bucket(Refill::Continuous),
            bucket(Refill::Tick(second)),
            bucket(Refill::Tick(Duration::from_micros(1))),
            bucket(Refill::Calendar),
            Shape::FixedWindow { start: WindowStart::Aligned },
            Shape::FixedWindow { start: WindowStart::FirstHit },
            Shape::SlidingCompact { resolution: second },
            Shape::SlidingLog,
            Shape::SlidingCounter,
        ];
        let kinds: HashSet<_> =
            shapes.iter().flat_map(|s| [kind(&limit("5/m", *s)), kind(&limit("5/h", *s))]).collect();
        assert_eq!(kinds.len(), 2 * shapes.len());
        for shape in shapes {
            assert_eq!(kind(&limit("5/m", shape)), kind(&limit("50/m", shape)));
        }
    }

    #[test]
    fn hashed_and_long_names_tell_nothing_and_stay_short() {
        let gcra = limit("5/m", Shape::GCRA);
        for long in ["x".repeat(5000), "é".repeat(MAX_PART_BYTES / 2)] {
            let plain = Naming::Plain.name(&counter("login", &long, Some(&long)), &gcra);
            assert!(plain.len() < 100 && plain.contains("{#"), "{plain}");
        }
        let [a, b] = [b"one", b"two"]
            .map(|secret| Naming::hashed(secret).name(&counter("login", "user:42", Some("user:42")), &gcra));
        assert!(a.starts_with("tg1:default:login:{#") && !a.contains("42}"), "{a}");
        assert_ne!(a, b, "the secret decides");
    }
}
