//! The certificate authorities that upstreams are verified against, reloaded when their file changes.

use std::sync::Arc;

use anyhow::Context;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};

use crate::config::UpstreamTls;
use crate::connection::Shutdown;
use crate::tls::{self, reload_on_change};
use crate::transport::proxy::Proxy;
use crate::transport::proxy::upstream::connect::UpstreamTlsClient;

/// Reloads the CAs of upstreams when their file changes, until the shutdown.
pub async fn watch_upstream_ca(proxy: Arc<Proxy>, shutdown: Shutdown) {
    let files = || proxy.route.load().config.upstream_tls.ca.iter().cloned().collect();
    let take = || {
        let route = proxy.route.load();
        upstream_tls_client(&route.config.upstream_tls).map(|tls| route.tls.store(Arc::new(tls)))
    };
    reload_on_change(files, take, shutdown).await;
}

/// The TLS client configurations for upstreams.
pub fn upstream_tls_client(settings: &UpstreamTls) -> anyhow::Result<UpstreamTlsClient> {
    let roots = match &settings.ca {
        Some(file) => tls::roots(file)?,
        None => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
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
