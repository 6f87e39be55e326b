//! Responses to the client: errors, tunnels.

pub(super) mod tunnel;
