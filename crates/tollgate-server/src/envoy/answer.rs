//! The answer to a rate limit request, independent of its encoding.

use std::time::Duration;

use smallvec::SmallVec;
use tollgate::internal::EngineVerdict;
use tollgate::internal::headers::Headers;
use tollgate::internal::verdict::LimitVerdict;

use super::request::LimitUnit;

#[derive(Debug, Default)]
pub struct RateLimitAnswer {
    /// One for each descriptor, in their order.
    pub statuses: SmallVec<[DescriptorStatus; 2]>,
    /// For the response to the client.
    pub headers: Headers,
}

impl RateLimitAnswer {
    pub fn is_over_limit(&self) -> bool {
        self.statuses.iter().any(|status| status.is_over_limit)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DescriptorStatus {
    pub is_over_limit: bool,
    /// The limit that decided; `None` if none applies.
    pub limit: Option<StatusLimit>,
    pub remaining: u32,
    /// When denied, until the same request would pass; else until the whole limit is available. In whole seconds,
    /// rounded up: Envoy ignores fractions.
    pub reset_after: Option<Duration>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatusLimit {
    pub name: String,
    pub requests_per_unit: u32,
    /// `None` for a period that Envoy has no unit for.
    pub unit: Option<LimitUnit>,
}

impl DescriptorStatus {
    /// The status by a verdict; `refunded` is what it was charged and is not any more.
    pub fn of(verdict: &EngineVerdict, refunded: u64) -> DescriptorStatus {
        let reported = verdict.reported();
        let exact = verdict.retry_after.or(reported.map(|limit| limit.reset_after));
        let remaining = reported.map_or(0, |limit| limit.remaining + refunded.min(limit.limit.capacity()));
        DescriptorStatus {
            is_over_limit: !verdict.allowed,
            limit: reported.map(StatusLimit::of),
            remaining: saturated(remaining),
            reset_after: exact.map(|exact| Duration::from_secs(exact.as_nanos().div_ceil(NANOS) as u64)),
        }
    }
}

const NANOS: u128 = 1_000_000_000;

impl StatusLimit {
    fn of(limit: &LimitVerdict) -> StatusLimit {
        let rate = limit.limit.rate();
        let period = rate.period();
        StatusLimit {
            name: limit.rule.id.to_string(),
            requests_per_unit: saturated(rate.count()),
            unit: (period.count() == 1).then(|| LimitUnit::of(period.unit())),
        }
    }
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
