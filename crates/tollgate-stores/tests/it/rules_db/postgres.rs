//! The scenarios on PostgreSQL.

use tollgate_testkit::servers::postgres::Postgres;

fn start() -> Option<(String, Postgres)> {
    let server = Postgres::start("rules in PostgreSQL")?;
    Some((server.url(), server))
}

crate::rules_db::stamp_all!(start());
