//! Accepts connections within two bounds: per listener, and per client address.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use crate::connection::open_connections::OpenConnection;
use crate::connection::socket::{ListenSocket, PlainSocket};
use crate::connection::{
    AddressLimiter, AddressSlot, ConnectionGauge, MAX_CONNECTIONS, Shutdown, shutdown_requested,
};

/// Pause after an error of `accept`, such as running out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub struct Acceptor {
    listener: ListenSocket,
    gauge: ConnectionGauge,
    slots: Arc<Semaphore>,
    per_address: Arc<AddressLimiter>,
    shutdown: Shutdown,
}

pub struct AcceptedConnection {
    pub stream: PlainSocket,
    pub peer: SocketAddr,
    pub permits: ConnectionPermits,
}

/// What a connection counts against, until this is dropped.
pub struct ConnectionPermits {
    _slot: OwnedSemaphorePermit,
    _address_slot: AddressSlot,
    _open: OpenConnection,
}

impl Acceptor {
    pub fn new(
        listener: ListenSocket,
        gauge: ConnectionGauge,
        per_address: Arc<AddressLimiter>,
        shutdown: Shutdown,
    ) -> Acceptor {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        Acceptor { listener, gauge, slots, per_address, shutdown }
    }

    /// The next connection; `None` at the shutdown. A connection that its address has no slot for is closed.
    pub async fn next(&mut self) -> Option<AcceptedConnection> {
        let Acceptor { listener, gauge, slots, per_address, shutdown } = self;
        loop {
            let slot = Arc::clone(slots).acquire_owned();
            let (slot, accepted) = tokio::select! {
                () = shutdown_requested(shutdown) => return None,
                accepted = async { (slot.await, listener.accept().await) } => accepted,
            };
            let slot = slot.expect("the semaphore is never closed");
            match accepted {
                Ok((stream, peer)) => {
                    let Some(address_slot) = per_address.admit(peer.ip()) else { continue };
                    let permits =
                        ConnectionPermits { _slot: slot, _address_slot: address_slot, _open: gauge.open() };
                    return Some(AcceptedConnection { stream, peer, permits });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}
