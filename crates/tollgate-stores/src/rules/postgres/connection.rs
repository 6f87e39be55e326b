//! A connection to one server, and the classification of its errors.

use std::future::poll_fn;
use std::path::PathBuf;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls};

use super::PgServer;
use super::tls::PgTls;
use crate::password_file;
use crate::rules::DbError;

/// Notifications in the queue; more of them carry no information.
const MAX_NOTIFICATIONS: usize = 16;

/// Why an operation on a connection failed.
#[derive(Debug)]
pub(super) enum PgFailure {
    Server(tokio_postgres::Error),
    /// The deadline has passed.
    TimedOut,
    /// The server is fine: the edit was rejected.
    Rejected(DbError),
}

impl From<tokio_postgres::Error> for PgFailure {
    fn from(error: tokio_postgres::Error) -> PgFailure {
        match is_nul(&error) {
            true => PgFailure::Rejected(DbError::NulCharacter),
            false => PgFailure::Server(error),
        }
    }
}

impl From<DbError> for PgFailure {
    fn from(error: DbError) -> PgFailure {
        PgFailure::Rejected(error)
    }
}

/// Connection options of all servers.
#[derive(Clone, Debug)]
pub(super) struct PgConnectOptions {
    pub(super) tls: Option<PgTls>,
    pub(super) password_file: Option<PathBuf>,
}

#[derive(Debug)]
pub(super) struct PgConnection {
    pub(super) client: Client,
    pub(super) name: String,
    pub(super) replica: bool,
    pub(super) notifications: mpsc::Receiver<()>,
}

impl PgConnection {
    pub(super) async fn connect(
        server: &PgServer,
        options: &PgConnectOptions,
    ) -> Result<PgConnection, String> {
        let mut config = server.config.clone();
        if let Some(path) = &options.password_file {
            config.password(password_file::read(path)?);
        }
        let (client, notified) = match &options.tls {
            None => spawn_connection(config.connect(NoTls).await),
            Some(tls) => spawn_connection(config.connect(tls.connector()).await),
        }?;
        Ok(PgConnection {
            client,
            name: server.name.clone(),
            replica: server.replica,
            notifications: notified,
        })
    }

    pub(super) fn unreadable(&self, error: tokio_postgres::Error) -> DbError {
        if is_nul(&error) {
            return DbError::NulCharacter;
        }
        DbError::Unreadable { location: self.name.clone(), why: error_text(&error) }
    }

    /// The error of a failed read.
    pub(super) fn read_error(&self, failure: PgFailure) -> DbError {
        match failure {
            PgFailure::Rejected(error) => error,
            PgFailure::Server(error) => self.unreadable(error),
            PgFailure::TimedOut => {
                DbError::Unreadable { location: self.name.clone(), why: "no answer in time".to_owned() }
            }
        }
    }
}

/// The client, and the notifications of its server.
fn spawn_connection<S, T>(
    connected: Result<(Client, Connection<S, T>), tokio_postgres::Error>,
) -> Result<(Client, mpsc::Receiver<()>), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (client, mut connection) = connected.map_err(|error| error_text(&error))?;
    let (notify, notified) = mpsc::channel(MAX_NOTIFICATIONS);
    // Ends when the client is dropped.
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if matches!(message, AsyncMessage::Notification(_)) {
                notify.try_send(()).ok();
            }
        }
    });
    Ok((client, notified))
}

/// Whether a connection is usable after this error: the server is not shutting down or starting, and is still
/// writable.
pub(super) fn is_usable_after(error: &tokio_postgres::Error) -> bool {
    let going = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::READ_ONLY_SQL_TRANSACTION,
    ];
    error.code().is_some_and(|code| !going.contains(code))
}

/// All text that is sent is valid UTF-8, so the only character that the server can reject is NUL.
fn is_nul(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::CHARACTER_NOT_IN_REPERTOIRE)
}

/// The server's message; the driver's is only `db error`.
pub(super) fn error_text(error: &tokio_postgres::Error) -> String {
    use std::error::Error;
    match (error.as_db_error(), error.source()) {
        (Some(error), _) => error.message().to_owned(),
        (None, Some(source)) => source.to_string(),
        (None, None) => error.to_string(),
    }
}
