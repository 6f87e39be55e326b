//! Responses to the client: errors, merged headers, tunnels.

pub(super) mod error_response;
pub(super) mod merge_headers;
pub(super) mod tunnel;
