//! Workers: one thread each, with a runtime of its own, so that a connection never changes threads.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::socket::{ClientSocket, DetachedSocket};
use super::{
    AcceptedConnection, Acceptor, AddressLimiter, ConnectionOpener, ConnectionPermits, DRAIN_TIMEOUT,
    Listener, Shutdown,
};

/// After [`DRAIN_TIMEOUT`], the time for a worker to notice the end.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// A protocol that workers serve.
pub trait WorkerService: Send + Sync + 'static {
    /// The listener's name, in logs and names of threads.
    const NAME: &'static str;

    /// Called in the runtime of each worker when it starts.
    fn start_worker(&self, _worker: usize) {}

    /// Serves one connection to its end.
    fn serve(
        &self,
        worker: usize,
        stream: ClientSocket,
        peer: SocketAddr,
        shutdown: Shutdown,
    ) -> impl Future<Output = ()> + Send;
}

/// One worker for each processor.
pub fn default_workers() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A connection on its way to its worker's runtime.
struct Assigned {
    stream: DetachedSocket,
    from: SocketAddr,
    permits: ConnectionPermits,
}

struct Worker {
    connections: mpsc::UnboundedSender<Assigned>,
    connection_count: Arc<AtomicUsize>,
    ended: oneshot::Receiver<()>,
}

/// Accepts connections until the shutdown, and passes each to the worker with the fewest.
pub async fn serve_on_workers<S: WorkerService>(
    service: Arc<S>,
    workers: usize,
    listener: Listener,
    per_address: Arc<AddressLimiter>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let Listener { socket, opener, gauge } = listener;
    let start = |number| Worker::start(Arc::clone(&service), Arc::clone(&opener), number, shutdown.clone());
    let workers: Vec<_> = (0..workers).map(start).collect::<anyhow::Result<_>>()?;
    let mut acceptor = Acceptor::new(socket, gauge, per_address, shutdown);
    while let Some(AcceptedConnection { stream, peer, permits }) = acceptor.next().await {
        let stream = match stream.detach() {
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
            tracing::error!("a worker of {} did not stop in time and was abandoned", S::NAME);
        }
    }
    Ok(())
}

impl Worker {
    fn start<S: WorkerService>(
        service: Arc<S>,
        opener: Arc<ConnectionOpener>,
        number: usize,
        shutdown: Shutdown,
    ) -> anyhow::Result<Worker> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
        let (connections, assigned) = mpsc::unbounded_channel();
        let (done, ended) = oneshot::channel();
        let connection_count = Arc::new(AtomicUsize::new(0));
        let shared_count = Arc::clone(&connection_count);
        let run = move || {
            runtime.block_on(run_worker(service, opener, number, assigned, shared_count, shutdown));
            done.send(()).ok();
        };
        thread::Builder::new().name(format!("{}-{number}", S::NAME)).spawn(run).context("no thread")?;
        Ok(Worker { connections, connection_count, ended })
    }
}

async fn run_worker<S: WorkerService>(
    service: Arc<S>,
    opener: Arc<ConnectionOpener>,
    number: usize,
    mut assigned: mpsc::UnboundedReceiver<Assigned>,
    connection_count: Arc<AtomicUsize>,
    shutdown: Shutdown,
) {
    service.start_worker(number);
    let mut connections = JoinSet::new();
    while let Some(Assigned { stream, from, permits }) = assigned.recv().await {
        let service = Arc::clone(&service);
        let opener = Arc::clone(&opener);
        let shutdown = shutdown.clone();
        let connection_count = Arc::clone(&connection_count);
        connections.spawn(async move {
            if let Ok(stream) = stream.attach()
                && let Some((stream, client)) = opener.open(stream, from, &shutdown).await
            {
                service.serve(number, stream, client, shutdown).await;
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
