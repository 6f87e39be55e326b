//! How close clients are to the limits of a rule, of the rules that live insight counts by themselves.

use std::fmt;

use crate::insight::{InsightData, RuleHistory, SeriesName};
use crate::metrics::rules::OTHER;
use crate::metrics::writer::MetricsWriter;

/// The deciles of the used share that are shown: the median, nine tenths, and the largest.
const SHOWN_DECILES: [(usize, &str); 3] = [(4, "0.5"), (8, "0.9"), (9, "1")];

impl MetricsWriter<'_> {
    pub(super) fn activity(&mut self, data: &InsightData) -> fmt::Result {
        // A rule named as all others together has no series of its own: the page would have it twice.
        let own = data.by_activity().into_iter();
        let own = own.filter_map(|series| Some((series.rule.as_ref()?.as_str(), series)));
        let other = data.series(SeriesName::Other).map(|series| (OTHER, series));
        let rules: Vec<(&str, &RuleHistory)> = own.filter(|(rule, _)| *rule != OTHER).chain(other).collect();
        let mut used = self.gauges(
            "tollgate_rule_limit_used_ratio",
            "Share of the limit that clients have used at their requests in the last one to two minutes, in steps of 0.05.",
        )?;
        for (rule, series) in &rules {
            let deciles = series.headroom();
            for (decile, quantile) in SHOWN_DECILES {
                if let Some(share) = deciles.get(decile) {
                    used.sample_ratio(&[("rule", rule), ("quantile", quantile)], *share)?;
                }
            }
        }
        let mut near = self.gauges(
            "tollgate_rule_near_limit_requests",
            "Requests in the last minute that were admitted with 80 % or more of the limit used.",
        )?;
        for (rule, series) in &rules {
            near.sample(&[("rule", rule)], series.near_limit())?;
        }
        let mut limited = self.gauges(
            "tollgate_rule_limited_keys",
            "Different keys that were denied in the last hour: an estimate.",
        )?;
        for (rule, series) in &rules {
            limited.sample(&[("rule", rule)], series.clients_limited())?;
        }
        Ok(())
    }
}
