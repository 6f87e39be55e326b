//! One server: its connection, kept up in the background, its breaker and its clock.
//!
//! Making a connection is the probe of the breaker. A server that stops answering loses its connection: what was
//! sent over it is not sent again, and runs into its deadline on the server. What was not sent, because the
//! connection had closed already, goes over the next one if that is there in time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::address::Endpoint;
use super::clock::ServerClock;
use super::connection::{RedisConnection, SendError};
use super::dial::{CONNECT_TIMEOUT, OwnedConnection, RedisConnectOptions, dial_store, send_command};
use super::resp::{RedisReply, encode_command};
use super::sentinels::{Primary, Sentinels};
use crate::counters::StoreError;
use crate::counters::breaker::{Breaker, ServerHealth};

/// A server that has missed a deadline and does not answer a `PING` for so long has stopped answering.
const PING_TIMEOUT: Duration = Duration::from_millis(500);
/// Connections that one request may find closed before it is sent.
const MAX_CLOSED_CONNECTIONS: usize = 3;

/// How to find the server.
pub(super) enum RedisDiscovery {
    Fixed(Endpoint),
    /// Whichever server the sentinels call the primary.
    Sentinels(Sentinels),
}

pub(super) struct RedisLink {
    shared: Arc<RedisLinkShared>,
    current: watch::Receiver<Option<Arc<RedisConnection>>>,
    task: AbortHandle,
}

struct RedisLinkShared {
    server: String,
    breaker: Breaker,
    clock: ServerClock,
    /// A request was not answered in time.
    deadline_missed: Notify,
    /// Told at the first sign that the server may be gone.
    suspected: Arc<Notify>,
}

impl RedisLink {
    /// Keeps a connection up from now on, until it is dropped; `in_trouble` is told when the server may be gone.
    pub(super) fn open(
        route: RedisDiscovery,
        options: RedisConnectOptions,
        in_trouble: Arc<Notify>,
    ) -> RedisLink {
        let server = match &route {
            RedisDiscovery::Fixed(endpoint) => endpoint.to_string(),
            RedisDiscovery::Sentinels(sentinels) => sentinels.service.clone(),
        };
        let breaker = Breaker::new(server.as_str());
        let shared = Arc::new(RedisLinkShared {
            server,
            breaker,
            clock: ServerClock::new(),
            deadline_missed: Notify::new(),
            suspected: in_trouble,
        });
        let (sender, current) = watch::channel(None);
        let task =
            tokio::spawn(maintain_connection(Arc::clone(&shared), route, options, sender)).abort_handle();
        RedisLink { shared, current, task }
    }

    pub(super) fn server(&self) -> &str {
        &self.shared.server
    }

    pub(super) fn breaker(&self) -> &Breaker {
        &self.shared.breaker
    }

    pub(super) fn clock(&self) -> &ServerClock {
        &self.shared.clock
    }

    /// Sends one command and waits for its answer until `deadline`. An error says whether it may have run.
    pub(super) async fn call(
        &self,
        deadline: Instant,
        asking: bool,
        write: impl Fn(&mut Vec<u8>),
    ) -> Result<RedisReply, StoreError> {
        let RedisLinkShared { breaker, server, .. } = &*self.shared;
        breaker.admit()?;
        let before = asking.then(|| encode_command(&["ASKING"]));
        let mut closed = String::new();
        for attempt in 0..MAX_CLOSED_CONNECTIONS {
            let connection = match attempt {
                0 => self.connected(deadline).await?,
                _ => self.next_connection(deadline).await?,
            };
            let pending = match connection.send(before.as_deref(), &write) {
                Ok(pending) => pending,
                Err(SendError::Full) => return Err(StoreError::Busy { server: server.clone() }),
                Err(SendError::Closed(reason)) => {
                    closed = reason;
                    continue; // nothing was sent
                }
            };
            return match timeout_at(deadline, pending).await {
                Ok(Ok(reply)) => {
                    breaker.record_success();
                    Ok(reply)
                }
                Ok(Err(_)) => Err(self.unreachable(connection.close_reason().unwrap_or_default())),
                Err(_) => {
                    breaker.record_failure("no answer within the deadline");
                    self.shared.deadline_missed.notify_one();
                    Err(StoreError::Deadline { server: server.clone() })
                }
            };
        }
        Err(self.unreachable(closed))
    }

    /// The connection. While there is none, but the breaker is closed, the next one is waited for.
    pub(super) async fn connected(&self, deadline: Instant) -> Result<Arc<RedisConnection>, StoreError> {
        if let Some(connection) = &*self.current.borrow() {
            return Ok(Arc::clone(connection));
        }
        self.next_connection(deadline).await
    }

    /// A connection that is not closed, or that the breaker opens.
    async fn next_connection(&self, deadline: Instant) -> Result<Arc<RedisConnection>, StoreError> {
        let RedisLinkShared { breaker, .. } = &*self.shared;
        let mut current = self.current.clone();
        let is_open = |current: &Option<Arc<RedisConnection>>| {
            current.as_ref().is_some_and(|it| it.close_reason().is_none())
        };
        tokio::select! {
            connected = timeout_at(deadline, current.wait_for(is_open)) => match connected {
                Ok(Ok(connection)) => return Ok(connection.clone().expect("it was waited for")),
                _ => breaker.record_failure("no connection"),
            },
            () = breaker.wait_until_open() => {}
        }
        let trouble = breaker.health().trouble;
        Err(self.unreachable(trouble.unwrap_or_else(|| "no connection yet".to_owned())))
    }

    /// The connection, if there is one that works.
    pub(super) fn established(&self) -> Option<Arc<RedisConnection>> {
        self.current.borrow().clone().filter(|connection| connection.close_reason().is_none())
    }

    pub(super) fn health(&self) -> ServerHealth {
        let health = self.shared.breaker.health();
        let connecting = self.current.borrow().is_none().then(|| "no connection yet".to_owned());
        ServerHealth { trouble: health.trouble.clone().or(connecting), ..health }
    }

    /// Gives the connection up: the server is not what it was.
    pub(super) fn close_connection(&self, reason: &str) {
        if let Some(connection) = &*self.current.borrow() {
            connection.close(reason);
        }
    }

    pub(super) fn unreachable(&self, reason: String) -> StoreError {
        StoreError::Unreachable { server: self.shared.server.clone(), reason }
    }
}

impl Drop for RedisLink {
    fn drop(&mut self) {
        self.close_connection("it is no longer used");
        self.task.abort();
    }
}

async fn maintain_connection(
    shared: Arc<RedisLinkShared>,
    route: RedisDiscovery,
    options: RedisConnectOptions,
    current: watch::Sender<Option<Arc<RedisConnection>>>,
) {
    let RedisLinkShared { breaker, clock, .. } = &*shared;
    let mut last: Option<Endpoint> = None;
    loop {
        let primary = match &route {
            RedisDiscovery::Fixed(endpoint) => connect(endpoint, &options, breaker, clock).await,
            RedisDiscovery::Sentinels(sentinels) => sentinels.find_primary(&options, breaker, clock).await,
        };
        match last {
            Some(last) if last != primary.endpoint => breaker.close_after_failover(),
            _ => breaker.probe_succeeded(),
        }
        clock.replace(&primary.clock);
        last = Some(primary.endpoint);
        current.send_replace(Some(primary.connection.shared()));
        let reason = watch_connection(&shared, &primary.connection).await;
        tracing::debug!(server = %shared.server, %reason, "connection lost");
        current.send_replace(None);
        shared.suspected.notify_one();
    }
}

/// Returns when the connection is of no use any more, and why.
async fn watch_connection(shared: &RedisLinkShared, connection: &OwnedConnection) -> String {
    let stopped = "it has stopped answering";
    loop {
        tokio::select! {
            reason = connection.wait_closed() => return reason,
            () = shared.breaker.wait_until_open() => {
                connection.close(stopped);
                return stopped.to_owned();
            }
            // One request that was too slow says little; with few requests the next ones would say it late.
            () = shared.deadline_missed.notified() => {
                shared.suspected.notify_one();
                if timeout(PING_TIMEOUT, send_command(connection, &["PING"])).await.is_err() {
                    shared.breaker.trip("no answer to a PING");
                }
            }
        }
    }
}

/// Connects to a server that is known by its address, as often as the breaker wants to know.
async fn connect(
    endpoint: &Endpoint,
    options: &RedisConnectOptions,
    breaker: &Breaker,
    clock: &ServerClock,
) -> Primary {
    loop {
        // A connection that is closed for being idle is no outage unless the next one cannot be had.
        if breaker.is_open() {
            breaker.probe_due().await;
        }
        let clock = clock.without_bounds();
        let dialed = timeout(CONNECT_TIMEOUT, dial_store(endpoint, options, &clock)).await;
        match dialed.unwrap_or_else(|_| Err("it accepts connections but does not answer".to_owned())) {
            Ok(connection) => return Primary { endpoint: endpoint.clone(), connection, clock },
            Err(reason) => {
                breaker.trip(&reason);
                breaker.probe_failed(&reason);
            }
        }
    }
}
