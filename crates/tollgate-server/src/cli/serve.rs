//! `tollgate serve`: runs the server, from its configuration to a clean stop.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::internal::document::Problems;

use crate::admin::{self, Admin};
use crate::cli::{Exit, out, startup_check};
use crate::config::{Config, Listen, shown_file};
use crate::connection::{self, AddressLimiter, Listener, Shutdown};
use crate::gate::{Gate, tracking};
use crate::insight::{self, HistoryFile, Insight};
#[cfg(feature = "otlp")]
use crate::otlp::OtlpExporter;
use crate::reload::{self, FileStamp, SecretFiles, StartupSettings, WatchedConfig};
use crate::rules_follower::{self, NodeCapabilities, RulesFollower};
use crate::state::{FolderLock, Saver, StateFile, StateLog};
use crate::transport::grpc::{self, GrpcServer};
use crate::transport::http::{self, AllowedCallers, CallerAccess, HttpServer};
use crate::transport::proxy::{self, Proxy};
use crate::transport::resp::{self, RespServer};
use crate::{assemble, fleet, fleet_bans, log, notice, systemd, tokens::Tokens};

mod listeners;

use listeners::Listeners;

/// How long a start waits for the bans of the central store.
const FIRST_SYNC_TIMEOUT: Duration = Duration::from_secs(5);

pub fn run(path: &Path) -> Exit {
    log::install();
    let seen = FileStamp::of(path);
    let (mut config, text) = match Config::load(path) {
        Ok(loaded) => loaded,
        Err(problems) => return out::problems(&problems),
    };
    log::set(config.log);
    let tokens_seen = config.tokens_file.as_deref().and_then(FileStamp::of);
    let secrets = SecretFiles::of(&config);
    let checked = startup_check::problems(&config);
    let tokens = checked.and_then(|()| assemble::tokens(config.tokens_file.as_deref()));
    let assembled = tokens.and_then(|tokens| {
        let (state, lock) = assemble::state_file(&config)?;
        Ok((assemble::gate(&mut config, text, Some(&state))?, tokens, state, lock))
    });
    let (gate, tokens, state, lock) = match assembled {
        Ok(assembled) => assembled,
        Err(problems) => return out::problems(&problems.in_file(&shown_file(path))),
    };
    for setting in &config.without_effect {
        tracing::warn!("{setting}");
    }
    notice::log_warnings(gate.engine.policy().warnings());
    gate.config_file.set(shown_file(path).into()).ok();
    let gate = Arc::new(gate);
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(exit) => return exit,
    };
    let _inside = runtime.enter();
    let proxy = match assemble::proxy(&gate, &config) {
        Ok(proxy) => proxy,
        Err(problems) => return out::problems(&problems.in_file(&shown_file(path))),
    };
    let tokens = tokens.map(Arc::new);
    let watched = WatchedConfig {
        path: path.to_owned(),
        initial_stamp: seen,
        initial_tokens: tokens_seen,
        secrets,
        startup: StartupSettings::of(&config),
        proxy: proxy.clone(),
        tokens: tokens.clone(),
    };
    let served =
        ServeContext { gate, proxy, tokens, watched: Some(watched), state: Some(state), lock: Some(lock) };
    served.run(&config, &runtime)
}

/// The parts of a running server; some exist only with a configuration file.
pub struct ServeContext {
    pub gate: Arc<Gate>,
    pub proxy: Option<Arc<Proxy>>,
    pub tokens: Option<Arc<Tokens>>,
    pub watched: Option<WatchedConfig>,
    pub state: Option<StateFile>,
    /// Lock on the state's folder.
    pub lock: Option<FolderLock>,
}

impl ServeContext {
    /// Serves until a stop signal.
    pub fn run(self, config: &Config, runtime: &Runtime) -> Exit {
        let file = self.watched.as_ref().map(|watched| shown_file(&watched.path));
        match serve(self, config, runtime) {
            Ok(()) => Exit::Success,
            Err(error) => match error.downcast::<Problems>() {
                Ok(problems) => out::problems(&match file {
                    Some(file) => problems.in_file(&file),
                    None => problems,
                }),
                Err(error) => {
                    out::message(format!("error: {error:#}"));
                    Exit::Failure
                }
            },
        }
    }
}

/// Raises the limit of open files to the maximum: each connection is a file descriptor.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return; // a service manager may have set both, and forbidden the call
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the limit on open files cannot be raised");
    }
}

/// The runtime of everything except workers.
pub fn runtime() -> Result<Runtime, Exit> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    built.map_err(|error| {
        out::message(format!("error: no runtime: {error}"));
        Exit::Failure
    })
}

fn serve(served: ServeContext, config: &Config, runtime: &Runtime) -> anyhow::Result<()> {
    raise_file_limit();
    runtime.block_on(async {
        // Signal handlers are installed before the addresses are printed: a program that reads an address may send a signal.
        let mut signals = StopSignals::listen()?;
        let hangup = signal(SignalKind::hangup()).context("cannot install the handler of SIGHUP")?;
        let ServeContext { gate, proxy, tokens, watched, state, lock } = served;
        if tokens.as_ref().is_some_and(|tokens| !tokens.has_admin()) && config.listen.admin.is_some() {
            tracing::warn!(
                "no token has a role for the admin API (read, operate or admin): all its callers are refused"
            );
        }
        gate.fleet.set(assemble::fleet(config)?).map_err(|_| anyhow::anyhow!("the fleet is set once"))?;
        open_central(&gate, config)?;
        let follower = match watched {
            Some(_) => open_rules_follower(&gate, config).await?,
            None => None,
        };
        let (stop, shutdown) = watch::channel(false);
        let mut servers = JoinSet::new();
        #[cfg(feature = "otlp")]
        let exporter = OtlpExporter::open(config.otlp.as_ref(), &gate, proxy.as_ref())?;
        #[cfg(feature = "otlp")]
        if let Some(exporter) = &exporter {
            servers.spawn(Arc::clone(exporter).run(shutdown.clone()));
        }
        let mut listeners = Listeners::new(&gate, config)?;
        let listen = &config.listen;
        let http = listeners.bind("http")?;
        let resp = unless_busy("resp", listeners.bind("resp"), listen)?;
        let grpc = unless_busy("grpc", listeners.bind("grpc"), listen)?;
        let admin = listeners.bind("admin")?;
        let proxied = listeners.bind("proxy")?;
        if let Some(lock) = &lock {
            let bound = [&http, &grpc, &resp, &proxied, &admin].into_iter().flatten();
            let addresses = bound.map(|one| Ok((one.name, one.shown_address()?)));
            let described = addresses.collect::<io::Result<Vec<_>>>().and_then(|all| lock.describe(&all));
            described.context("the lock file in state_dir cannot be written")?;
        }
        for tls in &listeners.tls {
            servers.spawn(Arc::clone(tls).watch(shutdown.clone()));
        }
        if admin.is_some() {
            let insight = gate.insight.get_or_init(|| Insight::new(config.log_keys, gate.now()));
            if let Some(folder) = state.as_ref().and_then(|state| state.path().parent()) {
                open_history(insight, folder);
            }
            servers.spawn(insight::run(Arc::clone(&gate), shutdown.clone()));
        }
        if let Some(listener) = admin.map(|bound| listeners.listen(bound)).transpose()? {
            let shutdown = shutdown.clone();
            let proxy = proxy.clone();
            let tokens = tokens.clone();
            let admin = Arc::new(Admin::new(Arc::clone(&gate), proxy, tokens, shutdown.clone()));
            servers.spawn(serve_admin(listener, listeners.per_address("admin"), shutdown, admin));
        }
        let first_rules = async {
            if let Some(follower) = follower {
                servers.spawn(rules_follower::follow(
                    Arc::clone(&follower),
                    Arc::clone(&gate),
                    shutdown.clone(),
                ));
                follower.wait_for_first_rules().await;
            }
            servers.spawn(fleet_bans::run(Arc::clone(&gate), shutdown.clone()));
            if let Some(central) = gate.central.get() {
                // Bans apply from the first request on, unless the store does not answer.
                tokio::time::timeout(FIRST_SYNC_TIMEOUT, central.bans.wait_for_sync()).await.ok();
            }
        };
        // Without rules no connection is accepted, unless the file allows it: a load balancer uses other nodes.
        tokio::select! {
            () = first_rules => {}
            () = signals.received() => {
                stop.send_replace(true);
                while servers.join_next().await.is_some() {}
                return Ok(());
            }
        }
        if let Some(bound) = http {
            let access = CallerAccess::new(&bound.address, tokens.clone());
            let listener = listeners.listen(bound)?;
            if matches!(access.allowed_callers, AllowedCallers::Anyone) {
                warn_of_open_listener("http");
            }
            let shares = listeners.per_address("http");
            servers.spawn(serve_http(
                listener,
                shares,
                shutdown.clone(),
                Arc::clone(&gate),
                Arc::new(access),
            ));
        }
        // Of several nodes that have bound the default port, one can listen on it.
        if let Some(bound) = resp {
            let server = RespServer::new(Arc::clone(&gate), tokens.clone());
            let is_open = server.is_open_at(&bound.address);
            if let Some(listener) = unless_busy("resp", listeners.listen(bound).map(Some), listen)? {
                if is_open {
                    warn_of_open_listener("resp");
                }
                let shares = listeners.per_address("resp");
                servers.spawn(resp::serve(Arc::new(server), listener, shares, shutdown.clone()));
            }
        }
        if let Some(bound) = grpc {
            let server = GrpcServer::new(Arc::clone(&gate), tokens);
            let is_open = server.is_open_at(&bound.address);
            if let Some(listener) = unless_busy("grpc", listeners.listen(bound).map(Some), listen)? {
                if is_open {
                    warn_of_open_listener("grpc");
                }
                let shares = listeners.per_address("grpc");
                servers.spawn(grpc::serve(Arc::new(server), listener, shares, shutdown.clone()));
            }
        }
        if let (Some(reserved), Some(proxy)) = (proxied, &proxy) {
            let shares = listeners.per_address("proxy");
            serve_proxy(&mut servers, listeners.listen(reserved)?, shares, shutdown.clone(), proxy);
        }
        let saving = Saved::begin(state, &gate, config)?;
        gate.is_accepting.store(true, Ordering::Release);
        servers.spawn(notice::watch(Arc::clone(&gate), shutdown.clone()));
        servers.spawn(fleet::announce(Arc::clone(&gate), shutdown.clone()));
        servers.spawn(tracking::write_tracks(Arc::clone(&gate), shutdown.clone()));
        if let Some(watched) = watched {
            servers.spawn(reload::watch(Arc::clone(&gate), watched, hangup, shutdown));
        }
        let policy = gate.engine.policy();
        let count = policy.rules().len();
        let generation = policy.generation();
        let noun = if count == 1 { "rule" } else { "rules" };
        tracing::info!("{count} {noun} in force, generation {generation}");
        systemd::notify("READY=1");
        signals.received().await;
        tracing::info!("stopping");
        systemd::notify("STOPPING=1");
        stop.send_replace(true);
        while servers.join_next().await.is_some() {}
        tracking::flush(&gate).await;
        #[cfg(feature = "otlp")]
        if let Some(exporter) = exporter {
            exporter.flush().await;
        }
        if let Some(log) = &gate.live.load().decision_log {
            log.close();
        }
        saving.end(&gate);
        Ok(())
    })
}

/// When the state is saved: while the server runs, at its end only, or never.
enum Saved {
    Always(Saver),
    AtTheEnd(StateLog),
    Never,
}

impl Saved {
    fn begin(state: Option<StateFile>, gate: &Arc<Gate>, config: &Config) -> anyhow::Result<Saved> {
        Ok(match (state.map(StateFile::log), config.state_every) {
            (Some(log), Some(every)) => {
                let saver = Saver::start(log, Arc::clone(gate), every);
                Saved::Always(saver.context("the state cannot be saved while the server runs")?)
            }
            (Some(log), None) => Saved::AtTheEnd(log),
            (None, _) => Saved::Never,
        })
    }

    /// Writes a complete image: the file is then as short as possible.
    fn end(self, gate: &Gate) {
        let log = match self {
            Saved::Always(saver) => saver.stop(),
            Saved::AtTheEnd(log) => Some(log),
            Saved::Never => return,
        };
        let Some(mut log) = log else { return tracing::error!("state could not be saved") };
        let written = log.write_whole(gate);
        let file = log.path().display();
        match written {
            Ok(_) => tracing::info!(%file, "state saved"),
            Err(error) => tracing::error!(%file, %error, "state could not be saved"),
        }
    }
}

/// Without the file, live counts begin anew at each start.
fn open_history(insight: &Insight, folder: &Path) {
    match HistoryFile::open(folder.join(insight::FILE_NAME)) {
        Ok(file) => _ = insight.history.set(file),
        Err(error) => {
            tracing::warn!(%error, "counts of past minutes cannot be saved in {}", folder.display());
        }
    }
}

fn warn_of_open_listener(name: &str) {
    tracing::warn!(
        "{name} can be reached from outside and requires no token: any client can use up the limits of others; \
         put a line 'check TOKEN' into tokens_file or TOLLGATE_TOKENS"
    );
}

/// The socket of `resp` or `grpc`; `None` if another process has the default port.
fn unless_busy<T>(
    name: &str,
    opened: anyhow::Result<Option<T>>,
    listen: &Listen,
) -> anyhow::Result<Option<T>> {
    let is_configured = if name == "resp" { listen.is_resp_configured } else { listen.is_grpc_configured };
    let is_busy = |error: &anyhow::Error| {
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    match opened {
        Err(error) if !is_configured && is_busy(&error) => {
            tracing::warn!("{error:#}: {name} is off; set listen.{name} to another address, or to off");
            Ok(None)
        }
        opened => opened,
    }
}

/// Connects to the central store, if configured. The store may become available later.
fn open_central(gate: &Gate, config: &Config) -> anyhow::Result<()> {
    let Some(store) = &config.store else { return Ok(()) };
    let central = assemble::central(store).map_err(Problems::from)?;
    tracing::info!("counters are on {}", central.name);
    if store.keys.can_be_guessed() {
        tracing::info!(
            "store_keys: {}: identities in the store are hashed without a key, which hides them from view but not from \
             guessing; store_secret_file names a key that all nodes share",
            store.keys.name()
        );
    }
    gate.central.set(central).map_err(|_| anyhow::anyhow!("the store is opened once"))
}

/// Opens the configured rules database, which may become available later. A default file that does not exist and cannot
/// be created is skipped.
async fn open_rules_follower(gate: &Gate, config: &Config) -> anyhow::Result<Option<Arc<RulesFollower>>> {
    let Some(configured) = config.rules_db.as_ref() else { return Ok(None) };
    let follower = Arc::new(RulesFollower::new(configured, NodeCapabilities::from_config(config)));
    let is_new = configured.file().is_some_and(|file| !file.exists());
    if is_new
        && !configured.is_explicit
        && let Err(error) = follower.open().await
    {
        tracing::warn!("{error}; only the rules of the configuration are in force");
        return Ok(None);
    }
    tracing::info!("rules are in {}", follower.name);
    gate.rules_follower
        .set(Arc::clone(&follower))
        .map_err(|_| anyhow::anyhow!("the rules are opened once"))?;
    follower.restore_pending_edits(gate).await;
    Ok(Some(follower))
}

/// Starts the proxy's listener and its background tasks.
fn serve_proxy(
    servers: &mut JoinSet<()>,
    listener: Listener,
    per_address: Arc<AddressLimiter>,
    shutdown: Shutdown,
    proxy: &Arc<Proxy>,
) {
    servers.spawn(Arc::clone(proxy).run_replay(shutdown.clone()));
    servers.spawn(proxy::watch_upstream_ca(Arc::clone(proxy), shutdown.clone()));
    servers.spawn(proxy::watch_health(Arc::clone(proxy), shutdown.clone()));
    let serving = proxy::serve(Arc::clone(proxy), listener, per_address, shutdown);
    servers.spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!("the proxy does not run: {error:#}");
        }
    });
}

pub async fn serve_http(
    listener: Listener,
    per_address: Arc<AddressLimiter>,
    shutdown: Shutdown,
    gate: Arc<Gate>,
    access: Arc<CallerAccess>,
) {
    http::serve(HttpServer { gate, access }, listener, per_address, shutdown).await;
}

pub async fn serve_admin(
    listener: Listener,
    per_address: Arc<AddressLimiter>,
    shutdown: Shutdown,
    admin: Arc<Admin>,
) {
    let handler = move |request, _peer| admin::handle(Arc::clone(&admin), request);
    connection::serve(listener, per_address, shutdown, Arc::new(handler)).await;
}

/// SIGTERM and SIGINT, recorded from the moment the handlers are installed.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub fn listen() -> anyhow::Result<StopSignals> {
        let terminate = signal(SignalKind::terminate()).context("cannot install the handler of SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot install the handler of SIGINT")?;
        Ok(StopSignals { terminate, interrupt })
    }

    /// Returns when a stop signal was received.
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
