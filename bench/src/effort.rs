//! How much is measured: all of it, what fits three minutes, or just enough to see that it works.

use std::time::Duration;

use crate::keys::Layout;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    pub name: &'static str,
    pub rounds: usize,
    /// Runs untimed before each measurement, and timed.
    pub warm: Duration,
    pub slice: Duration,
    /// Key counts are divided by this.
    shrink: usize,
    /// Slow rivals take part up to this many keys.
    pub slow_keys: usize,
    /// The best so many exact rivals take part with ten million keys.
    pub rivals_at_most_keys: usize,
    /// Denials and skew are measured for `u64` keys too.
    pub every_line: bool,
    /// Loading a million rules may take this long.
    pub load: Duration,
    pub layout: Layout,
}

impl Effort {
    pub const FULL: Effort = Effort {
        name: "full",
        rounds: 9,
        warm: Duration::from_millis(25),
        slice: Duration::from_millis(60),
        shrink: 1,
        slow_keys: 1_000_000,
        rivals_at_most_keys: 4,
        every_line: true,
        load: Duration::from_secs(120),
        layout: Layout::Warm,
    };

    pub const QUICK: Effort = Effort {
        name: "quick",
        rounds: 5,
        warm: Duration::from_millis(8),
        slice: Duration::from_millis(12),
        shrink: 1,
        slow_keys: 100_000,
        rivals_at_most_keys: 2,
        every_line: false,
        load: Duration::from_secs(20),
        layout: Layout::Warm,
    };

    pub const SMOKE: Effort = Effort {
        name: "smoke",
        rounds: 1,
        warm: Duration::from_millis(1),
        slice: Duration::from_millis(2),
        shrink: 20,
        slow_keys: 50_000,
        rivals_at_most_keys: 2,
        every_line: false,
        load: Duration::from_secs(3),
        layout: Layout::Warm,
    };

    pub fn keys(&self, count: usize) -> usize {
        (count / self.shrink).max(1)
    }

    pub fn warning(&self) -> Option<String> {
        (self.shrink > 1).then(|| {
            format!(
                "SMOKE: one short round with 1/{} of the keys named; the numbers mean nothing",
                self.shrink
            )
        })
    }
}
