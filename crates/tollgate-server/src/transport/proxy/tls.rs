//! Certificates: the proxy's own, reloaded when their files change, and the CAs that upstreams are verified against.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::time::{MissedTickBehavior, interval};

use crate::config::{KeyPair, UpstreamTls};
use crate::connection::{Shutdown, shutdown_requested};
use crate::reload::FileStamp;
use crate::transport::proxy::Proxy;
use crate::transport::proxy::upstream::connect::UpstreamTlsClient;

/// How often the files of a certificate are checked.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The certificate in force.
#[derive(Debug)]
pub struct Certificate {
    files: KeyPair,
    key: ArcSwap<CertifiedKey>,
}

impl Certificate {
    pub fn load(files: KeyPair) -> anyhow::Result<Arc<Certificate>> {
        let key = ArcSwap::from_pointee(read(&files)?);
        Ok(Arc::new(Certificate { files, key }))
    }

    /// Offers HTTP/2 and HTTP/1.1.
    pub fn server_config(self: &Arc<Self>) -> anyhow::Result<Arc<ServerConfig>> {
        let builder = ServerConfig::builder_with_provider(ring::default_provider().into());
        let builder = builder.with_safe_default_protocol_versions().context("no TLS version")?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::clone(self) as _);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Reloads the files when they change, until the shutdown.
    pub async fn watch(self: Arc<Self>, shutdown: Shutdown) {
        let files = || vec![self.files.cert.clone(), self.files.key.clone()];
        let take = || read(&self.files).map(|key| self.key.store(Arc::new(key)));
        reload_on_change(files, take, shutdown).await;
    }
}

/// Reloads the CAs of upstreams when their file changes, until the shutdown.
pub async fn watch_upstream_ca(proxy: Arc<Proxy>, shutdown: Shutdown) {
    let files = || proxy.route.load().config.upstream_tls.ca.iter().cloned().collect();
    let take = || {
        let route = proxy.route.load();
        upstream_tls_client(&route.config.upstream_tls).map(|tls| route.tls.store(Arc::new(tls)))
    };
    reload_on_change(files, take, shutdown).await;
}

/// Reloads files when they have changed. If they are invalid, that is logged, and the certificate in force stays.
async fn reload_on_change(
    files: impl Fn() -> Vec<PathBuf>,
    take: impl Fn() -> anyhow::Result<()>,
    mut shutdown: Shutdown,
) {
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let look = || files().into_iter().map(|file| (FileStamp::of(&file), file)).collect::<Vec<_>>();
    let mut seen = look();
    loop {
        tokio::select! {
            () = shutdown_requested(&mut shutdown) => return,
            _ = ticks.tick() => {}
        }
        let now = look();
        // Other paths come from a reload of the configuration, which has loaded them already.
        let others = !now.iter().map(|(_, file)| file).eq(seen.iter().map(|(_, file)| file));
        if others || now.iter().zip(&seen).all(|((now, _), (seen, _))| same(now.as_ref(), seen.as_ref())) {
            seen = now;
            continue;
        }
        match take() {
            Ok(()) => {
                seen = now;
                tracing::info!(file = %seen[0].1.display(), "a new certificate is in force");
            }
            // Retried at the next poll: one of the files may not be written yet.
            Err(error) => tracing::error!("the certificate in force stays: {error:#}"),
        }
    }
}

fn same(now: Option<&FileStamp>, seen: Option<&FileStamp>) -> bool {
    match (now, seen) {
        (Some(now), Some(seen)) => now.is_unchanged_since(seen),
        (None, None) => true,
        _ => false,
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key.load_full())
    }
}

fn read(files: &KeyPair) -> anyhow::Result<CertifiedKey> {
    let cert = files.cert.display();
    let key = files.key.display();
    let chain = certificates(&files.cert)?;
    let private = fs::read(&files.key).with_context(|| format!("{key} cannot be read"))?;
    let private =
        PrivateKeyDer::from_pem_slice(&private).map_err(|error| anyhow!("{key}: no private key: {error}"))?;
    let private = ring::default_provider()
        .key_provider
        .load_private_key(private)
        .with_context(|| format!("{key} cannot be used"))?;
    let pair = CertifiedKey::new(chain, private);
    pair.keys_match().with_context(|| format!("{key} is not the key of {cert}"))?;
    Ok(pair)
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

/// The TLS client configurations for upstreams.
pub fn upstream_tls_client(settings: &UpstreamTls) -> anyhow::Result<UpstreamTlsClient> {
    let mut roots = RootCertStore::empty();
    match &settings.ca {
        Some(file) => {
            for certificate in certificates(file)? {
                roots.add(certificate).with_context(|| format!("{} cannot be trusted", file.display()))?;
            }
        }
        None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    }
    let server_name = settings.server_name.clone().map(ServerName::try_from).transpose();
    let config = |protocols: &[&[u8]]| -> anyhow::Result<Arc<ClientConfig>> {
        let builder = ClientConfig::builder_with_provider(ring::default_provider().into());
        let builder = builder.with_safe_default_protocol_versions().context("no TLS version")?;
        let mut config = builder.with_root_certificates(roots.clone()).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    };
    Ok(UpstreamTlsClient {
        any: config(&[b"h2", b"http/1.1"])?,
        http1: config(&[b"http/1.1"])?,
        server_name: server_name.context("upstream_tls.server_name is not a valid name")?,
    })
}
