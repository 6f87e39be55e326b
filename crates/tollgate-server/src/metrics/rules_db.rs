//! Metrics of the rules database.

use std::fmt;

use tollgate::Time;

use crate::metrics::writer::MetricsWriter;
use crate::rules_follower::{RulesDbStatus, RulesFollower, RulesSource};

impl MetricsWriter<'_> {
    pub(super) fn rules_db(&mut self, rulebook: &RulesFollower, now: Time) -> fmt::Result {
        let standing = rulebook.status();
        let mut sources = self.gauges(
            "tollgate_rules_source",
            "Where the rules in force beside those of the file are from: 1 for that source.",
        )?;
        for source in RulesSource::ALL {
            let is_in_use = u64::from(source == standing.source);
            sources.sample(&[("source", source.name())], is_in_use)?;
        }
        if standing.has_copy {
            self.rules_copy(&standing, now)?;
        }
        self.gauge(
            "tollgate_rules_db_writable",
            "Whether edits are possible.",
            u64::from(rulebook.db().is_ok() && standing.write_error.is_none()),
        )?;
        self.gauge(
            "tollgate_rules_db_up",
            "Whether the rules database can be read.",
            u64::from(standing.read_error.is_none()),
        )?;
        self.gauge(
            "tollgate_rules_db_version",
            "The number of the latest change in force here.",
            standing.version.map_or(0, |version| version.number()),
        )?;
        if let Some(lag) = standing.lag {
            self.gauge("tollgate_rules_db_lag_changes", "Changes that the server which is read lacks.", lag)?;
        }
        self.gauge(
            "tollgate_rules_db_left_out",
            "Things in the rules database that cannot be in force here.",
            standing.left_out.len() as u64,
        )
    }

    fn rules_copy(&mut self, standing: &RulesDbStatus, now: Time) -> fmt::Result {
        self.gauge(
            "tollgate_rules_copy_up",
            "Whether the local copy of the rules database can be written.",
            u64::from(standing.copy.is_some() && standing.copy_error.is_none()),
        )?;
        let Some(copy) = standing.copy else { return Ok(()) };
        self.gauge(
            "tollgate_rules_copy_version",
            "The number of the latest change in the local copy.",
            copy.version.number(),
        )?;
        self.gauge(
            "tollgate_rules_copy_age_seconds",
            "How long ago the local copy was known to be what the database is.",
            copy.age(now).as_secs(),
        )
    }
}
