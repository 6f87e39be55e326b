//! Between a verdict and the upstream: held requests, the durable request queue.

pub(super) mod budget;
pub(super) mod enqueue;
pub(super) mod replay;
pub(super) mod retry_schedule;
