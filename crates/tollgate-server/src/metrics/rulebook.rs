//! What the metrics say of the rules database.

use crate::metrics::Page;
use crate::rulebook::Rulebook;

impl Page {
    pub(super) fn rulebook(&mut self, rulebook: &Rulebook) {
        let standing = rulebook.standing();
        self.one(
            "tollgate_rules_db_up",
            "gauge",
            "Whether the rules database can be read.",
            u64::from(standing.trouble.is_none()),
        );
        self.one(
            "tollgate_rules_db_version",
            "gauge",
            "The number of the latest change in force here.",
            standing.version.map_or(0, |version| version.number()),
        );
        if let Some(lag) = standing.lag {
            self.one(
                "tollgate_rules_db_lag_changes",
                "gauge",
                "Changes that the server which is read lacks.",
                lag,
            );
        }
        self.one(
            "tollgate_rules_db_left_out",
            "gauge",
            "Things in the rules database that cannot be in force here.",
            standing.left_out.len() as u64,
        );
    }
}
