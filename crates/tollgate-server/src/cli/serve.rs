//! `tollgate serve`: the server, from its configuration to a clean stop.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::{self, Admin};
use crate::cli::{Exit, out};
use crate::config::Config;
use crate::connection::{self, Shutdown};
use crate::gate::Gate;
use crate::reload::{self, Fixed, Watched};
use crate::state::StateFile;
use crate::transport::http;
use crate::{assemble, tokens::Tokens};

pub fn run(path: &Path) -> Exit {
    log_to_stderr();
    let (mut config, text) = match Config::load(path) {
        Ok(loaded) => loaded,
        Err(problems) => return out::problems(&problems),
    };
    let state = StateFile::in_folder(&config.state_dir);
    let assembled = assemble::tokens(&config)
        .and_then(|tokens| Ok((assemble::gate(&mut config, text, Some(&state))?, tokens)));
    let (gate, tokens) = match assembled {
        Ok(assembled) => assembled,
        Err(problems) => return out::problems(&problems.in_file(&path.display().to_string())),
    };
    for setting in &config.idle {
        tracing::warn!("{setting} has no effect in this version");
    }
    let served = serve(gate, &config, tokens, path, &state);
    match served {
        Ok(()) => Exit::Yes,
        Err(error) => {
            out::message(format!("error: {error:#}"));
            Exit::No
        }
    }
}

pub fn log_to_stderr() {
    let format = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false);
    // A second call, from a test, finds the first one's subscriber in place.
    format.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init().ok();
}

fn serve(
    gate: Gate,
    config: &Config,
    tokens: Option<Tokens>,
    path: &Path,
    state: &StateFile,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(async {
        let gate = Arc::new(gate);
        let (stop, shutdown) = watch::channel(false);
        let mut servers = JoinSet::new();
        let http = bind("http", config.listen.http).await?;
        let admin = bind("admin", config.listen.admin).await?;
        if let Some(listener) = http {
            servers.spawn(serve_http(listener, shutdown.clone(), Arc::clone(&gate)));
        }
        if let Some(listener) = admin {
            let admin = Arc::new(Admin { gate: Arc::clone(&gate), tokens, shutdown: shutdown.clone() });
            servers.spawn(serve_admin(listener, shutdown.clone(), admin));
        }
        let watched = Watched { path: path.to_owned(), fixed: Fixed::of(config) };
        servers.spawn(reload::watch(Arc::clone(&gate), watched, shutdown));
        let policy = gate.engine.policy();
        tracing::info!("{} rules in force, generation {}", policy.rules().len(), policy.generation());
        until_told_to_stop().await?;
        tracing::info!("stopping");
        stop.send_replace(true);
        while servers.join_next().await.is_some() {}
        match state.write(&gate) {
            Ok(()) => tracing::info!(file = %state.path().display(), "state saved"),
            Err(error) => tracing::error!(file = %state.path().display(), %error, "state could not be saved"),
        }
        Ok(())
    })
}

pub async fn bind(name: &str, address: Option<SocketAddr>) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    let listener =
        TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} for {name}"))?;
    tracing::info!("{name} listens on {}", listener.local_addr()?);
    Ok(Some(listener))
}

pub async fn serve_http(listener: TcpListener, shutdown: Shutdown, gate: Arc<Gate>) {
    let handler = move |request, _peer| http::handle(Arc::clone(&gate), request);
    connection::serve(listener, shutdown, Arc::new(handler)).await;
}

pub async fn serve_admin(listener: TcpListener, shutdown: Shutdown, admin: Arc<Admin>) {
    let handler = move |request, _peer| admin::handle(Arc::clone(&admin), request);
    connection::serve(listener, shutdown, Arc::new(handler)).await;
}

pub async fn until_told_to_stop() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be listened to")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be listened to")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
