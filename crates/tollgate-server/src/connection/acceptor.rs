//! Accepts connections within two bounds: per listener, and per client address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use crate::connection::open_connections::OpenConnection;
use crate::connection::socket::{ListenSocket, PlainSocket};
use crate::connection::{
    AddressLimiter, AddressSlot, ConnectionGauge, MAX_CONNECTIONS, Shutdown, shutdown_requested,
};
use crate::log_rate::LogLimiter;

/// Pause after an error of `accept`, such as running out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub struct Acceptor {
    listener: ListenSocket,
    gauge: ConnectionGauge,
    slots: Arc<Semaphore>,
    per_address: Arc<AddressLimiter>,
    shutdown: Shutdown,
    failures: LogLimiter,
}

/// A connection, which has its permits.
pub struct AcceptedConnection {
    pub stream: PlainSocket,
    pub peer: SocketAddr,
}

/// What a connection counts against, until its socket is closed: also as a tunnel, after an upgrade.
pub struct ConnectionPermits {
    _slot: OwnedSemaphorePermit,
    address_slot: AddressSlot,
    _open: OpenConnection,
    per_address: Arc<AddressLimiter>,
    worker_load: Option<WorkerLoad>,
}

impl ConnectionPermits {
    /// Counts the connection for a client's address in place of the load balancer's; whether it has a slot left.
    pub fn count_for(&mut self, client: IpAddr) -> bool {
        match self.per_address.admit(client) {
            Some(slot) => {
                self.address_slot = slot;
                true
            }
            None => false,
        }
    }

    /// Counts the connection for a worker.
    pub fn assign(&mut self, connection_count: &Arc<AtomicUsize>) {
        connection_count.fetch_add(1, Ordering::Relaxed);
        self.worker_load = Some(WorkerLoad(Arc::clone(connection_count)));
    }
}

/// One of a worker's connections.
struct WorkerLoad(Arc<AtomicUsize>);

impl Drop for WorkerLoad {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One permit for each connection that a listener may have open.
pub fn connection_slots() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_CONNECTIONS))
}

impl Acceptor {
    pub fn new(
        listener: ListenSocket,
        gauge: ConnectionGauge,
        slots: Arc<Semaphore>,
        per_address: Arc<AddressLimiter>,
        shutdown: Shutdown,
    ) -> Acceptor {
        Acceptor { listener, gauge, slots, per_address, shutdown, failures: LogLimiter::default() }
    }

    /// The next connection; `None` at the shutdown. A connection that its address has no slot for is closed.
    pub async fn next(&mut self) -> Option<AcceptedConnection> {
        let Acceptor { listener, gauge, slots, per_address, shutdown, failures } = self;
        loop {
            let slot = Arc::clone(slots).acquire_owned();
            let (slot, accepted) = tokio::select! {
                () = shutdown_requested(shutdown) => return None,
                accepted = async { (slot.await, listener.accept().await) } => accepted,
            };
            let slot = slot.expect("the semaphore is never closed");
            match accepted {
                Ok((mut stream, peer)) => {
                    let Some(address_slot) = per_address.admit(peer.ip()) else { continue };
                    stream.permits = Some(ConnectionPermits {
                        _slot: slot,
                        address_slot,
                        _open: gauge.open(),
                        per_address: Arc::clone(per_address),
                        worker_load: None,
                    });
                    return Some(AcceptedConnection { stream, peer });
                }
                Err(error) => {
                    failures
                        .warn("errors of accept", || tracing::warn!(%error, "cannot accept a connection"));
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}
