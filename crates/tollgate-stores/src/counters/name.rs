//! Names of counters in a store: readable with the store's own tools, hashed where identities are sensitive.
//!
//! `tg1:default:login:{user:42}:gcra-m` is rule `login` of domain `default` for user 42, a GCRA over a minute. The
//! braces are Redis's hash tag: all counters of one owner share a slot. The prefix before the first colon is the
//! version of the states.
//!
//! Different counters have different names, for any client input: separators inside a part are escaped, and `#` occurs
//! only before a hash of 128 bits.

use std::fmt::Write;
use std::path::Path;

use ring::{digest, hmac};
use tollgate::internal::Limit;
use tollgate::internal::limit::{Refill, Shape, WindowStart};
use tollgate::internal::shared_secret;
use tollgate::internal::store::{KeyPart, KeyVisibility};

use crate::counters::CounterId;

/// Version of names and states. Another version is a separate set of counters.
pub const VERSION: &str = "tg1";
/// An identity with more readable bytes is hashed as a whole.
pub const MAX_PART_BYTES: usize = 100;
/// `#`, and half of a SHA-256 in hexadecimal.
const HASH_BYTES: usize = 33;

/// How identities appear in names.
#[derive(Clone, Debug)]
pub enum Naming {
    /// Unchanged.
    Plain,
    /// Sensitive parts of a key are hashed, the others are readable.
    Sensitive(NameHash),
    /// The whole key is hashed.
    Hashed(NameHash),
}

/// How identities are hashed. Must be the same on all nodes: they find shared counters by name.
#[derive(Clone)]
pub enum NameHash {
    /// SHA-256: hides an identity from view, not from guessing.
    Unkeyed,
    /// HMAC-SHA-256 under a secret that all nodes share.
    Keyed(hmac::Key),
}

impl Default for Naming {
    fn default() -> Naming {
        Naming::Sensitive(NameHash::Unkeyed)
    }
}

impl Naming {
    pub fn new(visible: KeyVisibility, hash: NameHash) -> Naming {
        match visible {
            KeyVisibility::All => Naming::Plain,
            KeyVisibility::Public => Naming::Sensitive(hash),
            KeyVisibility::None => Naming::Hashed(hash),
        }
    }

    /// The name of a counter under a limit. The limit's number is not part of it.
    pub fn name(&self, counter: &CounterId, limit: &Limit) -> String {
        let mut name = self.name_without_kind(counter);
        write_kind(&mut name, limit);
        name
    }

    /// The name of a tracked key's record. It has the hash tag of the key's counters.
    pub fn track_name(&self, counter: &CounterId) -> String {
        let mut name = self.name_without_kind(counter);
        name.push_str("track");
        name
    }

    /// The name of a ban key's record. It cannot collide with a counter, which has a rule in its name.
    pub fn ban_record_name(&self, key: &[KeyPart]) -> String {
        let mut name = format!("{VERSION}:bans:{{");
        self.write_identity(&mut name, key);
        name.push('}');
        name
    }

    fn name_without_kind(&self, counter: &CounterId) -> String {
        let mut name = String::with_capacity(128);
        name.push_str(VERSION);
        name.push(':');
        let parts = counter.key.parts();
        match counter.key.owner() {
            None => {
                name.push('{');
                write_rule(&mut name, counter);
                self.write_identity(&mut name, parts);
                name.push('}');
            }
            Some(owner) => {
                write_rule(&mut name, counter);
                name.push('{');
                self.write_identity(&mut name, std::slice::from_ref(owner));
                name.push('}');
                if parts.len() > 1 {
                    name.push('|');
                    self.write_identity(&mut name, parts);
                }
            }
        }
        name.push(':');
        name
    }

    fn write_identity(&self, name: &mut String, parts: &[KeyPart]) {
        match self {
            Naming::Plain => write_part(name, &join_parts(parts), ""),
            Naming::Hashed(hash) => hash.write(name, &join_parts(parts)),
            Naming::Sensitive(_) if !parts.iter().any(KeyPart::is_sensitive) => {
                write_part(name, &join_parts(parts), "");
            }
            Naming::Sensitive(hash) => write_mixed(name, parts, hash),
        }
    }
}

impl NameHash {
    pub fn keyed(secret: &[u8]) -> NameHash {
        NameHash::Keyed(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Derives a key for another purpose, as secret as this hash.
    pub(crate) fn derive(&self, purpose: &[u8]) -> [u8; 32] {
        let mut key = [0; 32];
        match self {
            NameHash::Unkeyed => key.copy_from_slice(digest::digest(&digest::SHA256, purpose).as_ref()),
            NameHash::Keyed(secret) => key.copy_from_slice(hmac::sign(secret, purpose).as_ref()),
        }
        key
    }

    fn write(&self, name: &mut String, text: &str) {
        write_hash(name, &self.derive(text.as_bytes()));
    }
}

/// The secret in a file, for [`NameHash::keyed`].
pub fn read_secret(path: &Path) -> Result<Vec<u8>, String> {
    let secret =
        std::fs::read(path).map_err(|error| format!("{}: cannot be read: {error}", path.display()))?;
    let secret = shared_secret(&secret).map_err(|why| format!("{}: {why}", path.display()))?;
    Ok(secret.to_vec())
}

impl std::fmt::Debug for NameHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NameHash::Unkeyed => "Unkeyed",
            NameHash::Keyed(_) => "Keyed(…)",
        })
    }
}

fn write_rule(name: &mut String, counter: &CounterId) {
    write_part(name, &counter.domain, ":");
    name.push(':');
    write_part(name, &counter.rule, ":");
    name.push(':');
}

/// A key in the notation of the configuration.
fn join_parts(parts: &[KeyPart]) -> String {
    let mut text = String::new();
    for part in parts {
        let separator = if text.is_empty() { "" } else { "+" };
        write!(text, "{separator}{part}").expect("writing to a string cannot fail");
    }
    text
}

/// Hashes sensitive values, `email:#…`; hashes the whole key if the readable part is too long.
fn write_mixed(name: &mut String, parts: &[KeyPart], hash: &NameHash) {
    let start = name.len();
    let mut hashed_bytes = 0;
    for part in parts {
        if name.len() > start {
            name.push('+');
        }
        if part.is_sensitive() {
            write_part(name, &part.name, "");
            name.push(':');
            // Includes the attribute's name, so that equal values of different attributes have different hashes.
            hash.write(name, &part.to_string());
            hashed_bytes += HASH_BYTES;
        } else {
            write_part(name, &part.to_string(), "");
        }
        if name.len() - start - hashed_bytes > MAX_PART_BYTES {
            name.truncate(start);
            return hash.write(name, &join_parts(parts));
        }
    }
}

/// The hash tag: shared by the names of one owner's counters, and by no others. As Redis Cluster reads it: the text in
/// the first braces, or the whole name if that is empty.
pub fn hash_tag(name: &str) -> &str {
    let inside = name.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    inside.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(name)
}

/// Escapes separators and non-printable characters; hashes a part that is too long.
fn write_part(name: &mut String, part: &str, separators: &str) {
    let start = name.len();
    for char in part.chars() {
        if char.is_ascii_graphic() && !"{}|%#".contains(char) && !separators.contains(char) {
            name.push(char);
        } else {
            let mut bytes = [0; 4];
            for byte in char.encode_utf8(&mut bytes).bytes() {
                write!(name, "%{byte:02X}").expect("writing to a string cannot fail");
            }
        }
        if name.len() - start > MAX_PART_BYTES {
            name.truncate(start);
            return write_hash(name, digest::digest(&digest::SHA256, part.as_bytes()).as_ref());
        }
    }
}

/// Half of the hash in hexadecimal: 128 bits.
fn write_hash(name: &mut String, hash: &[u8]) {
    name.push('#');
    for byte in &hash[..16] {
        write!(name, "{byte:02x}").expect("writing to a string cannot fail");
    }
}

/// What is counted, without the number that limits it: limits that [count alike](Limit::counts_like) have the same
/// kind.
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
        Shape::Cell { .. } => return, // one counter, whatever the rate
        Shape::TieredWindow { levels } => levels.names().try_for_each(|level| write!(name, "-{level}")),
        _ => Ok(()),
    };
    written
        .and_then(|()| write!(name, "-{}", limit.rate().period()))
        .expect("writing to a string cannot fail");
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use tollgate::internal::store::{CounterKey, Sensitivity};

    use super::*;

    /// The counter of a key whose parts are `name:value`; emails and API keys are sensitive.
    fn counter(rule: &str, key: &[&str], owner: Option<usize>) -> CounterId {
        let part = |text: &&str| {
            let (name, value) = text.split_once(':').expect("name:value");
            let sensitivity = match name {
                "email" | "api_key" => Sensitivity::Sensitive,
                _ => Sensitivity::Public,
            };
            KeyPart { name: name.into(), value: value.into(), sensitivity }
        };
        let parts = key.iter().map(part).collect();
        let key = match owner {
            Some(owner) => CounterKey::owned(parts, owner),
            None => CounterKey::shared(parts),
        };
        CounterId { domain: "default".into(), rule: rule.into(), key }
    }

    fn limit(rate: &str, shape: Shape) -> Limit {
        Limit::new(rate.parse().expect("a rate"), shape).expect("a valid limit")
    }

    /// The name without version, domain, rule `login` and kind.
    fn identity(naming: &Naming, key: &[&str], owner: Option<usize>) -> String {
        let name = naming.name(&counter("login", key, owner), &limit("5/m", Shape::GCRA));
        let name = name.strip_prefix("tg1:").and_then(|name| name.strip_suffix(":gcra-m")).expect("a name");
        name.replacen("default:login:", "", 1)
    }

    /// `printf %s email:ann@example.com | sha256sum | cut -c -32`
    const ANN: &str = "35f3b3170d36d0a179d1bf8e9cf8cfc3";

    #[test]
    fn a_name_says_rule_identity_and_window() {
        let gcra = limit("5/m", Shape::GCRA);
        let name = |rule, key: &[&str], owner| Naming::Plain.name(&counter(rule, key, owner), &gcra);
        assert_eq!(name("login", &["user:42"], Some(0)), "tg1:default:login:{user:42}:gcra-m");
        assert_eq!(
            name("login", &["ip:1.2.3.4", "user:42"], Some(1)),
            "tg1:default:login:{user:42}|ip:1.2.3.4+user:42:gcra-m"
        );
        assert_eq!(name("all", &[], None), "tg1:{default:all:}:gcra-m");
        let record = Naming::Plain.track_name(&counter("login", &["user:42"], Some(0)));
        assert_eq!(record, "tg1:default:login:{user:42}:track");
        assert_eq!(name("all", &["ip:a b{é}"], None), "tg1:{default:all:ip:a%20b%7B%C3%A9%7D}:gcra-m");
    }

    #[test]
    fn sensitive_parts_are_hashed_and_the_rest_is_readable() {
        let naming = Naming::default();
        assert_eq!(identity(&naming, &["user:42"], Some(0)), "{user:42}");
        let ann = "email:ann@example.com";
        assert_eq!(identity(&naming, &[ann], Some(0)), format!("{{email:#{ANN}}}"));
        assert_eq!(
            identity(&naming, &[ann, "ip:1.2.3.4"], Some(0)),
            format!("{{email:#{ANN}}}|email:#{ANN}+ip:1.2.3.4"),
            "one owner has one hash tag, alone and combined"
        );
        let plain = identity(&Naming::Plain, &[ann], Some(0));
        assert_eq!(plain, "{email:ann@example.com}");
        let keyed = Naming::Sensitive(NameHash::keyed(b"secret"));
        let keyed = identity(&keyed, &[ann, "ip:1.2.3.4"], Some(0));
        assert!(keyed.starts_with("{email:#") && keyed.ends_with("+ip:1.2.3.4"), "{keyed}");
        assert!(!keyed.contains(ANN) && !keyed.contains("ann"), "{keyed}");
    }

    #[test]
    fn clients_cannot_make_two_counters_share_a_name() {
        let hash = format!("#{ANN}");
        let keys: &[&[&str]] = &[
            &["email:ann@example.com"],
            &["email:ann@example.com", "user:1"],
            &["api_key:ann@example.com"],
            &["user:ann@example.com"],
            &[&format!("user:{hash}")],
            &[&format!("user:email:{hash}")],
            &[&format!("email:{hash}")],
            &[&format!("email:{hash}%2Buser:1")],
            &["user:1", "zone:2"],
            &["user:1%2Bzone:2"], // the value `1+zone:2` as escaped in a key
            &["user:1}|user:1"],
            &["user:1%7D"],
            &["user:1}"],
        ];
        let secret = NameHash::keyed(b"secret");
        for naming in
            [Naming::Plain, Naming::default(), Naming::Sensitive(secret.clone()), Naming::Hashed(secret)]
        {
            let name = |key, owner| naming.name(&counter("login", key, owner), &limit("5/m", Shape::GCRA));
            let names: HashSet<_> =
                keys.iter().flat_map(|key| [name(key, Some(0)), name(key, None)]).collect();
            assert_eq!(names.len(), 2 * keys.len(), "{naming:?}: {names:#?}");
        }
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
    fn hashed_and_long_names_reveal_nothing_and_stay_short() {
        let long = format!("user:{}", "x".repeat(5000));
        let wide = format!("user:{}", "é".repeat(MAX_PART_BYTES / 2));
        for naming in [Naming::Plain, Naming::default()] {
            for long in [&*long, &*wide] {
                let name = identity(&naming, &[long], Some(0));
                assert!(name.len() < 100 && name.starts_with("{#"), "{name}");
            }
        }
        let mixed = identity(&Naming::default(), &["email:ann@example.com", &long], Some(0));
        assert!(mixed.len() < 200 && !mixed.contains("xxx"), "{mixed}");
        let all: Vec<_> = (0..8).map(|n| format!("email:{n}")).collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let name = identity(&Naming::default(), &all, Some(0));
        assert!(name.matches("email:#").count() == 9 && name.len() < 400, "hashes are not too long: {name}");
        let hashed =
            |secret: &[u8]| identity(&Naming::Hashed(NameHash::keyed(secret)), &["user:42"], Some(0));
        assert!(hashed(b"one").starts_with("{#") && !hashed(b"one").contains("42}"));
        assert_ne!(hashed(b"one"), hashed(b"two"), "the secret decides");
        let unkeyed = identity(&Naming::Hashed(NameHash::Unkeyed), &["user:42"], Some(0));
        assert!(unkeyed.starts_with("{#") && unkeyed != hashed(b"one"), "{unkeyed}");
    }
}
