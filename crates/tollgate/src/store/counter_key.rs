//! The key of a counter in parts, so that counter names can show one part and hide another.
//!
//! The meaning of a part, and whether it is sensitive, is decided where keys are made: a store knows no identities.

use std::fmt;
use std::sync::Arc;

/// A key as operators write it, `ip:1.2.3.4+user:42`, part by part; empty for all clients together. A clone is cheap.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CounterKey {
    parts: Arc<[KeyPart]>,
    owner: Option<usize>,
}

/// One part of a key, `user:42`, percent-encoded.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KeyPart {
    /// `user`, `header:x-tenant`.
    pub name: Box<str>,
    pub value: Box<str>,
    pub sensitivity: Sensitivity,
}

/// Whether counter names may show a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sensitivity {
    Public,
    /// A credential or an email address.
    Sensitive,
}

impl CounterKey {
    /// The key of a counter that many clients share.
    pub fn shared(parts: Vec<KeyPart>) -> CounterKey {
        CounterKey { parts: parts.into(), owner: None }
    }

    /// The key of one client's counter. The part at `owner` keeps the client's counters together in a partitioned
    /// store; if there is no such part the counter is shared.
    pub fn owned(parts: Vec<KeyPart>, owner: usize) -> CounterKey {
        let owner = (owner < parts.len()).then_some(owner);
        CounterKey { parts: parts.into(), owner }
    }

    pub fn parts(&self) -> &[KeyPart] {
        &self.parts
    }

    /// Heap bytes of the key.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.parts.iter().map(|part| size_of::<KeyPart>() + part.name.len() + part.value.len()).sum()
    }

    /// Index of the part that identifies the client; `None` for a counter that many clients share.
    pub fn owner_index(&self) -> Option<usize> {
        self.owner
    }

    pub fn owner(&self) -> Option<&KeyPart> {
        self.owner.map(|owner| &self.parts[owner])
    }
}

impl KeyPart {
    pub fn is_sensitive(&self) -> bool {
        self.sensitivity == Sensitivity::Sensitive
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.value)
    }
}

impl fmt::Display for CounterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, part) in self.parts.iter().enumerate() {
            let separator = if n == 0 { "" } else { "+" };
            write!(f, "{separator}{part}")?;
        }
        Ok(())
    }
}

/// Which values appear in plain text in the store's keys; the others are hashed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[deny(missing_docs)]
pub enum KeyVisibility {
    /// All: `store_keys: plain`.
    All,
    /// All but emails, API keys, tokens and cookies: `store_keys: sensitive`.
    #[default]
    Public,
    /// None: `store_keys: hashed`.
    None,
}

impl KeyVisibility {
    /// The values of `store_keys` in the configuration file.
    pub(crate) const NAMES: [(&str, KeyVisibility); 3] = [
        ("plain", KeyVisibility::All),
        ("sensitive", KeyVisibility::Public),
        ("hashed", KeyVisibility::None),
    ];

    /// The value of `store_keys` in the configuration file.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, visibility)| *visibility == self).map_or("", |(name, _)| name)
    }
}
