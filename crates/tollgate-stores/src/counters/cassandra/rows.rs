//! Rows are read at serial consistency and changed by lightweight transactions.
//!
//! Every row has a version that only grows and the nonce of the transaction that wrote it. After a timeout a serial
//! read decides the outcome: our nonce means applied, the old version means not applied so far, anything else is
//! unknown.
//!
//! A transaction that is not applied so far may still be in flight, in the network or in its coordinator, and be
//! applied later. So it is resent unchanged, with the same nonce and the same condition: at most one of the two is
//! applied.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::response::query_result::QueryResult;
use scylla::statement::Consistency;
use scylla::statement::batch::{Batch, BatchType};
use scylla::value::CqlValue;
use scylla::value::Row as Columns;
use tokio::time::{Instant, timeout_at};

use super::link::{CassandraLink, PreparedSession, error_chain};
use crate::counters::StoreError;
use crate::counters::transactions::{CasOutcome, CasStore, CasValue, CasWrite};

/// The latest expiry date that the server can represent: a row beyond it gets no TTL.
const MAX_EXPIRY_SECS: u64 = i32::MAX as u64;
/// Times that one transaction is sent.
const MAX_SENDS: usize = 3;
/// The share of the remaining time for a transaction; the rest is for looking up its outcome.
const WRITE_SHARE: f64 = 0.6;

/// A partition of the executor is a partition of the table.
pub(in crate::counters) struct CassandraRows {
    pub(super) link: CassandraLink,
    pub(super) slack: Duration,
}

/// A row as stored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct CounterRow {
    version: Option<i64>,
    nonce: Option<i64>,
    state: Option<Vec<u8>>,
}

/// The outcome of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TransactionOutcome {
    Applied,
    /// It may still be applied if it is in flight.
    NotApplied,
    Unknown,
}

impl CasStore for CassandraRows {
    type Token = Option<i64>;
    const RETRY_BACKOFF: Duration = Duration::from_millis(4);
    const MAX_WRITES: usize = 32;

    async fn load(
        &self,
        partition: &str,
        names: &[String],
        deadline: Instant,
    ) -> Result<Vec<CasValue<Option<i64>>>, StoreError> {
        let rows = self.read(partition, names, deadline).await?;
        Ok(rows.into_iter().map(|row| CasValue { bytes: row.state, token: row.version }).collect())
    }

    async fn swap(
        &self,
        partition: &str,
        writes: &[CasWrite<Option<i64>>],
        deadline: Instant,
    ) -> Result<CasOutcome, StoreError> {
        let statements = self.link.statements(deadline).await?;
        let nonce = fastrand::i64(1..);
        let mut in_doubt = false;
        for _ in 0..MAX_SENDS {
            let left = deadline.saturating_duration_since(Instant::now());
            let write_by = Instant::now() + left.mul_f64(WRITE_SHARE);
            match timeout_at(write_by, self.write(&statements, partition, writes, nonce)).await {
                Ok(Ok(result)) => match applied(result) {
                    Some(true) => return Ok(self.done()),
                    Some(false) if in_doubt => {}
                    Some(false) => return Ok(CasOutcome::Conflict),
                    None => return Err(self.refused("the response lacks the result of a transaction")),
                },
                Ok(Err(error)) if proves_not_applied(&error) => return Err(self.failed(&error)),
                Ok(Err(_)) | Err(_) => in_doubt = true,
            }
            match self.look_up_outcome(partition, writes, nonce, deadline).await? {
                TransactionOutcome::Applied => return Ok(self.done()),
                TransactionOutcome::NotApplied => {}
                TransactionOutcome::Unknown => break,
            }
        }
        Err(StoreError::Deadline { server: self.link.server.clone() })
    }

    fn server(&self, _partition: &str) -> String {
        self.link.server.clone()
    }
}

impl CassandraRows {
    /// Deletes a row; returns whether it existed.
    pub(super) async fn delete(
        &self,
        partition: &str,
        name: &str,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let statements = self.link.statements(deadline).await?;
        let response = statements.session.execute_unpaged(&statements.delete, (partition, name));
        let result = self.with_deadline(deadline, response).await?;
        applied(result).ok_or_else(|| self.refused("the response does not say whether the row existed"))
    }

    async fn read(
        &self,
        partition: &str,
        names: &[String],
        deadline: Instant,
    ) -> Result<Vec<CounterRow>, StoreError> {
        let statements = self.link.statements(deadline).await?;
        let response = statements.session.execute_unpaged(&statements.read, (partition, names));
        let result = self.with_deadline(deadline, response).await?;
        let unreadable = || {
            self.refused("the table has rows of an unexpected format: was it created by tollgate store init?")
        };
        let result = result.into_rows_result().map_err(|_| unreadable())?;
        let found = result.rows::<(String, Option<i64>, Option<i64>, Option<Vec<u8>>)>();
        let mut rows = vec![CounterRow::default(); names.len()];
        for row in found.map_err(|_| unreadable())? {
            let (name, version, nonce, state) = row.map_err(|_| unreadable())?;
            if let Some(index) = names.iter().position(|known| *known == name) {
                rows[index] = CounterRow { version, nonce, state };
            }
        }
        Ok(rows)
    }

    /// One transaction on one partition.
    async fn write(
        &self,
        statements: &PreparedSession,
        partition: &str,
        writes: &[CasWrite<Option<i64>>],
        nonce: i64,
    ) -> Result<QueryResult, ExecutionError> {
        let values = |write: &CasWrite<Option<i64>>| {
            let version = write.token.map_or(0, |token| token.saturating_add(1)).max(now_micros());
            let CasWrite { name, token, bytes, lifetime } = write.clone();
            (self.ttl(lifetime), version, nonce, bytes, partition.to_owned(), name, token)
        };
        if let [write] = writes {
            return statements.session.execute_unpaged(&statements.update, values(write)).await;
        }
        let mut batch = Batch::new(BatchType::Unlogged);
        writes.iter().for_each(|_| batch.append_statement(statements.update.clone()));
        statements.session.batch(&batch, writes.iter().map(values).collect::<Vec<_>>()).await
    }

    /// Looks up the outcome of a transaction with a serial read.
    async fn look_up_outcome(
        &self,
        partition: &str,
        writes: &[CasWrite<Option<i64>>],
        nonce: i64,
        deadline: Instant,
    ) -> Result<TransactionOutcome, StoreError> {
        let names: Vec<_> = writes.iter().map(|write| write.name.clone()).collect();
        let rows = self.read(partition, &names, deadline).await?;
        Ok(outcome_of(&rows, writes, nonce))
    }

    fn done(&self) -> CasOutcome {
        self.link.breaker.record_success();
        CasOutcome::Applied
    }

    /// Waits for a reply, and reports the result to the breaker.
    async fn with_deadline(
        &self,
        deadline: Instant,
        response: impl Future<Output = Result<QueryResult, ExecutionError>>,
    ) -> Result<QueryResult, StoreError> {
        match timeout_at(deadline, response).await {
            Ok(Ok(result)) => {
                self.link.breaker.record_success();
                Ok(result)
            }
            Ok(Err(error)) => Err(self.failed(&error)),
            Err(_) => {
                self.link.breaker.record_failure("it does not answer in time");
                Err(StoreError::Deadline { server: self.link.server.clone() })
            }
        }
    }

    fn failed(&self, error: &ExecutionError) -> StoreError {
        let server = self.link.server.clone();
        let reason = error_chain(error);
        let error = match error {
            ExecutionError::LastAttemptError(RequestAttemptError::DbError(reply, _)) => match reply {
                DbError::ReadTimeout { .. } | DbError::WriteTimeout { .. } => StoreError::Deadline { server },
                DbError::Unavailable { .. } | DbError::Overloaded | DbError::IsBootstrapping => {
                    StoreError::Unreachable { server, reason: reason.clone() }
                }
                _ => return StoreError::Refused { server, reason },
            },
            ExecutionError::RequestTimeout(_) => StoreError::Deadline { server },
            ExecutionError::BadQuery(_) => return StoreError::Refused { server, reason },
            _ => StoreError::Unreachable { server, reason: reason.clone() },
        };
        self.link.breaker.record_failure(&reason);
        error
    }

    fn refused(&self, reason: &str) -> StoreError {
        StoreError::Refused { server: self.link.server.clone(), reason: reason.to_owned() }
    }

    /// A lifetime in seconds; zero means no expiry.
    fn ttl(&self, lifetime: Duration) -> i32 {
        let lifetime = lifetime.saturating_add(self.slack);
        let seconds = lifetime.as_secs() + u64::from(lifetime.subsec_nanos() > 0);
        let date = (now_micros() as u64 / 1_000_000).saturating_add(seconds);
        if date <= MAX_EXPIRY_SECS { i32::try_from(seconds.max(1)).unwrap_or(0) } else { 0 }
    }
}

/// The outcome of the transaction with this nonce according to its rows. It wrote all of them or none.
fn outcome_of(rows: &[CounterRow], writes: &[CasWrite<Option<i64>>], nonce: i64) -> TransactionOutcome {
    if rows.iter().any(|row| row.nonce == Some(nonce)) {
        TransactionOutcome::Applied
    } else if rows.iter().zip(writes).all(|(row, write)| row.version == write.token) {
        TransactionOutcome::NotApplied
    } else {
        TransactionOutcome::Unknown
    }
}

/// Whether an error guarantees that nothing was applied.
fn proves_not_applied(error: &ExecutionError) -> bool {
    match error {
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(reply, _)) => match reply {
            DbError::SyntaxError
            | DbError::Invalid
            | DbError::Unauthorized
            | DbError::ConfigError
            | DbError::Overloaded
            | DbError::IsBootstrapping => true,
            // At a serial consistency, replicas were missing for the rounds of Paxos, before any was asked to accept. At any
            // other, they were missing for the commit that follows an accepted proposal.
            DbError::Unavailable { consistency, .. } => {
                matches!(consistency, Consistency::Serial | Consistency::LocalSerial)
            }
            _ => false,
        },
        ExecutionError::BadQuery(_) | ExecutionError::EmptyPlan | ExecutionError::ConnectionPoolError(_) => {
            true
        }
        _ => false,
    }
}

/// The `[applied]` column of a transaction's result.
fn applied(result: QueryResult) -> Option<bool> {
    let rows = result.into_rows_result().ok()?;
    let first = rows.first_row::<Columns>().ok()?;
    first.columns.into_iter().next()?.as_ref().and_then(CqlValue::as_boolean)
}

fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(version: Option<i64>, nonce: Option<i64>) -> CounterRow {
        CounterRow { version, nonce, state: None }
    }

    fn write(seen: Option<i64>) -> CasWrite<Option<i64>> {
        CasWrite { name: "n".to_owned(), token: seen, bytes: Vec::new(), lifetime: Duration::ZERO }
    }

    #[test]
    fn nonce_and_version_determine_the_outcome_of_a_transaction() {
        let writes = [write(Some(7)), write(None)];
        let rows = [row(Some(8), Some(42)), row(Some(8), Some(42))];
        assert_eq!(outcome_of(&rows, &writes, 42), TransactionOutcome::Applied);
        assert_eq!(
            outcome_of(&rows, &writes, 43),
            TransactionOutcome::Unknown,
            "applied and overwritten, or not applied"
        );
        let as_before = [row(Some(7), Some(41)), row(None, None)];
        assert_eq!(outcome_of(&as_before, &writes, 42), TransactionOutcome::NotApplied);
        let over_one = [row(Some(8), Some(42)), row(Some(9), Some(50))];
        assert_eq!(
            outcome_of(&over_one, &writes, 42),
            TransactionOutcome::Applied,
            "another node has overwritten one of them since"
        );
    }

    /// ScyllaDB's manual: a transaction that lacks replicas for its commit round is applied nevertheless.
    #[test]
    fn only_missing_serial_replicas_mean_that_nothing_was_done() {
        let unavailable = |consistency| {
            let reply = DbError::Unavailable { consistency, required: 2, alive: 1 };
            ExecutionError::LastAttemptError(RequestAttemptError::DbError(reply, String::new()))
        };
        assert!(proves_not_applied(&unavailable(Consistency::Serial)));
        assert!(proves_not_applied(&unavailable(Consistency::LocalSerial)));
        assert!(!proves_not_applied(&unavailable(Consistency::Quorum)));
    }
}
