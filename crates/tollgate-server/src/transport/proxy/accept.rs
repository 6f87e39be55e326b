//! Accepts client connections and reads requests: protocol, framing, and which of a request's headers are trusted.

pub(super) mod client_connection;
pub(super) mod forwarded;
pub(super) mod framing;
pub(super) mod hop_by_hop;
pub(super) mod inspect;
pub(super) mod plain_head;
pub(super) mod plain_requests;
pub(super) mod sanitize;
pub(super) mod stalled_stream;
pub(super) mod verbatim_head;
pub(super) mod websocket;
