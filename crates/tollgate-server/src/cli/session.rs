//! A conversation of a command with the admin API: a refusal or a failure is said, and becomes the exit code.

use std::io::{self, Write};
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::cli::progress::Progress;
use crate::cli::{AdminArgs, Exit, out};
use crate::client::{self, Answered, Call, ClientError, Connection, Sent};

const LOOK_EVERY: Duration = Duration::from_millis(50);

pub struct Session {
    runtime: Runtime,
    connection: Connection,
    json: bool,
}

impl Session {
    pub fn open(admin: &AdminArgs) -> Result<Session, Exit> {
        let runtime = client::runtime();
        let connection = runtime.block_on(Connection::to_admin(&admin.admin));
        let connection = connection.map_err(|error| out::failed(&error))?;
        Ok(Session { runtime, connection, json: admin.json })
    }

    pub fn ask(&mut self, method: Method, path: &str, body: Option<Value>) -> Result<Answered, Exit> {
        let answered = self.runtime.block_on(self.connection.ask(Call::new(method, path).json(body)));
        self.accepted(answered)
    }

    pub fn get(&mut self, path: &str) -> Result<Value, Exit> {
        self.ask(Method::GET, path, None).map(|answered| answered.body)
    }

    /// Sends a long text, with a bar where that takes a while.
    pub fn upload(
        &mut self,
        path: &str,
        content_type: &str,
        text: Bytes,
        progress: Progress,
    ) -> Result<Answered, Exit> {
        let total = text.len() as u64;
        let sent = Sent::default();
        progress.step("sending", Some(total));
        let call = Call::new(Method::POST, path).long(content_type, text);
        let asked = self.connection.ask_counting(call, &sent);
        let answered = self.runtime.block_on(async {
            tokio::select! {
                answered = asked => answered,
                never = follow(&sent, total, &progress) => match never {},
            }
        });
        drop(progress);
        self.accepted(answered)
    }

    /// Writes what is answered to stdout as it comes. A reader that has had enough is no error.
    pub fn download(&mut self, path: &str) -> Result<(), Exit> {
        let progress = Progress::start("receiving");
        let (mut stdout, mut done) = (io::stdout().lock(), 0);
        let written = self.runtime.block_on(self.connection.download(Call::new(Method::GET, path), |data| {
            done += data.len() as u64;
            progress.at(done);
            stdout.write_all(data)
        }));
        drop(progress);
        match written {
            Err(ClientError::Output { error, .. }) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => self.accepted(written).map(drop),
        }
    }

    fn accepted(&self, answered: Result<Answered, ClientError>) -> Result<Answered, Exit> {
        match answered {
            Ok(answered) if answered.status < 300 => Ok(answered),
            Ok(refused) => match refused.body.get("problems") {
                Some(problems) if self.json => {
                    out::pretty(&json!({ "valid": false, "problems": problems }));
                    Err(Exit::InvalidConfiguration)
                }
                _ => Err(out::refused(&refused)),
            },
            Err(error) => Err(out::failed(&error)),
        }
    }
}

async fn follow(sent: &Sent, total: u64, progress: &Progress) -> std::convert::Infallible {
    while sent.bytes() < total {
        progress.at(sent.bytes());
        tokio::time::sleep(LOOK_EVERY).await;
    }
    progress.step("waiting for the server", None);
    std::future::pending().await
}
