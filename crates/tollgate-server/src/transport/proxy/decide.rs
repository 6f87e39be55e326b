//! Turns a request into a hit and gets a verdict.

pub(super) mod content_type;
pub(super) mod identify;
pub(super) mod json;
pub(super) mod multipart;
