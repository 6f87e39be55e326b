//! The verdict of a request that could wait, where too many wait already.

use std::time::Duration;

use super::{EngineVerdict, Reason};
use crate::algorithm::Admission;

impl EngineVerdict {
    /// Turns the verdict of a request that was to be held, and is not, into a denial by the limit with the longest wait.
    pub fn refuse_hold(&mut self) {
        let enforced = self.limits.iter().enumerate().filter(|(_, limit)| limit.is_enforced());
        let Some((n, retry_after)) =
            enforced.map(|(n, limit)| (n, limit.delay())).max_by_key(|(_, delay)| *delay)
        else {
            return;
        };
        self.limits[n].outcome.decision.admission = Admission::Deny { retry_after };
        self.reported = Some(n);
        self.allowed = false;
        self.reason = Reason::Limit;
        self.retry_after = Some(retry_after);
        self.delay = Duration::ZERO;
    }
}
