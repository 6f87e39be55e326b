//! `tls` and `proxy_protocol`: how connections of each listener begin.

use std::path::{Path, PathBuf};

use tollgate::internal::document::MapReader;

/// The listeners by name.
pub const LISTENERS: [&str; 5] = ["http", "grpc", "resp", "proxy", "admin"];

/// The PEM files of a listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenerTlsFiles {
    /// The certificate chain.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// The authorities of client certificates, which are required if this is set.
    pub client_ca: Option<PathBuf>,
}

impl ListenerTlsFiles {
    /// Reads `{ cert, key, client_ca }`.
    pub(super) fn read(
        map: &mut MapReader<'_, '_>,
        name: &'static str,
        folder: &Path,
    ) -> Option<ListenerTlsFiles> {
        let mut map = map.optional_map(name)?;
        let cert = map.required_text("cert").map(|file| folder.join(file));
        let key = map.required_text("key").map(|file| folder.join(file));
        let client_ca = map.optional_text("client_ca").map(|file| folder.join(file));
        map.finish();
        cert.zip(key).map(|(cert, key)| ListenerTlsFiles { cert, key, client_ca })
    }

    pub fn all(&self) -> Vec<PathBuf> {
        [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()].into_iter().flatten().cloned().collect()
    }
}

/// What connections of listeners begin with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectionStarts {
    tls: Vec<(&'static str, ListenerTlsFiles)>,
    proxy_protocol: Vec<&'static str>,
}

impl ConnectionStarts {
    /// `proxy_tls` is `proxy.tls`, the same setting as `tls.proxy`.
    pub(super) fn read(
        map: &mut MapReader<'_, '_>,
        folder: &Path,
        proxy_tls: Option<ListenerTlsFiles>,
    ) -> ConnectionStarts {
        let mut starts = ConnectionStarts::default();
        let node = map.optional("tls");
        if let Some(mut map) = map.optional_map("tls") {
            let read = LISTENERS
                .map(|name| ListenerTlsFiles::read(&mut map, name, folder).map(|files| (name, files)));
            starts.tls.extend(read.into_iter().flatten());
            map.finish();
        }
        if let (Some(_), Some(_), Some(node)) = (starts.tls("proxy"), &proxy_tls, node) {
            map.reject("tls.proxy", node, "proxy.tls is the same setting: write one of them");
        }
        starts.tls.extend(proxy_tls.map(|files| ("proxy", files)));
        for (n, node) in map.optional_list("proxy_protocol").unwrap_or_default().iter().enumerate() {
            let word = node.as_str().unwrap_or_default();
            match LISTENERS.iter().find(|name| **name == word) {
                Some(name) => starts.proxy_protocol.push(name),
                None => {
                    let message = format!("expected a listener: {}", LISTENERS.join(", "));
                    map.reject(&format!("proxy_protocol[{n}]"), node, message);
                }
            }
        }
        starts
    }

    pub fn tls(&self, listener: &str) -> Option<&ListenerTlsFiles> {
        self.tls.iter().find(|(name, _)| *name == listener).map(|(_, files)| files)
    }

    /// The certificates of listeners, by the name of the setting, and whether they differ.
    pub fn tls_differences(&self, other: &ConnectionStarts) -> [(&'static str, bool); 5] {
        [
            ("tls.http", "http"),
            ("tls.grpc", "grpc"),
            ("tls.resp", "resp"),
            ("tls.proxy", "proxy"),
            ("tls.admin", "admin"),
        ]
        .map(|(setting, listener)| (setting, self.tls(listener) != other.tls(listener)))
    }

    pub fn has_other_proxy_protocol(&self, other: &ConnectionStarts) -> bool {
        self.proxy_protocol != other.proxy_protocol
    }

    pub fn has_proxy_protocol(&self, listener: &str) -> bool {
        self.proxy_protocol.contains(&listener)
    }
}
