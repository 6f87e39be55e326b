//! One server: its connection, maintained in the background, its breaker and its clock.
//!
//! Connecting is the breaker's probe. The connection to a server that stops responding is closed: requests sent over
//! it are not resent, and expire on the server by their deadline. Requests that were not sent because the connection
//! had already closed use the next connection if it is established in time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{Instant, timeout, timeout_at};

use super::address::Endpoint;
use super::call::ScriptCall;
use super::clock::ServerClock;
use super::connection::{Joined, RedisConnection, SendError, Sending};
use super::dial::{CONNECT_TIMEOUT, OwnedConnection, RedisConnectOptions, dial_store, send_command};
use super::resp::RedisReply;
use super::sentinels::{Primary, Sentinels};
use super::shared_reply::ReplyLost;
use crate::counters::StoreError;
use crate::counters::breaker::{Breaker, ServerHealth, unusable};

/// A server that missed a deadline and does not reply to `PING` for this long is unreachable.
const PING_TIMEOUT: Duration = Duration::from_millis(500);
/// Closed connections that one request may encounter before it is sent.
const MAX_CLOSED_CONNECTIONS: usize = 3;

/// How the server is found.
pub(super) enum RedisDiscovery {
    Fixed(Endpoint),
    /// The primary according to the sentinels.
    Sentinels(Sentinels),
}

/// What is sent.
#[derive(Clone, Copy)]
pub(super) enum LinkRequest<'a> {
    /// An encoded command.
    Command(&'a [u8]),
    /// A request of the script, which may share a call with others.
    Charges(&'a ScriptCall<'a>),
}

/// Has the call sent that a request has opened, also if the request is dropped before.
struct OpenedCall<'c>(&'c RedisConnection);

impl Drop for OpenedCall<'_> {
    fn drop(&mut self) {
        self.0.send_queued();
    }
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
    /// Signalled when a request was not answered in time.
    deadline_missed: Notify,
    /// Signalled when the server may be unreachable.
    suspected: Arc<Notify>,
}

impl RedisLink {
    /// Maintains a connection until drop; `suspected` is notified when the server may be unreachable.
    pub(super) fn open(
        discovery: RedisDiscovery,
        options: RedisConnectOptions,
        suspected: Arc<Notify>,
    ) -> RedisLink {
        let server = match &discovery {
            RedisDiscovery::Fixed(endpoint) => endpoint.to_string(),
            RedisDiscovery::Sentinels(sentinels) => sentinels.service.clone(),
        };
        let breaker = Breaker::new(server.as_str());
        let shared = Arc::new(RedisLinkShared {
            server,
            breaker,
            clock: ServerClock::new(),
            deadline_missed: Notify::new(),
            suspected,
        });
        let (sender, current) = watch::channel(None);
        let task =
            tokio::spawn(maintain_connection(Arc::clone(&shared), discovery, options, sender)).abort_handle();
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

    /// Sends one command and waits for its reply until `deadline`. The error tells whether it may have been executed.
    pub(super) async fn call(
        &self,
        deadline: Instant,
        sending: Sending,
        request: LinkRequest<'_>,
    ) -> Result<RedisReply, StoreError> {
        let RedisLinkShared { breaker, server, .. } = &*self.shared;
        breaker.admit()?;
        let mut closed = String::new();
        for attempt in 0..MAX_CLOSED_CONNECTIONS {
            let connection = match attempt {
                0 => self.connected(deadline).await?,
                _ => self.next_connection(deadline).await?,
            };
            let exchange = self.exchange(&connection, sending, request);
            return match timeout_at(deadline, exchange).await {
                Ok(Ok(Ok(reply))) => {
                    breaker.record_success();
                    Ok(reply)
                }
                Ok(Ok(Err(ReplyLost))) => {
                    Err(self.unreachable(connection.close_reason().unwrap_or_default()))
                }
                Ok(Err(SendError::Full)) => Err(StoreError::Busy { server: server.clone() }),
                Ok(Err(SendError::Closed(reason))) => {
                    closed = reason;
                    continue; // nothing was sent
                }
                Err(_) => {
                    breaker.record_failure("no answer within the deadline");
                    self.shared.deadline_missed.notify_one();
                    Err(StoreError::Deadline { server: server.clone() })
                }
            };
        }
        Err(self.unreachable(closed))
    }

    /// Sends a command or request, and waits for its reply.
    async fn exchange(
        &self,
        connection: &RedisConnection,
        sending: Sending,
        request: LinkRequest<'_>,
    ) -> Result<Result<RedisReply, ReplyLost>, SendError> {
        match request {
            LinkRequest::Command(command) => {
                let pending = connection.send(sending, |out| out.extend_from_slice(command))?;
                Ok(pending.await.map_err(|_| ReplyLost))
            }
            LinkRequest::Charges(request) => {
                let until = self.clock().lower_bound_at(request.deadline);
                let (pending, joined) = connection.share(sending, request, until)?;
                let opened = (joined == Joined::First).then(|| OpenedCall(connection));
                yield_now().await;
                match opened {
                    Some(opened) => drop(opened),
                    None => connection.send_open_call(),
                }
                Ok(pending.await)
            }
        }
    }

    /// The connection. Without one, waits for the next while the breaker is closed.
    pub(super) async fn connected(&self, deadline: Instant) -> Result<Arc<RedisConnection>, StoreError> {
        if let Some(connection) = &*self.current.borrow() {
            return Ok(Arc::clone(connection));
        }
        self.next_connection(deadline).await
    }

    /// Waits for an open connection; fails when the breaker opens.
    async fn next_connection(&self, deadline: Instant) -> Result<Arc<RedisConnection>, StoreError> {
        let RedisLinkShared { breaker, .. } = &*self.shared;
        let mut current = self.current.clone();
        let is_open = |current: &Option<Arc<RedisConnection>>| {
            current.as_ref().is_some_and(|it| it.close_reason().is_none())
        };
        tokio::select! {
            connected = timeout_at(deadline, current.wait_for(is_open)) => match connected {
                Ok(Ok(connection)) => return Ok(connection.clone().expect("wait_for returned an open connection")),
                _ => breaker.record_failure("no connection"),
            },
            () = breaker.wait_until_open() => {}
        }
        let trouble = breaker.health().trouble;
        Err(self.unreachable(trouble.unwrap_or_else(|| "no connection yet".to_owned())))
    }

    /// The connection, if it is open.
    pub(super) fn established(&self) -> Option<Arc<RedisConnection>> {
        self.current.borrow().clone().filter(|connection| connection.close_reason().is_none())
    }

    pub(super) fn health(&self) -> ServerHealth {
        let health = self.shared.breaker.health();
        let connecting = self.current.borrow().is_none().then(|| "no connection yet".to_owned());
        ServerHealth { trouble: health.trouble.clone().or(connecting), ..health }
    }

    /// Closes the connection: the server's role has changed.
    pub(super) fn close_connection(&self, reason: &str) {
        if let Some(connection) = &*self.current.borrow() {
            connection.close(reason);
        }
    }

    pub(super) fn unreachable(&self, reason: String) -> StoreError {
        unusable(self.shared.server.clone(), reason)
    }
}

impl Drop for RedisLink {
    fn drop(&mut self) {
        self.close_connection("no longer used");
        self.task.abort();
    }
}

async fn maintain_connection(
    shared: Arc<RedisLinkShared>,
    discovery: RedisDiscovery,
    options: RedisConnectOptions,
    current: watch::Sender<Option<Arc<RedisConnection>>>,
) {
    let RedisLinkShared { breaker, clock, .. } = &*shared;
    let mut last: Option<Endpoint> = None;
    loop {
        let primary = match &discovery {
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

/// Returns the reason when the connection is no longer usable.
async fn watch_connection(shared: &RedisLinkShared, connection: &OwnedConnection) -> String {
    let stopped = "it has stopped answering";
    loop {
        tokio::select! {
            reason = connection.wait_closed() => return reason,
            () = shared.breaker.wait_until_open() => {
                connection.close(stopped);
                return stopped.to_owned();
            }
            // One late reply proves little, and under low traffic more evidence comes late: probe with `PING`.
            () = shared.deadline_missed.notified() => {
                shared.suspected.notify_one();
                if timeout(PING_TIMEOUT, send_command(connection, &["PING"])).await.is_err() {
                    shared.breaker.trip("no answer to a PING");
                }
            }
        }
    }
}

/// Connects to a fixed endpoint, at the breaker's probe interval while it is open.
async fn connect(
    endpoint: &Endpoint,
    options: &RedisConnectOptions,
    breaker: &Breaker,
    clock: &ServerClock,
) -> Primary {
    loop {
        // A connection closed for idleness is no outage unless reconnecting fails.
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
