//! The answer to a rate limit request, independent of its encoding.

use std::time::Duration;

use smallvec::SmallVec;
use tollgate::internal::EngineVerdict;
use tollgate::internal::denial::TICKET_HEADER;
use tollgate::internal::headers::Headers;
use tollgate::internal::rule::DenyOptions;
use tollgate::internal::verdict::LimitVerdict;

use super::Compat;
use super::config::{ConfiguredLimit, LimitMode, Quantity};
use super::request::LimitUnit;

#[derive(Debug, Default)]
pub struct RateLimitAnswer {
    /// One for each descriptor, in their order.
    pub statuses: SmallVec<[DescriptorStatus; 2]>,
    /// For the response to the client.
    pub headers: Headers,
    /// The body of the response to the client, if the denying rule has one.
    pub body: Option<Box<str>>,
    pub compat: Compat,
}

impl RateLimitAnswer {
    /// Adds the ticket of a denial, and the message or body that the rule sets.
    pub fn describe(&mut self, denied: &EngineVerdict, ticket: Option<&str>) {
        if let Some(ticket) = ticket {
            self.headers.add(TICKET_HEADER, ticket);
        }
        let Some(DenyOptions { message, body, .. }) = denied.deny_options() else { return };
        match body {
            Some(body) => {
                self.headers.add("content-type", &body.content_type);
                self.body = Some(body.text.clone());
            }
            // Envoy sends it as text.
            None => self.body = message.clone(),
        }
    }

    /// Whether the request is denied: over an enforced limit or, as later versions of envoyproxy/ratelimit have it, over
    /// all of its quotas.
    pub fn is_over_limit(&self) -> bool {
        let mut quotas = self.statuses.iter().filter(|status| status.is_quota).peekable();
        let denies_by_quota = self.compat == Compat::Envoy && quotas.peek().is_some();
        self.statuses.iter().any(|status| status.is_over_limit && !status.is_quota)
            || denies_by_quota && quotas.all(|status| status.is_over_limit)
    }

    /// The positions of the descriptors over a limit in quota mode; `None` if no limit is in quota mode.
    pub fn quota_violations(&self) -> Option<Vec<usize>> {
        let statuses = || self.statuses.iter().enumerate().filter(|(_, status)| status.is_quota);
        statuses().next()?;
        Some(statuses().filter(|(_, status)| status.is_over_limit).map(|(n, _)| n).collect())
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DescriptorStatus {
    pub is_over_limit: bool,
    /// Whether the limit is in quota mode: being over it does not deny the request by itself.
    pub is_quota: bool,
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
        let exact = verdict.retry_after.or(reported.map(|limit| limit.reset_after()));
        let remaining = reported.map_or(0, |limit| limit.remaining() + refunded.min(limit.limit.capacity()));
        DescriptorStatus {
            is_over_limit: !verdict.allowed,
            is_quota: false,
            limit: reported.map(StatusLimit::of),
            remaining: saturated(remaining),
            reset_after: exact.map(whole_seconds),
        }
    }

    /// The status by the verdict of a configured limit.
    pub fn configured(
        configured: &ConfiguredLimit,
        verdict: &EngineVerdict,
        refunded: u64,
    ) -> DescriptorStatus {
        let is_quota = configured.mode == LimitMode::Quota;
        let Some(limit) = verdict.limits().first() else {
            return DescriptorStatus {
                is_over_limit: !verdict.allowed,
                is_quota,
                ..DescriptorStatus::default()
            };
        };
        let is_over_limit = match configured.mode {
            LimitMode::Enforce => !verdict.allowed,
            LimitMode::Shadow => false,
            LimitMode::Quota => !limit.is_allowed(),
        };
        let remaining = if limit.is_allowed() { limit.remaining() + refunded } else { 0 };
        let status_limit = match configured.quantity {
            Quantity::Unlimited => None,
            Quantity::PerUnit { requests, unit } => Some(StatusLimit {
                name: configured.name.to_string(),
                requests_per_unit: requests,
                unit: Some(unit),
            }),
        };
        DescriptorStatus {
            is_over_limit,
            is_quota,
            limit: status_limit,
            remaining: saturated(remaining),
            reset_after: Some(whole_seconds(limit.retry_after().unwrap_or(limit.reset_after()))),
        }
    }
}

/// Rounded up.
fn whole_seconds(exact: Duration) -> Duration {
    Duration::from_secs(u64::try_from(exact.as_nanos().div_ceil(NANOS)).unwrap_or(u64::MAX))
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
