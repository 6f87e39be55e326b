//! A request as rules see it: its target in canonical form, and its fields.

pub mod fields;
pub mod host;
pub mod percent;
pub mod target;

pub use target::Target;
