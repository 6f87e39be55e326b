//! Selects the server to write and the server to read.
//!
//! Writes go to the server that is not in recovery and has the latest timeline: a promoted standby is found
//! automatically, and an old primary that returns is not written again. Reads go to the replica with the shortest
//! round trip.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};
use tokio_postgres::Client;

use super::connection::{PgConnectOptions, PgConnection, PgFailure, is_usable_after};
use super::tls::PgTls;
use super::{PgServer, PostgresAddress, log};
use crate::rules::{DbError, Version};

const READ_DEADLINE: Duration = Duration::from_secs(5);
/// Interval of selecting the replica again, so that one that lags far behind is left.
const RESELECT_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct PgCluster {
    servers: Vec<PgServer>,
    options: PgConnectOptions,
    writer: Mutex<Option<PrimaryConnection>>,
    reader: Mutex<Option<(Arc<PgConnection>, Instant)>>,
    /// The latest timeline that this process has written to.
    timeline: AtomicU32,
}

#[derive(Debug)]
struct PrimaryConnection {
    connection: PgConnection,
    timeline: u32,
}

/// How far the server that is read lags behind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaLag {
    pub server: String,
    /// In changes; `None` while no primary replies.
    pub changes: Option<u64>,
    /// Why the primary is not writable.
    pub write_trouble: Option<String>,
}

/// A server and its state.
struct ProbedServer {
    connection: PgConnection,
    state: log::PgServerState,
    round_trip: Duration,
}

impl PgCluster {
    /// Loads the certificates that the address names.
    pub(super) fn new(address: PostgresAddress) -> Result<PgCluster, DbError> {
        let PostgresAddress { servers, trust, root, password_file } = address;
        let tls = trust.map(|trust| PgTls::new(trust, root.as_deref())).transpose();
        let tls =
            tls.map_err(|why| DbError::Unreadable { location: "the rules database".to_owned(), why })?;
        let options = PgConnectOptions { tls, password_file };
        let writer = Mutex::default();
        let reader = Mutex::default();
        Ok(PgCluster { servers, options, writer, reader, timeline: AtomicU32::new(0) })
    }

    /// The connection for changes, exclusive to one caller.
    pub(super) async fn writer(&self) -> Result<PrimaryGuard<'_>, DbError> {
        let mut held = self.writer.lock().await;
        if held.as_ref().is_none_or(|written| written.connection.client.is_closed()) {
            let found = self.find_primary().await?;
            *held = Some(PrimaryConnection { connection: found.connection, timeline: found.state.timeline });
        }
        Ok(PrimaryGuard { guard: held })
    }

    /// A separate connection to the primary.
    pub(super) async fn new_writer(&self) -> Result<PgConnection, DbError> {
        self.find_primary().await.map(|found| found.connection)
    }

    async fn find_primary(&self) -> Result<ProbedServer, DbError> {
        let (found, mut troubles) = self.probe_all().await;
        let latest = self.timeline.load(Ordering::Relaxed);
        let mut primary: Option<ProbedServer> = None;
        for one in found {
            let rank = |found: &ProbedServer| (found.state.timeline, found.state.last);
            if one.state.in_recovery {
                troubles.push(format!("{} is a standby", one.connection.name));
            } else if one.state.timeline < latest {
                troubles.push(format!("{} is an old primary: another was promoted", one.connection.name));
            } else if primary.as_ref().is_none_or(|best| rank(best) < rank(&one)) {
                primary = Some(one);
            }
        }
        let unwritable = || {
            let troubles = troubles.join("; ");
            let why = format!("there is no primary until it is back or a standby is promoted ({troubles})");
            DbError::Unwritable { location: "the rules database".to_owned(), why }
        };
        let primary = primary.ok_or_else(unwritable)?;
        self.timeline.fetch_max(primary.state.timeline, Ordering::Relaxed);
        Ok(primary)
    }

    /// The shared connection for reads.
    pub(super) async fn reader(&self) -> Result<Arc<PgConnection>, DbError> {
        let mut held = self.reader.lock().await;
        if let Some((connection, since)) = &*held
            && !connection.client.is_closed()
            && since.elapsed() < RESELECT_INTERVAL
        {
            return Ok(Arc::clone(connection));
        }
        let connection = Arc::new(self.new_reader().await?);
        *held = Some((Arc::clone(&connection), Instant::now()));
        Ok(connection)
    }

    /// A separate connection to the nearest live replica, or to the primary if there is none.
    pub(super) async fn new_reader(&self) -> Result<PgConnection, DbError> {
        let (found, troubles) = self.probe_all().await;
        let best = found.into_iter().min_by_key(|found| {
            (
                !found.state.ready,
                std::cmp::Reverse(found.state.timeline),
                !found.connection.replica,
                found.round_trip,
            )
        });
        let why =
            || DbError::Unreadable { location: "the rules database".to_owned(), why: troubles.join("; ") };
        best.map(|found| found.connection).ok_or_else(why)
    }

    async fn probe_all(&self) -> (Vec<ProbedServer>, Vec<String>) {
        let probes = self.servers.iter().map(|server| async move {
            let probe = async {
                let connection = PgConnection::connect(server, &self.options).await?;
                let start = Instant::now();
                let state = log::server_state(&connection.client)
                    .await
                    .map_err(|error| super::connection::error_text(&error))?;
                Ok(ProbedServer { connection, state, round_trip: start.elapsed() })
            };
            let answer =
                timeout(READ_DEADLINE, probe).await.unwrap_or_else(|_| Err("no answer in time".to_owned()));
            answer.map_err(|why| format!("{}: {why}", server.name))
        });
        let mut found = Vec::new();
        let mut troubles = Vec::new();
        for answer in join_all(probes).await {
            match answer {
                Ok(one) => found.push(one),
                Err(trouble) => troubles.push(trouble),
            }
        }
        (found, troubles)
    }

    /// Runs a read; retries once on another server if the first one is unreachable.
    pub(super) async fn read<T, F>(&self, job: impl Fn(Arc<PgConnection>) -> F) -> Result<T, DbError>
    where
        F: Future<Output = Result<T, PgFailure>>,
    {
        let connection = self.reader().await?;
        let failure = match timeout(READ_DEADLINE, job(Arc::clone(&connection))).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(PgFailure::Rejected(error))) => return Err(error),
            Ok(Err(failure)) => failure,
            Err(_) => PgFailure::TimedOut,
        };
        if matches!(&failure, PgFailure::Server(error) if is_usable_after(error)) {
            return Err(connection.read_error(failure));
        }
        self.drop_reader(&connection).await;
        let connection = self.reader().await?;
        match timeout(READ_DEADLINE, job(Arc::clone(&connection))).await {
            Ok(done) => done.map_err(|failure| connection.read_error(failure)),
            Err(_) => Err(connection.read_error(PgFailure::TimedOut)),
        }
    }

    async fn drop_reader(&self, connection: &Arc<PgConnection>) {
        let mut held = self.reader.lock().await;
        if held.as_ref().is_some_and(|(held, _)| Arc::ptr_eq(held, connection)) {
            *held = None;
        }
    }

    pub(super) async fn lag(&self) -> Result<ReplicaLag, DbError> {
        let read: Version =
            self.read(|connection| async move { log::last_version(&connection.client).await }).await?;
        let server = self.reader().await?.name.clone();
        let primary = match self.writer().await {
            Ok(mut writer) => match timeout(READ_DEADLINE, log::last_version(writer.client())).await {
                Ok(Ok(last)) => Ok(last),
                Ok(Err(failure)) => Err(writer.into_write_error(failure)),
                Err(_) => Err(writer.into_write_error(PgFailure::TimedOut)),
            },
            Err(error) => Err(error),
        };
        let write_trouble = primary.as_ref().err().map(ToString::to_string);
        let changes = primary.ok().map(|last| last.number().saturating_sub(read.number()));
        Ok(ReplicaLag { server, changes, write_trouble })
    }
}

/// Exclusive access to the connection to the primary.
pub(super) struct PrimaryGuard<'f> {
    guard: MutexGuard<'f, Option<PrimaryConnection>>,
}

impl PrimaryGuard<'_> {
    fn primary(&mut self) -> &mut PrimaryConnection {
        self.guard.as_mut().expect("the guard is created with a connection")
    }

    pub(super) fn client(&mut self) -> &mut Client {
        &mut self.primary().connection.client
    }

    pub(super) fn timeline(&mut self) -> u32 {
        self.primary().timeline
    }

    /// Nothing was written. If the server is unreachable, the next caller selects a primary again.
    pub(super) fn into_write_error(mut self, failure: PgFailure) -> DbError {
        let location = self.primary().connection.name.clone();
        let (why, usable) = match failure {
            PgFailure::Rejected(error) => return error,
            PgFailure::Server(error) => (super::connection::error_text(&error), is_usable_after(&error)),
            PgFailure::TimedOut => ("no answer in time".to_owned(), false),
        };
        if !usable {
            *self.guard = None;
        }
        DbError::Unwritable { location, why }
    }

    pub(super) fn into_unknown_outcome(mut self) -> DbError {
        let location = self.primary().connection.name.clone();
        *self.guard = None;
        DbError::OutcomeUnknown { location }
    }
}
