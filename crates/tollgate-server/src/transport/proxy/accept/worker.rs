//! Workers: one thread each, with a runtime of its own, so that an exchange never changes threads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::connection::{
    AcceptedConnection, Acceptor, AddressLimiter, ConnectionPermits, DRAIN_TIMEOUT, Shutdown,
};
use crate::transport::proxy::Proxy;
use crate::transport::proxy::accept::client_connection::serve_client;

/// After [`DRAIN_TIMEOUT`], the time for a worker to notice the end.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// A connection on its way to its worker's runtime.
struct Assigned {
    stream: std::net::TcpStream,
    from: SocketAddr,
    permits: ConnectionPermits,
}

struct Worker {
    connections: mpsc::UnboundedSender<Assigned>,
    connection_count: Arc<AtomicUsize>,
    ended: oneshot::Receiver<()>,
}

/// Accepts connections until the shutdown, and passes each to the worker with the fewest.
pub async fn serve(
    proxy: Arc<Proxy>,
    listener: TcpListener,
    per_address: Arc<AddressLimiter>,
    tls: Option<Arc<ServerConfig>>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let start = |number| Worker::start(Arc::clone(&proxy), number, tls.clone(), shutdown.clone());
    let workers: Vec<_> = (0..proxy.workers).map(start).collect::<anyhow::Result<_>>()?;
    let mut acceptor = Acceptor::new(listener, per_address, shutdown);
    while let Some(AcceptedConnection { stream, peer, permits }) = acceptor.next().await {
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "an accepted connection cannot be passed to a worker");
                continue;
            }
        };
        let least = workers.iter().min_by_key(|worker| worker.connection_count.load(Ordering::Relaxed));
        let Some(worker) = least else { break };
        worker.connection_count.fetch_add(1, Ordering::Relaxed);
        worker.connections.send(Assigned { stream, from: peer, permits }).ok();
    }
    drop(acceptor);
    // A worker that hangs must not keep the process alive.
    let deadline = Instant::now() + DRAIN_TIMEOUT + STOP_GRACE;
    for worker in workers {
        drop(worker.connections);
        if timeout_at(deadline, worker.ended).await.is_err() {
            tracing::error!("a worker of the proxy did not stop in time and was abandoned");
        }
    }
    Ok(())
}

impl Worker {
    fn start(
        proxy: Arc<Proxy>,
        number: usize,
        tls: Option<Arc<ServerConfig>>,
        shutdown: Shutdown,
    ) -> anyhow::Result<Worker> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
        let (connections, assigned) = mpsc::unbounded_channel();
        let (done, ended) = oneshot::channel();
        let connection_count = Arc::new(AtomicUsize::new(0));
        let shared_count = Arc::clone(&connection_count);
        let run = move || {
            runtime.block_on(run_worker(proxy, number, assigned, shared_count, tls, shutdown));
            done.send(()).ok();
        };
        thread::Builder::new().name(format!("proxy-{number}")).spawn(run).context("no thread")?;
        Ok(Worker { connections, connection_count, ended })
    }
}

async fn run_worker(
    proxy: Arc<Proxy>,
    number: usize,
    mut assigned: mpsc::UnboundedReceiver<Assigned>,
    connection_count: Arc<AtomicUsize>,
    tls: Option<Arc<ServerConfig>>,
    shutdown: Shutdown,
) {
    tokio::spawn(Arc::clone(&proxy).run_heartbeat(number));
    let mut connections = JoinSet::new();
    while let Some(Assigned { stream, from, permits }) = assigned.recv().await {
        let proxy = Arc::clone(&proxy);
        let tls = tls.clone();
        let shutdown = shutdown.clone();
        let connection_count = Arc::clone(&connection_count);
        connections.spawn(async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve_client(proxy, number, stream, from, tls, shutdown).await;
            }
            connection_count.fetch_sub(1, Ordering::Relaxed);
            drop(permits);
        });
        while connections.try_join_next().is_some() {}
    }
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(DRAIN_TIMEOUT, drained).await.is_err() {
        tracing::warn!("some connections did not finish in time and were closed");
    }
}
