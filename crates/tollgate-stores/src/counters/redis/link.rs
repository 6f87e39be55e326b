//! One server: its connection, kept up in the background, its breaker and its clock.
//!
//! Making a connection is the probe of the breaker. A server that stops answering loses its connection: what was
//! sent over it is not sent again, and runs into its deadline on the server.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::address::Endpoint;
use super::clock::ServerClock;
use super::connection::{Connection, NotSent};
use super::dial::{Dialed, Manner, PATIENCE, ask, dial, dial_store};
use super::resp::{Reply, command};
use crate::counters::StoreError;
use crate::counters::breaker::{Breaker, ServerHealth};

/// How long one sentinel may take to answer.
const SENTINEL_PATIENCE: Duration = Duration::from_millis(250);

/// How to find the server.
pub(super) enum Route {
    Fixed(Endpoint),
    /// Whoever the sentinels call the primary of a service.
    Sentinels {
        sentinels: Vec<Endpoint>,
        service: String,
        manner: Manner,
    },
}

pub(super) struct Link {
    shared: Arc<Shared>,
    current: watch::Receiver<Option<Arc<Connection>>>,
    task: AbortHandle,
}

struct Shared {
    server: String,
    breaker: Breaker,
    clock: ServerClock,
}

impl Link {
    /// Keeps a connection up from now on, until it is dropped.
    pub(super) fn open(route: Route, manner: Manner) -> Link {
        let server = match &route {
            Route::Fixed(endpoint) => endpoint.to_string(),
            Route::Sentinels { service, .. } => service.clone(),
        };
        let breaker = Breaker::new(server.as_str());
        let shared = Arc::new(Shared { server, breaker, clock: ServerClock::new() });
        let (sender, current) = watch::channel(None);
        let task = tokio::spawn(keep(Arc::clone(&shared), route, manner, sender)).abort_handle();
        Link { shared, current, task }
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
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Reply, StoreError> {
        let Shared { breaker, server, .. } = &*self.shared;
        breaker.admit()?;
        let connection = self.connected(deadline).await?;
        let before = asking.then(|| command(&["ASKING"]));
        let pending = match connection.send(before.as_deref(), write) {
            Ok(pending) => pending,
            Err(NotSent::Full) => return Err(StoreError::Busy { server: server.clone() }),
            Err(NotSent::Closed(reason)) => return Err(self.unreachable(reason)),
        };
        match timeout_at(deadline, pending).await {
            Ok(Ok(reply)) => {
                breaker.succeeded();
                Ok(reply)
            }
            Ok(Err(_)) => Err(self.unreachable(connection.closed().unwrap_or_default())),
            Err(_) => {
                breaker.failed("no answer within the deadline");
                Err(StoreError::Deadline { server: server.clone() })
            }
        }
    }

    /// The connection; only while none was made yet, and the breaker is closed, it is waited for.
    pub(super) async fn connected(&self, deadline: Instant) -> Result<Arc<Connection>, StoreError> {
        if let Some(connection) = &*self.current.borrow() {
            return Ok(Arc::clone(connection));
        }
        let mut current = self.current.clone();
        let connected = timeout_at(deadline, current.wait_for(Option::is_some)).await;
        match connected {
            Ok(Ok(connection)) => Ok(connection.clone().expect("it was waited for")),
            _ => {
                self.shared.breaker.failed("no connection");
                let trouble = self.shared.breaker.health().trouble;
                Err(self.unreachable(trouble.unwrap_or_else(|| "no connection yet".to_owned())))
            }
        }
    }

    pub(super) fn health(&self) -> ServerHealth {
        let health = self.shared.breaker.health();
        let connecting = self.current.borrow().is_none().then(|| "no connection yet".to_owned());
        ServerHealth { trouble: health.trouble.clone().or(connecting), ..health }
    }

    /// Gives the connection up: the server is not what it was.
    pub(super) fn abandon(&self, reason: &str) {
        if let Some(connection) = &*self.current.borrow() {
            connection.close(reason);
        }
    }

    pub(super) fn unreachable(&self, reason: String) -> StoreError {
        StoreError::Unreachable { server: self.shared.server.clone(), reason }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.abandon("it is no longer used");
        self.task.abort();
    }
}

async fn keep(
    shared: Arc<Shared>,
    route: Route,
    manner: Manner,
    current: watch::Sender<Option<Arc<Connection>>>,
) {
    let Shared { breaker, clock, .. } = &*shared;
    loop {
        let made = timeout(PATIENCE, connect(&route, &manner, clock)).await;
        match made.unwrap_or_else(|_| Err("it accepts connections but does not answer".to_owned())) {
            Ok(connection) => {
                breaker.probe_succeeded();
                current.send_replace(Some(connection.shared()));
                tokio::select! {
                    reason = connection.wait_closed() => tracing::debug!(server = %shared.server, %reason, "connection lost"),
                    () = breaker.opened() => connection.close("it has stopped answering"),
                }
                current.send_replace(None);
                if !breaker.is_open() {
                    continue; // a server may close what is idle: no outage unless it cannot be reached
                }
            }
            Err(reason) => {
                breaker.trip(&reason);
                breaker.probe_failed(&reason);
            }
        }
        breaker.probe_due().await;
    }
}

async fn connect(route: &Route, manner: &Manner, clock: &ServerClock) -> Result<Dialed, String> {
    match route {
        Route::Fixed(endpoint) => dial_store(endpoint, manner, clock).await,
        Route::Sentinels { sentinels, service, manner: sentinel_manner } => {
            let mut reason = "no sentinel".to_owned();
            for sentinel in sentinels {
                let found = timeout(SENTINEL_PATIENCE, primary_of(sentinel, service, sentinel_manner)).await;
                match found.unwrap_or_else(|_| Err(format!("sentinel {sentinel} does not answer"))) {
                    Ok(primary) => match dial_store(&primary, manner, clock).await {
                        Ok(connection) => return Ok(connection),
                        Err(error) => reason = format!("{primary}: {error}"),
                    },
                    Err(error) => reason = error,
                }
            }
            Err(reason)
        }
    }
}

/// Who the sentinel calls the primary.
async fn primary_of(sentinel: &Endpoint, service: &str, manner: &Manner) -> Result<Endpoint, String> {
    let connection = dial(sentinel, manner).await.map_err(|error| format!("sentinel {sentinel}: {error}"))?;
    let reply = ask(&connection, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service]).await;
    let told = match reply.map_err(|error| format!("sentinel {sentinel}: {error}"))? {
        Reply::Array(parts) => parts,
        Reply::Error(error) => return Err(format!("sentinel {sentinel}: {error}")),
        _ => return Err(format!("sentinel {sentinel} does not know the service '{service}'")),
    };
    let (host, port) = (told.first().and_then(Reply::text), told.get(1).and_then(Reply::number));
    match (host, port.and_then(|port| u16::try_from(port).ok())) {
        (Some(host), Some(port)) => Ok(Endpoint::Tcp { host: host.to_owned(), port }),
        _ => Err(format!("sentinel {sentinel} gives no address")),
    }
}
