//! Containers that know nothing of rules: persistent trees that versions of a policy share, and compact strings.

mod compact_text;
pub(crate) mod hamt;
mod inline_list;
pub(crate) mod interner;
mod lazy_arc;
mod persistent_vec;
mod push_in_place;
mod shared_str;

pub use compact_text::CompactText;
pub(crate) use hamt::Hamt;
pub(crate) use inline_list::InlineList;
pub(crate) use lazy_arc::LazyArc;
pub use persistent_vec::PersistentVec;
pub(crate) use push_in_place::push_in_place;
pub use shared_str::SharedStr;
