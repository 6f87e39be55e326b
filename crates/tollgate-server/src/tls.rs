//! Certificates of listeners, reloaded when their files change or at SIGHUP.
//!
//! The files of a listener take effect together. If they are invalid, those in force stay, and the log and health say so.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::internal::lock;

use anyhow::{Context, anyhow};
use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, version};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::config::ListenerTlsFiles;
use crate::connection::{Shutdown, shutdown_requested};
use crate::reload::FileStamp;

/// How often the files are checked.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// TLS of one listener.
pub struct ListenerTls {
    pub listener: &'static str,
    files: ListenerTlsFiles,
    alpn: &'static [&'static [u8]],
    in_force: ArcSwap<ServerConfig>,
    /// Why the files are not in force.
    trouble: Mutex<Option<String>>,
}

impl ListenerTls {
    /// `alpn` are the protocols of the listener, the preferred one first; none if its clients negotiate none.
    pub fn load(
        listener: &'static str,
        files: ListenerTlsFiles,
        alpn: &'static [&'static [u8]],
    ) -> anyhow::Result<ListenerTls> {
        let in_force = ArcSwap::from_pointee(read(&files, alpn)?);
        Ok(ListenerTls { listener, files, alpn, in_force, trouble: Mutex::default() })
    }

    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.in_force.load_full()
    }

    /// Why the files cannot be used, if they cannot: those before them are in force.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    /// Reloads the files when they change, until the shutdown.
    pub async fn watch(self: Arc<Self>, shutdown: Shutdown) {
        let files = || self.files.all();
        let take = || {
            let taken = read(&self.files, self.alpn).map(|config| self.in_force.store(Arc::new(config)));
            let trouble = taken.as_ref().err().map(|error| format!("{error:#}"));
            *lock(&self.trouble) = trouble;
            taken
        };
        reload_on_change(files, take, shutdown).await;
    }
}

/// Reloads files when they have changed, and at SIGHUP. If they are invalid, that is logged once.
pub async fn reload_on_change(
    files: impl Fn() -> Vec<PathBuf>,
    take: impl Fn() -> anyhow::Result<()>,
    mut shutdown: Shutdown,
) {
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    let look = || files().into_iter().map(|file| (FileStamp::of(&file), file)).collect::<Vec<_>>();
    let mut seen = look();
    let mut logged = String::new();
    loop {
        let is_forced = tokio::select! {
            () = shutdown_requested(&mut shutdown) => return,
            _ = hangup.recv() => true,
            _ = ticks.tick() => false,
        };
        let now = look();
        // Other paths come from a reload of the configuration, which has loaded them already.
        let others = !now.iter().map(|(_, file)| file).eq(seen.iter().map(|(_, file)| file));
        let same = now.iter().zip(&seen).all(|((now, _), (seen, _))| is_same(now.as_ref(), seen.as_ref()));
        if now.is_empty() || others || (same && !is_forced) {
            seen = now;
            continue;
        }
        match take() {
            Ok(()) => {
                seen = now;
                logged.clear();
                tracing::info!(file = %seen[0].1.display(), "a new certificate is in force");
            }
            // Retried at the next poll: one of the files may not be written yet.
            Err(error) => {
                let error = format!("{error:#}");
                if error != logged {
                    tracing::error!("the certificate in force stays: {error}");
                    logged = error;
                }
            }
        }
    }
}

fn is_same(now: Option<&FileStamp>, seen: Option<&FileStamp>) -> bool {
    match (now, seen) {
        (Some(now), Some(seen)) => now.is_unchanged_since(seen),
        (None, None) => true,
        _ => false,
    }
}

fn read(files: &ListenerTlsFiles, alpn: &[&[u8]]) -> anyhow::Result<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder =
        builder.with_protocol_versions(&[&version::TLS13, &version::TLS12]).context("no TLS version")?;
    let builder = match &files.client_ca {
        Some(file) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots(file)?.into(), provider).build();
            let verifier = verifier.with_context(|| format!("{} cannot be used", file.display()))?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let pair = SingleCertAndKey::from(certified_key(&files.cert, &files.key)?);
    let mut config = builder.with_cert_resolver(Arc::new(pair));
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

fn certified_key(cert: &Path, key: &Path) -> anyhow::Result<CertifiedKey> {
    let chain = certificates(cert)?;
    let shown = key.display();
    let private = fs::read(key).with_context(|| format!("{shown} cannot be read"))?;
    let private = PrivateKeyDer::from_pem_slice(&private)
        .map_err(|error| anyhow!("{shown}: no private key: {error}"))?;
    let private = ring::default_provider()
        .key_provider
        .load_private_key(private)
        .with_context(|| format!("{shown} cannot be used"))?;
    let pair = CertifiedKey::new(chain, private);
    pair.keys_match().with_context(|| format!("{shown} is not the key of {}", cert.display()))?;
    Ok(pair)
}

/// The certificate authorities in a file.
pub fn roots(file: &Path) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).with_context(|| format!("{} cannot be trusted", file.display()))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let shown = path.display();
    let text = fs::read(path).with_context(|| format!("{shown} cannot be read"))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| anyhow!("{shown}: {error}"))?;
    if chain.is_empty() {
        return Err(anyhow!("{shown} holds no certificate"));
    }
    Ok(chain)
}
