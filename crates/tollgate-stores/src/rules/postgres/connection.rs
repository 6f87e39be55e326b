//! A connection to one server, and what its failures mean.

use std::future::poll_fn;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls};

use super::PgServer;
use super::tls::PgTls;
use crate::rules::DbError;

/// Notifications that wait to be heard; more of them say nothing new.
const MAX_NOTIFICATIONS: usize = 16;

/// Why a job on a connection failed.
#[derive(Debug)]
pub(super) enum PgFailure {
    Server(tokio_postgres::Error),
    /// It took longer than it may.
    TimedOut,
    /// The server did its part: the edit itself was refused.
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

/// How all servers are talked to.
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
            config.password(read_password(path)?);
        }
        let (client, heard) = match &options.tls {
            None => spawn_connection(config.connect(NoTls).await),
            Some(tls) => spawn_connection(config.connect(tls.clone()).await),
        }?;
        Ok(PgConnection { client, name: server.name.clone(), replica: server.replica, notifications: heard })
    }

    pub(super) fn unreadable(&self, error: tokio_postgres::Error) -> DbError {
        if is_nul(&error) {
            return DbError::NulCharacter;
        }
        DbError::Unreadable { place: self.name.clone(), why: error_text(&error) }
    }

    /// What a reader is told.
    pub(super) fn read_error(&self, failure: PgFailure) -> DbError {
        match failure {
            PgFailure::Rejected(error) => error,
            PgFailure::Server(error) => self.unreadable(error),
            PgFailure::TimedOut => {
                DbError::Unreadable { place: self.name.clone(), why: "no answer in time".to_owned() }
            }
        }
    }
}

/// A client, and what its server tells without being asked.
fn spawn_connection<S, T>(
    connected: Result<(Client, Connection<S, T>), tokio_postgres::Error>,
) -> Result<(Client, mpsc::Receiver<()>), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (client, mut connection) = connected.map_err(|error| error_text(&error))?;
    let (tell, heard) = mpsc::channel(MAX_NOTIFICATIONS);
    // It ends with the client.
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if matches!(message, AsyncMessage::Notification(_)) {
                tell.try_send(()).ok();
            }
        }
    });
    Ok((client, heard))
}

/// The password alone; a line end behind it is not part of it.
fn read_password(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("password_file {}: {error}", path.display()))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Whether a server that said this may still be asked: it is not going, and not what it was taken for.
pub(super) fn is_usable_after(error: &tokio_postgres::Error) -> bool {
    let going = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::READ_ONLY_SQL_TRANSACTION,
    ];
    error.code().is_some_and(|code| !going.contains(code))
}

/// All text that is sent is valid UTF-8, so the only character that the server can refuse is NUL.
fn is_nul(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::CHARACTER_NOT_IN_REPERTOIRE)
}

/// The server's own words; the driver's are `db error`.
pub(super) fn error_text(error: &tokio_postgres::Error) -> String {
    use std::error::Error;
    match (error.as_db_error(), error.source()) {
        (Some(told), _) => told.message().to_owned(),
        (None, Some(source)) => source.to_string(),
        (None, None) => error.to_string(),
    }
}
