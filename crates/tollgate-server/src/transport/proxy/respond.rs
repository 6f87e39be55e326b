//! Responses to the client: writing them, and tunnels.

pub(super) mod copied_response;
pub(super) mod response_writer;
pub(super) mod tunnel;
