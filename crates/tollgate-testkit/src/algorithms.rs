//! The algorithms by their names in rules.

/// Eight rate algorithms and the concurrency limit.
pub const ALGORITHMS: [&str; 9] = [
    "gcra",
    "token-bucket",
    "leaky-bucket",
    "fixed-window",
    "sliding-log",
    "sliding-compact",
    "sliding-counter",
    "tiered-window",
    "concurrency",
];
