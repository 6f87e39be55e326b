//! The session with the cluster: opened in the background, monitored, behind a breaker.
//!
//! The driver routes each request to a replica of its row. It never resends: a transaction whose outcome is unknown is
//! looked up first (`rows`).

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::load_balancing::{DefaultPolicy, LoadBalancingPolicy};
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::statement::SerialConsistency;
use scylla::statement::prepared::PreparedStatement;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::address::{CassandraAddress, ShardAwarePort};
use super::schema::table;
use crate::counters::StoreError;
use crate::counters::breaker::Breaker;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout of opening a new session.
const RENEW_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two attempts at a new session, which connects to every server.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// A connection that is silent for two of these is closed.
const KEEPALIVE: Duration = Duration::from_secs(5);

pub(super) struct CassandraLink {
    pub(super) server: String,
    pub(super) breaker: Arc<Breaker>,
    statements: watch::Receiver<Option<Arc<PreparedSession>>>,
    task: JoinHandle<()>,
}

/// A session and its prepared statements.
pub(super) struct PreparedSession {
    pub(super) session: Session,
    pub(super) read: PreparedStatement,
    pub(super) update: PreparedStatement,
    pub(super) delete: PreparedStatement,
}

impl CassandraLink {
    /// Connects in the background. Must be called inside a tokio runtime.
    pub(super) fn open(address: CassandraAddress) -> CassandraLink {
        let server = address.name();
        let breaker = Arc::new(Breaker::new(server.as_str()));
        let (session_tx, ready) = watch::channel(None);
        let task = tokio::spawn(maintain_session(address, breaker.clone(), session_tx));
        CassandraLink { server, breaker, statements: ready, task }
    }

    /// The statements, once there is a session.
    pub(super) async fn statements(&self, deadline: Instant) -> Result<Arc<PreparedSession>, StoreError> {
        let mut ready = self.statements.clone();
        let session = timeout_at(deadline, ready.wait_for(Option::is_some)).await;
        let session = session.ok().and_then(|session| session.ok()?.clone());
        session.ok_or_else(|| StoreError::Unreachable {
            server: self.server.clone(),
            reason: "there is no session yet".to_owned(),
        })
    }
}

impl Drop for CassandraLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Opens the session, and probes the cluster when the breaker is due for a probe.
async fn maintain_session(
    address: CassandraAddress,
    breaker: Arc<Breaker>,
    session_tx: watch::Sender<Option<Arc<PreparedSession>>>,
) {
    let mut statements = loop {
        match open_session(&address).await {
            Ok(statements) => break statements,
            Err(reason) => wait_for_probe(&breaker, &reason).await,
        }
    };
    breaker.probe_succeeded();
    session_tx.send_replace(Some(statements.clone()));
    let mut renew_at = Instant::now();
    loop {
        breaker.probe_due().await;
        match timeout(PROBE_TIMEOUT, statements.probe()).await {
            Ok(Ok(())) => breaker.probe_succeeded(),
            Err(_) => breaker.probe_failed("it does not answer"),
            Ok(Err(reason)) if Instant::now() < renew_at => breaker.probe_failed(&reason),
            // The driver waits up to ten seconds before it redials a server; a new session dials at once.
            Ok(Err(reason)) => {
                match timeout(RENEW_TIMEOUT, open_session(&address)).await {
                    Ok(Ok(renewed)) => {
                        statements = renewed;
                        session_tx.send_replace(Some(statements.clone()));
                        breaker.probe_succeeded();
                    }
                    _ => breaker.probe_failed(&reason),
                }
                renew_at = Instant::now() + RENEW_INTERVAL;
            }
        }
    }
}

async fn open_session(address: &CassandraAddress) -> Result<Arc<PreparedSession>, String> {
    let session = connect(address).await?;
    let [read, update, delete] = prepare(&session, address).await?;
    Ok(Arc::new(PreparedSession { session, read, update, delete }))
}

async fn wait_for_probe(breaker: &Breaker, reason: &str) {
    breaker.trip(reason);
    breaker.probe_failed(reason);
    breaker.probe_due().await;
}

/// Opens a session without a keyspace.
pub(super) async fn connect(address: &CassandraAddress) -> Result<Session, String> {
    let profile = ExecutionProfile::builder()
        .load_balancing_policy(load_balancing(address))
        .consistency(address.consistency)
        .serial_consistency(Some(address.serial))
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .request_timeout(None)
        .build();
    let mut builder = SessionBuilder::new()
        .known_nodes(&address.servers)
        .default_execution_profile_handle(profile.into_handle())
        .connection_timeout(CONNECT_TIMEOUT)
        .keepalive_interval(KEEPALIVE)
        .keepalive_timeout(KEEPALIVE)
        .disallow_shard_aware_port(address.shard_aware_port == ShardAwarePort::Off)
        // Enough for routing requests to replicas.
        .keyspaces_to_fetch([&address.keyspace])
        .fetch_full_schema_metadata(false);
    if let Some(credentials) = &address.credentials {
        builder = builder.user(&credentials.user, &credentials.password);
    }
    match timeout(2 * CONNECT_TIMEOUT, builder.build()).await {
        Ok(Ok(session)) => check_datacenter(&session, address).map(|()| session),
        Ok(Err(error)) => Err(error_chain(&error)),
        Err(_) => Err("it accepts connections and does not answer".to_owned()),
    }
}

/// Prefers the servers of the address's datacenter. Fails over to another datacenter only with `serial`: with
/// `local_serial` each datacenter has its own count.
fn load_balancing(address: &CassandraAddress) -> Arc<dyn LoadBalancingPolicy> {
    let mut policy = DefaultPolicy::builder();
    if let Some(datacenter) = &address.datacenter {
        let is_global = address.serial == SerialConsistency::Serial;
        policy = policy.prefer_datacenter(datacenter.clone()).permit_dc_failover(is_global);
    }
    policy.build()
}

/// A misspelt datacenter would leave no server.
fn check_datacenter(session: &Session, address: &CassandraAddress) -> Result<(), String> {
    let Some(wanted) = &address.datacenter else { return Ok(()) };
    let state = session.get_cluster_state();
    let known: BTreeSet<_> =
        state.get_nodes_info().iter().filter_map(|node| node.datacenter.as_deref()).collect();
    if known.contains(wanted.as_str()) {
        return Ok(());
    }
    let known: Vec<_> = known.into_iter().collect();
    Err(format!("datacenter={wanted}: the cluster has {}", known.join(", ")))
}

async fn prepare(session: &Session, address: &CassandraAddress) -> Result<[PreparedStatement; 3], String> {
    let table = table(address);
    let statement = async |text: String| {
        let prepared = session.prepare(text).await;
        prepared
            .map_err(|error| format!("{}; tollgate store init creates what is missing", error_chain(&error)))
    };
    let mut read = statement(format!(
        "SELECT counter, version, nonce, state FROM {table} WHERE owner = ? AND counter IN ?"
    ))
    .await?;
    read.set_consistency(address.read_consistency());
    let update = statement(format!(
        "UPDATE {table} USING TTL ? SET version = ?, nonce = ?, state = ? WHERE owner = ? AND counter = ? IF version = ?"
    ))
    .await?;
    let delete = statement(format!("DELETE FROM {table} WHERE owner = ? AND counter = ? IF EXISTS")).await?;
    Ok([read, update, delete])
}

impl PreparedSession {
    /// Reads a row that does not exist, the same way as charges read.
    async fn probe(&self) -> Result<(), String> {
        let no_row: (&str, Vec<&str>) = ("nobody", vec![""]);
        let response = self.session.execute_unpaged(&self.read, no_row).await;
        response.map(|_| ()).map_err(|error| error_chain(&error))
    }
}

/// The messages of an error and its causes, without repetitions.
pub(super) fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let message = inner.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = inner.source();
    }
    text
}
