//! The scenarios on PostgreSQL.

use crate::servers::postgres::Postgres;

fn start() -> Option<(String, Postgres)> {
    let server = Postgres::start("rules in PostgreSQL")?;
    Some((server.url(), server))
}

crate::stamp_all!(start());
