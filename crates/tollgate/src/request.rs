//! A request as rules see it: its target in one canonical spelling, and the fields in it.

pub mod fields;
pub mod host;
pub mod percent;
pub mod target;

pub use target::Target;
