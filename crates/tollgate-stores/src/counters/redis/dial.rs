//! Establishes a ready connection: TLS, login, database, script.

use std::fs;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::address::{Endpoint, RedisCredentials, TlsFiles};
use super::clock::ServerClock;
use super::connection::{RedisConnection, RedisStream, Sending};
use super::resp::{RedisReply, encode_command};
use super::script;
use crate::tls;

/// Until a server is ready for requests.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Options for connecting to a server.
#[derive(Clone)]
pub(super) struct RedisConnectOptions {
    pub(super) credentials: RedisCredentials,
    pub(super) database: u32,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

/// Reads the certificates once, so that a wrong path is reported at startup.
pub(super) fn tls_config(files: &TlsFiles) -> Result<Arc<ClientConfig>, String> {
    let roots = tls::roots(files.ca.as_deref())?;
    if roots.is_empty() {
        return Err("no trusted certificates: name them with ?ca=/path/to/ca.pem".to_owned());
    }
    let builder = tls::client()?.with_root_certificates(roots);
    let config = match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            let chain = tls::certificates(certificate)?;
            let bytes = fs::read(key).map_err(|error| format!("{}: {error}", key.display()))?;
            let key_der = PrivateKeyDer::from_pem_slice(&bytes);
            let key_der = key_der.map_err(|_| format!("{}: no private key in PEM", key.display()))?;
            builder.with_client_auth_cert(chain, key_der).map_err(|error| error.to_string())?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

/// A connection that is closed on drop.
pub(super) struct OwnedConnection(Arc<RedisConnection>);

impl OwnedConnection {
    /// A handle for senders; it does not keep the connection open.
    pub(super) fn shared(&self) -> Arc<RedisConnection> {
        Arc::clone(&self.0)
    }
}

impl Deref for OwnedConnection {
    type Target = RedisConnection;

    fn deref(&self) -> &RedisConnection {
        &self.0
    }
}

impl Drop for OwnedConnection {
    fn drop(&mut self) {
        self.0.close("no longer needed");
    }
}

/// Connects and logs in, nothing else: for sentinels.
pub(super) async fn dial(
    endpoint: &Endpoint,
    options: &RedisConnectOptions,
) -> Result<OwnedConnection, String> {
    let opened = timeout(CONNECT_TIMEOUT, open(endpoint, options.tls.as_ref())).await;
    let stream = opened.map_err(|_| "no connection within a second".to_owned())?;
    let connection = OwnedConnection(RedisConnection::spawn(stream.map_err(|error| error.to_string())?));
    login(&connection, options).await?;
    Ok(connection)
}

/// Connects to a server for counters and prepares it: database, role, script, clock.
pub(super) async fn dial_store(
    endpoint: &Endpoint,
    options: &RedisConnectOptions,
    clock: &ServerClock,
) -> Result<OwnedConnection, String> {
    let connection = dial(endpoint, options).await?;
    prepare(&connection, options, clock).await?;
    Ok(connection)
}

async fn open(endpoint: &Endpoint, tls: Option<&Arc<ClientConfig>>) -> io::Result<Box<dyn RedisStream>> {
    match endpoint {
        Endpoint::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        Endpoint::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            let Some(config) = tls else { return Ok(Box::new(stream)) };
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            Ok(Box::new(TlsConnector::from(Arc::clone(config)).connect(name, stream).await?))
        }
    }
}

async fn login(connection: &RedisConnection, options: &RedisConnectOptions) -> Result<(), String> {
    match (&options.credentials.user, options.credentials.read_password()?) {
        (Some(user), Some(password)) => expect_ok(connection, &["AUTH", user, &password]).await,
        (None, Some(password)) => expect_ok(connection, &["AUTH", &password]).await,
        _ => expect_ok(connection, &["PING"]).await,
    }
}

async fn prepare(
    connection: &RedisConnection,
    options: &RedisConnectOptions,
    clock: &ServerClock,
) -> Result<(), String> {
    if options.database != 0 {
        expect_ok(connection, &["SELECT", &options.database.to_string()]).await?;
    }
    // A replica would decide denials on stale data. If ROLE is not permitted, the first write fails instead.
    if let RedisReply::Array(role) = send_command(connection, &["ROLE"]).await?
        && role.first().and_then(RedisReply::text).is_some_and(|role| role != "master")
    {
        return Err("it is a replica: name the primary, or its sentinels".to_owned());
    }
    expect_ok(connection, &["SCRIPT", "LOAD", script::SOURCE]).await?;
    let shown = send_command(connection, &["TIME"]).await?;
    let numbers: Vec<_> =
        shown.elements().unwrap_or_default().iter().filter_map(RedisReply::number).collect();
    match numbers[..] {
        [seconds, micros] => clock.observe(seconds.saturating_mul(1_000_000) + micros, Instant::now()),
        _ => return Err("TIME returned an unexpected value".to_owned()),
    }
    Ok(())
}

async fn expect_ok(connection: &RedisConnection, words: &[&str]) -> Result<(), String> {
    match send_command(connection, words).await? {
        RedisReply::Error(error) => Err(error),
        _ => Ok(()),
    }
}

/// Sends one command with its own timeout.
pub(super) async fn send_command(connection: &RedisConnection, words: &[&str]) -> Result<RedisReply, String> {
    let sent = connection.send(Sending::Alone, |out| out.extend_from_slice(&encode_command(words)));
    let pending = sent.map_err(String::from)?;
    match timeout(CONNECT_TIMEOUT, pending).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(_)) => Err(connection.close_reason().unwrap_or_else(|| "the connection was lost".to_owned())),
        Err(_) => Err("it accepts connections but does not answer".to_owned()),
    }
}
