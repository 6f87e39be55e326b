//! Requests and responses as types of the `http` crate: the headers that a hit needs, the client's address, and the
//! headers of a verdict. It does no I/O.

mod client_address;
mod field_selection;
mod response_headers;

pub use client_address::{ProxyTrust, lines};
pub use field_selection::FieldSelection;
pub use response_headers::{HeaderValues, merge_headers};
