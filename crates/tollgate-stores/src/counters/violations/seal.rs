//! Keys inside values: readable if names are, otherwise encrypted under a key derived from the same secret.
//!
//! Without a secret this hides keys from casual view, not from a reader of this source. A node that learns of a ban
//! needs the key itself, so a hash, as in names, is not enough.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use crate::counters::name::Naming;

/// Domain separation from the secret's other use, the hashing of names.
const PURPOSE: &[u8] = b"tollgate: keys of bans";

pub(super) struct Seal(Option<LessSafeKey>);

impl Seal {
    pub(super) fn of(naming: &Naming) -> Seal {
        Seal(match naming {
            Naming::Plain => None,
            Naming::Sensitive(hash) | Naming::Hashed(hash) => {
                let key = UnboundKey::new(&CHACHA20_POLY1305, &hash.derive(PURPOSE));
                Some(LessSafeKey::new(key.expect("a SHA-256 is as long as a key")))
            }
        })
    }

    /// Returns the nonce followed by the ciphertext.
    pub(super) fn seal(&self, mut text: Vec<u8>) -> Vec<u8> {
        let Some(key) = &self.0 else { return text };
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).expect("the system has randomness");
        let sealed =
            key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut text);
        sealed.expect("a key is short enough to be sealed");
        [&nonce[..], &text].concat()
    }

    /// `None` if it was not sealed with this secret.
    pub(super) fn open(&self, mut sealed: Vec<u8>) -> Option<Vec<u8>> {
        let Some(key) = &self.0 else { return Some(sealed) };
        let mut text = sealed.split_off(sealed.len().min(NONCE_LEN));
        let nonce = Nonce::try_assume_unique_for_key(&sealed).ok()?;
        key.open_in_place(nonce, Aad::empty(), &mut text).ok().map(|text| text.to_vec())
    }
}
