//! Between a verdict and the upstream: hold queues, the durable request queue, settlement of charges.

pub(super) mod budget;
pub(super) mod enqueue;
pub(super) mod hold;
pub(super) mod replay;
pub(super) mod retry_schedule;
pub(super) mod settlement;
