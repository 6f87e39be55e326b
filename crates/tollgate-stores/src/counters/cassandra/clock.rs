//! The clock of the server that answers.

use std::time::Duration;

use scylla::statement::{Consistency, Statement};
use scylla::value::CqlTimestamp;
use tokio::time::{Instant, timeout};
use tollgate::Time;

use super::address::CassandraAddress;
use super::link::{self, error_chain};
use crate::server_time::ClockReading;

const RESOLUTION: Duration = Duration::from_millis(1);

/// The time of one server of the cluster.
pub async fn server_time(address: &CassandraAddress, deadline: Duration) -> Result<ClockReading, String> {
    let read = timeout(deadline, read_time(address)).await;
    read.unwrap_or_else(|_| Err("no answer in time".to_owned()))
}

async fn read_time(address: &CassandraAddress) -> Result<ClockReading, String> {
    let session = link::connect(address).await?;
    let mut statement = Statement::new("SELECT toTimestamp(now()) FROM system.local WHERE key = 'local'");
    statement.set_consistency(Consistency::One);
    let sent = Instant::now();
    let answer = session.query_unpaged(statement, ()).await.map_err(|error| error_chain(&error))?;
    let round_trip = sent.elapsed();
    let rows = answer.into_rows_result().map_err(|error| error_chain(&error))?;
    let (CqlTimestamp(millis),) = rows.first_row().map_err(|error| error_chain(&error))?;
    let at = Time::EPOCH + Duration::from_millis(millis.unsigned_abs());
    Ok(ClockReading::new(address.name(), at, RESOLUTION, round_trip))
}
