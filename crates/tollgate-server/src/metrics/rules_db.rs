//! Metrics of the rules database.

use std::fmt;

use tollgate::Time;

use crate::metrics::writer::MetricsWriter;
use crate::rules_follower::{RulesDbStatus, RulesFollower, RulesSource};

impl MetricsWriter<'_> {
    pub(super) fn rules_db(&mut self, follower: &RulesFollower, now: Time) -> fmt::Result {
        let status = follower.status();
        let mut sources = self.gauges(
            "tollgate_rules_source",
            "The source of the rules in force beside those of the file: 1 for that source.",
        )?;
        for source in RulesSource::ALL {
            let is_in_use = u64::from(source == status.source);
            sources.sample(&[("source", source.name())], is_in_use)?;
        }
        if status.has_copy {
            self.rules_copy(&status, now)?;
        }
        self.gauge(
            "tollgate_rules_db_writable",
            "Whether edits are possible.",
            u64::from(follower.db().is_ok() && status.write_error.is_none()),
        )?;
        self.gauge(
            "tollgate_rules_db_up",
            "Whether the rules database can be read.",
            u64::from(status.read_error.is_none()),
        )?;
        self.gauge(
            "tollgate_rules_db_version",
            "The number of the latest change in force on this node.",
            status.version.map_or(0, |version| version.number()),
        )?;
        if let Some(lag) = status.lag {
            self.gauge(
                "tollgate_rules_db_lag_changes",
                "Changes that the server used for reads has not received yet.",
                lag,
            )?;
        }
        self.gauge(
            "tollgate_rules_db_left_out",
            "Items of the rules database that cannot be in force on this node.",
            status.left_out.len() as u64,
        )?;
        self.gauge(
            "tollgate_rules_db_pending_edits",
            "Bans and changes of the panic switch that wait until the rules database can be written.",
            follower.pending_edits() as u64,
        )
    }

    fn rules_copy(&mut self, status: &RulesDbStatus, now: Time) -> fmt::Result {
        self.gauge(
            "tollgate_rules_copy_up",
            "Whether the local copy of the rules database can be written.",
            u64::from(status.copy.is_some() && status.copy_error.is_none()),
        )?;
        let Some(copy) = status.copy else { return Ok(()) };
        self.gauge(
            "tollgate_rules_copy_version",
            "The number of the latest change in the local copy.",
            copy.version.number(),
        )?;
        self.gauge(
            "tollgate_rules_copy_age_seconds",
            "Time since the local copy was last known to equal the database.",
            copy.age(now).as_secs(),
        )
    }
}
