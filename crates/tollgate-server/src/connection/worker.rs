//! Workers: one thread each, with a runtime of its own, so that a connection never changes threads.
//!
//! Each worker has a listening socket of its own (SO_REUSEPORT), between which the kernel distributes connections by a hash
//! of the addresses. A few long-lived connections, as Envoy has, would be distributed unevenly by that, so a worker that
//! has more connections than another one passes a new connection on.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::socket::{ClientSocket, DetachedListener, DetachedSocket, PlainSocket};
use super::{
    AcceptedConnection, Acceptor, AddressLimiter, ConnectionGauge, ConnectionOpener, DRAIN_TIMEOUT, Listener,
    Shutdown, connection_slots, drain, shutdown_requested,
};
use crate::log_rate::LogLimiter;

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

/// What the workers of a listener share.
struct WorkerPool<S> {
    service: Arc<S>,
    opener: Arc<ConnectionOpener>,
    gauge: ConnectionGauge,
    slots: Arc<Semaphore>,
    per_address: Arc<AddressLimiter>,
    workers: Box<[WorkerEntry]>,
    shutdown: Shutdown,
    failures: LogLimiter,
}

/// A worker as the others know it.
struct WorkerEntry {
    connection_count: Arc<AtomicUsize>,
    inbox: mpsc::UnboundedSender<PassedConnection>,
}

/// A connection on its way to another worker's runtime. There are no more of them than connections.
struct PassedConnection {
    stream: DetachedSocket,
    peer: SocketAddr,
}

/// Accepts and serves connections until the shutdown.
pub async fn serve_on_workers<S: WorkerService>(
    service: Arc<S>,
    workers: usize,
    listener: Listener,
    per_address: Arc<AddressLimiter>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let Listener { socket, opener, gauge } = listener;
    let mut sockets =
        socket.for_workers(workers).context("the listener cannot be used by workers")?.into_iter();
    let (entries, inboxes): (Vec<_>, Vec<_>) = (0..workers).map(|_| WorkerEntry::new()).unzip();
    let pool = Arc::new(WorkerPool {
        service,
        opener,
        gauge,
        slots: connection_slots(),
        per_address,
        workers: entries.into(),
        shutdown: shutdown.clone(),
        failures: LogLimiter::default(),
    });
    let start = |(number, inbox)| start_worker(Arc::clone(&pool), number, sockets.next(), inbox);
    let ends = inboxes.into_iter().enumerate().map(start).collect::<anyhow::Result<Vec<_>>>()?;
    drop(pool);
    shutdown_requested(&mut shutdown.clone()).await;
    // A worker that hangs must not keep the process alive.
    let deadline = Instant::now() + DRAIN_TIMEOUT + STOP_GRACE;
    for ended in ends {
        if timeout_at(deadline, ended).await.is_err() {
            tracing::error!("a worker of {} did not stop in time and was abandoned", S::NAME);
        }
    }
    Ok(())
}

impl WorkerEntry {
    fn new() -> (WorkerEntry, mpsc::UnboundedReceiver<PassedConnection>) {
        let (inbox, passed) = mpsc::unbounded_channel();
        (WorkerEntry { connection_count: Arc::default(), inbox }, passed)
    }

    fn count(&self) -> usize {
        // Relaxed: a stale count only makes the distribution less even for a moment.
        self.connection_count.load(Ordering::Relaxed)
    }
}

/// Starts a thread; returns what tells its end.
fn start_worker<S: WorkerService>(
    pool: Arc<WorkerPool<S>>,
    number: usize,
    socket: Option<DetachedListener>,
    inbox: mpsc::UnboundedReceiver<PassedConnection>,
) -> anyhow::Result<oneshot::Receiver<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let (done, ended) = oneshot::channel();
    let run = move || {
        let worker = Worker { pool, number, connections: JoinSet::new() };
        if let Err(error) = runtime.block_on(worker.run(socket, inbox)) {
            tracing::error!(%error, "a worker of {} does not accept connections", S::NAME);
        }
        done.send(()).ok();
    };
    thread::Builder::new().name(format!("{}-{number}", S::NAME)).spawn(run).context("no thread")?;
    Ok(ended)
}

/// A worker on its own thread.
struct Worker<S> {
    pool: Arc<WorkerPool<S>>,
    number: usize,
    connections: JoinSet<()>,
}

impl<S: WorkerService> Worker<S> {
    async fn run(
        mut self,
        socket: Option<DetachedListener>,
        mut inbox: mpsc::UnboundedReceiver<PassedConnection>,
    ) -> std::io::Result<()> {
        let pool = Arc::clone(&self.pool);
        pool.service.start_worker(self.number);
        let acceptor = |socket| {
            let per_address = Arc::clone(&pool.per_address);
            Acceptor::new(
                socket,
                pool.gauge.clone(),
                Arc::clone(&pool.slots),
                per_address,
                pool.shutdown.clone(),
            )
        };
        let mut acceptor = socket.map(DetachedListener::attach).transpose()?.map(acceptor);
        let mut shutdown = pool.shutdown.clone();
        loop {
            let next = async {
                match &mut acceptor {
                    Some(acceptor) => acceptor.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(accepted) = next => self.place(accepted),
                Some(passed) = inbox.recv() => self.adopt(passed),
                () = shutdown_requested(&mut shutdown) => break,
            }
            while self.connections.try_join_next().is_some() {}
        }
        drop(acceptor);
        while let Ok(passed) = inbox.try_recv() {
            self.adopt(passed);
        }
        drop(inbox);
        drain(&mut self.connections).await;
        Ok(())
    }

    /// Serves an accepted connection, or passes it to the worker with the fewest.
    fn place(&mut self, AcceptedConnection { mut stream, peer }: AcceptedConnection) {
        let pool = Arc::clone(&self.pool);
        let own = &pool.workers[self.number];
        let least = pool.workers.iter().min_by_key(|worker| worker.count());
        let other = least.filter(|least| least.count() < own.count());
        let assigned = &other.unwrap_or(own).connection_count;
        stream.permits.iter_mut().for_each(|permits| permits.assign(assigned));
        let Some(other) = other else { return self.serve(stream, peer) };
        match stream.detach() {
            // A worker that has ended closes it.
            Ok(stream) => drop(other.inbox.send(PassedConnection { stream, peer })),
            Err(error) => pool.failures.warn("connections without a worker", || {
                tracing::warn!(%error, "an accepted connection cannot be passed to a worker");
            }),
        }
    }

    fn adopt(&mut self, PassedConnection { stream, peer }: PassedConnection) {
        match stream.attach() {
            Ok(stream) => self.serve(stream, peer),
            Err(error) => self.pool.failures.warn("connections without a worker", || {
                tracing::warn!(%error, "an accepted connection cannot be served");
            }),
        }
    }

    fn serve(&mut self, stream: PlainSocket, peer: SocketAddr) {
        let pool = Arc::clone(&self.pool);
        let number = self.number;
        self.connections.spawn(async move {
            let shutdown = pool.shutdown.clone();
            if let Some((stream, client)) = pool.opener.open(stream, peer, &shutdown).await {
                pool.service.serve(number, stream, client, shutdown).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
    use tokio::sync::watch;

    use super::*;
    use crate::connection::ListenSocket;

    const WORKERS: usize = 4;

    /// Tells each client which worker serves it, and keeps the connection.
    #[derive(Default)]
    struct NumberService {
        threads: Mutex<Vec<(usize, thread::ThreadId)>>,
    }

    impl WorkerService for NumberService {
        const NAME: &'static str = "number";

        fn start_worker(&self, worker: usize) {
            self.threads.lock().expect("no panic").push((worker, thread::current().id()));
        }

        async fn serve(
            &self,
            worker: usize,
            mut stream: ClientSocket,
            _: SocketAddr,
            mut shutdown: Shutdown,
        ) {
            let here = (worker, thread::current().id());
            assert!(self.threads.lock().expect("no panic").contains(&here), "on another thread");
            stream.write_all(&[worker as u8]).await.expect("the client reads");
            shutdown_requested(&mut shutdown).await;
        }
    }

    /// How many of 40 connections each worker has.
    async fn check<C>(socket: ListenSocket, connect: impl AsyncFn() -> C)
    where
        C: tokio::io::AsyncRead + Unpin,
    {
        let opener = Arc::new(ConnectionOpener::new("number", None, None));
        let listener = Listener { socket, opener, gauge: ConnectionGauge::default() };
        let (stop, shutdown) = watch::channel(false);
        let service = Arc::new(NumberService::default());
        let limiter = AddressLimiter::unbounded("number");
        let serving = tokio::spawn(serve_on_workers(service, WORKERS, listener, limiter, shutdown));
        let mut clients = Vec::new();
        let mut counts = [0; WORKERS];
        for n in 1..=40 {
            let mut client = connect().await;
            counts[usize::from(client.read_u8().await.expect("a number"))] += 1;
            clients.push(client);
            let most = counts.iter().max().expect("workers");
            let least = counts.iter().min().expect("workers");
            assert!(most - least <= 1, "after {n}: {counts:?}");
        }
        stop.send_replace(true);
        serving.await.expect("no panic").expect("it has served");
        assert_eq!(clients[0].read(&mut [0]).await.expect("closed"), 0);
    }

    #[tokio::test]
    async fn connections_are_distributed_evenly_however_few_there_are() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        check(ListenSocket::Tcp(listener), async || TcpStream::connect(address).await.expect("accepted"))
            .await;
        let path = std::env::temp_dir().join(format!("tollgate-workers-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a socket");
        check(ListenSocket::Unix(listener), async || UnixStream::connect(&path).await.expect("accepted"))
            .await;
        std::fs::remove_file(&path).ok();
    }

    #[tokio::test]
    async fn every_worker_has_a_socket_and_no_other_process_can_listen() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let sockets = ListenSocket::Tcp(listener).for_workers(WORKERS).expect("sockets");
        assert_eq!(sockets.len(), WORKERS);
        // As another node begins: without SO_REUSEPORT.
        let other = TcpListener::bind(address).await;
        assert_eq!(other.err().map(|error| error.kind()), Some(std::io::ErrorKind::AddrInUse));
        drop(sockets);
        TcpListener::bind(address).await.expect("the port is free again");
    }
}
