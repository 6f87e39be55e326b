//! The listeners of a node: their sockets, certificates and PROXY headers.

use std::sync::Arc;

use tollgate::internal::document::{Problem, Problems};

use crate::cli::bound_socket::{BoundSocket, SocketFile};
use crate::config::Config;
use crate::connection::{AddressLimiter, ConnectionOpener, Listener, TrustedSenders};
use crate::gate::Gate;
use crate::tls::ListenerTls;

/// Makes listeners of bound sockets.
pub struct Listeners<'c> {
    gate: &'c Arc<Gate>,
    config: &'c Config,
    pub tls: Vec<Arc<ListenerTls>>,
    /// The files of Unix sockets, which end with the listeners.
    files: Vec<SocketFile>,
}

impl<'c> Listeners<'c> {
    pub fn new(gate: &'c Arc<Gate>, config: &'c Config) -> anyhow::Result<Listeners<'c>> {
        const PROTOCOLS: [(&str, &[&[u8]]); 5] = [
            ("http", &[b"http/1.1"]),
            ("grpc", &[b"h2"]),
            ("resp", &[]),
            ("proxy", &[b"h2", b"http/1.1"]),
            ("admin", &[b"http/1.1"]),
        ];
        let load = |(name, alpn)| {
            config.listen.address(name)?;
            let files = config.starts.tls(name)?.clone();
            let loaded = ListenerTls::load(name, files, alpn).map(Arc::new);
            Some(loaded.map_err(|error| Problem::new(None, &format!("tls.{name}"), format!("{error:#}"))))
        };
        let loaded: Result<Vec<_>, Problem> = PROTOCOLS.into_iter().filter_map(load).collect();
        let tls = loaded.map_err(Problems::from)?;
        gate.tls.set(tls.clone()).map_err(|_| anyhow::anyhow!("certificates are loaded once"))?;
        Ok(Listeners { gate, config, tls, files: Vec::new() })
    }

    pub fn bind(&self, name: &'static str) -> anyhow::Result<Option<BoundSocket>> {
        let listen = &self.config.listen;
        BoundSocket::at(name, listen.address(name), listen.unix_mode)
    }

    pub fn listen(&mut self, bound: BoundSocket) -> anyhow::Result<Listener> {
        let name = bound.name;
        let (socket, file) = bound.listen()?;
        self.files.extend(file);
        let tls = self.tls.iter().find(|tls| tls.listener == name).cloned();
        let gate = Arc::clone(self.gate);
        let is_trusted: TrustedSenders = Box::new(move |ip| gate.live.load().trusted.contains(ip));
        let trusted_senders = Some(is_trusted).filter(|_| self.config.starts.has_proxy_protocol(name));
        let opener = Arc::new(ConnectionOpener::new(name, tls, trusted_senders));
        Ok(Listener { socket, opener, gauge: self.gate.connections.gauge(name) })
    }

    /// The limiter of a listener's connections per client address.
    pub fn per_address(&self, listener: &'static str) -> Arc<AddressLimiter> {
        let gate = Arc::clone(self.gate);
        let is_trusted = move |ip| gate.live.load().trusted.contains(ip);
        AddressLimiter::new(listener, self.config.listen.per_address, is_trusted)
    }
}
