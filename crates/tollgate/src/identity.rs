//! Who is asking: what can be told of a request, in normal form, and the keys made of it.

pub mod address;
mod attribute;
pub mod forwarded;
pub(crate) mod key;
pub mod normal;
pub mod sensitive;

pub use attribute::{Attribute, Source};
pub use key::{Key, KeyError, WrittenPart};
