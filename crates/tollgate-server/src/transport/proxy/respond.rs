//! Responses to the client: errors, tunnels.

pub(super) mod error_response;
pub(super) mod tunnel;
