//! Denial tickets: why a request was denied, sealed, so that nothing has to be stored to explain it later.
//!
//! A ticket is encrypted and authenticated (AES-256-GCM), because it states what other clients must not learn or change:
//! the node, the mark of the key, how much was used. It never contains the key's text. The header in front is
//! authenticated too: the format, an id of the key, a salt of the process and a counter. Each process seals with a key of
//! its own, derived from the salt, so counters of different processes cannot repeat a nonce.
//!
//! The key is derived from `receipt_key_file`, which all nodes share. Without one it is derived from the secret that is
//! saved with the node's state, and only this node can read its tickets.

use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use thiserror::Error;

use crate::fingerprint::Fingerprint;
use crate::rule::RuleId;
use crate::time::Time;
use crate::verdict::{EngineVerdict, Reason, VerdictId};

mod contents;

use contents::{read_contents, write_contents};

/// A denial as its ticket states it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub id: VerdictId,
    /// In whole milliseconds.
    pub at: Time,
    pub reason: Reason,
    /// The key that was denied or banned, as redacted logs of the node show it.
    pub key_mark: Option<Fingerprint>,
    /// `None` if no rule denied the request.
    pub denied_by: Option<TicketLimit>,
}

/// The limit that denied a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TicketLimit {
    pub rule: RuleId,
    /// As the rule states it.
    pub limit: String,
    pub used: u64,
    pub cost: u64,
    /// Of the limit, in milliseconds; `None` if the request can never pass.
    pub retry_after_ms: Option<u64>,
}

const FORMAT: u8 = 1;
/// What a newer version would write. All formats have the id of the key behind this byte.
const NEXT_FORMAT: u8 = FORMAT + 1;
const KEY_ID_BYTES: usize = 4;
const SALT_BYTES: usize = 8;
/// Enough for nine years of a million tickets a second.
const COUNTER_BYTES: usize = 6;
const HEADER_BYTES: usize = 1 + KEY_ID_BYTES + SALT_BYTES + COUNTER_BYTES;
/// The tag of AES-GCM.
const SEAL_BYTES: usize = 16;
/// The format and the id of the key.
const FRONT_BYTES: usize = 1 + KEY_ID_BYTES;
/// The text that has the front in it.
const FRONT_TEXT_BYTES: usize = 8;
/// A ticket without a rule is longer than its header and its seal.
const MIN_TEXT_BYTES: usize = (HEADER_BYTES + SEAL_BYTES) * 4 / 3;
/// A ticket with the longest rule id and limit is shorter.
const MAX_TEXT_BYTES: usize = 512;

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TicketError {
    #[error(
        "this is not a ticket: expected the text of `ticket` or `instance` of a denied request, which is about 100 letters, \
         digits, - and _ and begins with A; a request that was allowed has none"
    )]
    NotATicket,
    #[error(
        "the ticket was written by a newer version of Tollgate, or was altered: explain it with the version that denied \
         the request"
    )]
    NewerFormat,
    #[error(
        "the ticket was sealed with the key {ticket_key}, and this node has the key {own_key}: ask the node whose \
         `tollgate status` shows {ticket_key}{}; if there is none, the ticket was altered", if *is_shared { ", or the fleet \
         whose receipt_key_file it was" } else { " (with receipt_key_file all nodes of a fleet explain each other's tickets)" }
    )]
    OtherKey { ticket_key: String, own_key: String, is_shared: bool },
    #[error("the ticket is incomplete or was altered: copy it again, from its first to its last character")]
    Altered,
}

/// Seals and opens tickets.
pub struct Tickets {
    /// Derives the keys of processes.
    root: hmac::Key,
    key_id: [u8; KEY_ID_BYTES],
    scope: KeyScope,
    salt: [u8; SALT_BYTES],
    sealing_key: LessSafeKey,
    sealed: AtomicU64,
}

/// Which nodes can open a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyScope {
    /// Every node with the same `receipt_key_file`.
    Fleet,
    /// The node that sealed it, as long as its saved state is kept.
    Node,
}

impl Tickets {
    pub fn new(secret: &[u8], scope: KeyScope) -> Tickets {
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), b"tollgate ticket keys");
        let root = hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref());
        let digest = hmac::sign(&root, b"id");
        let (key_id, _) = digest.as_ref().split_first_chunk().expect("a digest has 32 bytes");
        let key_id = *key_id;
        let mut salt = [0; SALT_BYTES];
        SystemRandom::new().fill(&mut salt).expect("the system has random numbers");
        let sealing_key = process_key(&root, &salt);
        Tickets { root, key_id, scope, salt, sealing_key, sealed: AtomicU64::new(0) }
    }

    /// The id of the key: that of the node, or of all nodes with the same `receipt_key_file`.
    pub fn key_id(&self) -> String {
        hex(&self.key_id)
    }

    pub fn scope(&self) -> KeyScope {
        self.scope
    }

    /// The ticket of a verdict that denies, decided at `at`.
    pub fn seal(&self, verdict: &EngineVerdict, key_mark: Option<Fingerprint>, at: Time) -> String {
        let counter = self.sealed.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let [_, _, counter @ ..] = counter;
        let mut bytes = Vec::with_capacity(MAX_TEXT_BYTES);
        bytes.push(FORMAT);
        bytes.extend_from_slice(&self.key_id);
        bytes.extend_from_slice(&self.salt);
        bytes.extend_from_slice(&counter);
        write_contents(&mut bytes, verdict, key_mark, at);
        let (header, contents) = bytes.split_at_mut(HEADER_BYTES);
        let tag = self.sealing_key.seal_in_place_separate_tag(nonce(counter), Aad::from(header), contents);
        let tag = tag.expect("a ticket is shorter than the cipher's bound");
        bytes.extend_from_slice(tag.as_ref());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The contents of a ticket, which may be part of a URI.
    pub fn open(&self, text: &str) -> Result<Ticket, TicketError> {
        let text = text.trim();
        let text = text.rsplit([':', '/']).next().unwrap_or(text);
        if !(MIN_TEXT_BYTES..=MAX_TEXT_BYTES).contains(&text.len()) {
            return Err(self.trouble_of_short(text));
        }
        let Ok(mut bytes) = URL_SAFE_NO_PAD.decode(text) else {
            return Err(self.trouble_of_short(text));
        };
        let (header, sealed) = bytes.split_at_mut_checked(HEADER_BYTES).ok_or(TicketError::NotATicket)?;
        let (front, rest) = header.split_at(FRONT_BYTES);
        let (salt, counter) = rest.split_first_chunk().ok_or(TicketError::NotATicket)?;
        let counter = counter.try_into().map_err(|_| TicketError::NotATicket)?;
        // The seal is of the front that this node writes: if it is whole, but another one was read, that one was altered.
        let own_front = self.front();
        let sealed_header = [&own_front[..], rest].concat();
        let key = process_key(&self.root, salt);
        let opened = key.open_in_place(nonce(counter), Aad::from(sealed_header), sealed);
        match opened {
            Ok(contents) if front == own_front => read_contents(contents).ok_or(TicketError::Altered),
            Ok(_) => Err(TicketError::Altered),
            Err(_) => Err(self.trouble_of(front)),
        }
    }

    /// What the header of every ticket of this key begins with.
    fn front(&self) -> [u8; FRONT_BYTES] {
        let mut front = [FORMAT; FRONT_BYTES];
        front[1..].copy_from_slice(&self.key_id);
        front
    }

    /// Why a text whose seal is not valid is none, by its first bytes.
    fn trouble_of(&self, front: &[u8]) -> TicketError {
        let Some((format, key_id)) = front.split_first() else { return TicketError::NotATicket };
        match (*format, key_id == self.key_id) {
            (FORMAT, true) => TicketError::Altered,
            (FORMAT, false) => TicketError::OtherKey {
                ticket_key: hex(key_id),
                own_key: self.key_id(),
                is_shared: self.scope == KeyScope::Fleet,
            },
            (NEXT_FORMAT, true) => TicketError::NewerFormat,
            (_, true) => TicketError::Altered,
            (_, false) => TicketError::NotATicket,
        }
    }

    /// Why a text that cannot be a whole ticket is none: it may be a part of one.
    fn trouble_of_short(&self, text: &str) -> TicketError {
        let front = text.get(..FRONT_TEXT_BYTES).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        let is_own = front.is_some_and(|front| front.starts_with(&self.front()));
        if is_own { TicketError::Altered } else { TicketError::NotATicket }
    }
}

fn process_key(root: &hmac::Key, salt: &[u8; SALT_BYTES]) -> LessSafeKey {
    let key = hmac::sign(root, salt);
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.as_ref()).expect("a digest has the key's length"))
}

/// A counter never repeats under the key of a process.
fn nonce(counter: [u8; COUNTER_BYTES]) -> Nonce {
    let mut nonce = [0; 12];
    nonce[12 - COUNTER_BYTES..].copy_from_slice(&counter);
    Nonce::assume_unique_for_key(nonce)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
