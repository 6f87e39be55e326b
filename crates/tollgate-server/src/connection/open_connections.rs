//! Open connections by listener, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tollgate::internal::lock;

/// The listeners of a node.
#[derive(Default)]
pub struct OpenConnections(Mutex<Vec<(&'static str, ConnectionGauge)>>);

/// The open connections of one listener.
#[derive(Clone, Default)]
pub struct ConnectionGauge(Arc<AtomicU64>);

/// An open connection, until it is dropped.
pub struct OpenConnection(ConnectionGauge);

impl OpenConnections {
    /// The gauge of a listener that begins to listen.
    pub fn gauge(&self, listener: &'static str) -> ConnectionGauge {
        let gauge = ConnectionGauge::default();
        let mut listeners = lock(&self.0);
        listeners.push((listener, gauge.clone()));
        gauge
    }

    /// Each listener with its number of open connections.
    pub fn by_listener(&self) -> Vec<(&'static str, u64)> {
        let listeners = lock(&self.0);
        listeners.iter().map(|(listener, gauge)| (*listener, gauge.0.load(Ordering::Relaxed))).collect()
    }
}

impl ConnectionGauge {
    pub fn open(&self) -> OpenConnection {
        self.0.fetch_add(1, Ordering::Relaxed);
        OpenConnection(self.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
