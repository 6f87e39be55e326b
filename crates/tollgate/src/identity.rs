//! Identities: the attributes of a request in normal form, and the keys made of them.

mod abridged;
pub mod address;
mod attribute;
mod cookie;
pub mod forwarded;
pub(crate) mod key;
pub mod normal;
pub mod sensitive;

pub(crate) use abridged::abridged;
pub use attribute::{Attribute, FieldSource};
pub use key::{EncodedKeyPart, Key, KeyError};
