//! A conversation of a command with the admin API: a refusal or a failure is said, and becomes the exit code.

use std::io::{self, Write};
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::cli::progress::Progress;
use crate::cli::text::Text;
use crate::cli::{AdminArgs, Exit, out};
use crate::client::{self, Answered, Call, ClientError, Connection, Sent};

/// A longer text is sent only once the server has taken an empty one: who refuses and hangs up while it is still
/// being sent may not be heard.
const ASK_FIRST_BYTES: usize = 1 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub struct Session {
    runtime: Runtime,
    connection: Connection,
    json: bool,
}

impl Session {
    pub fn open(admin: &AdminArgs) -> Result<Session, Exit> {
        let runtime = client::runtime();
        let connection = runtime.block_on(Connection::with_token(&admin.admin));
        let connection = connection.map_err(|error| out::failed(&error))?;
        Ok(Session { runtime, connection, json: admin.json })
    }

    pub fn ask(&mut self, method: Method, path: &str, body: Option<Value>) -> Result<Answered, Exit> {
        let answered = self.runtime.block_on(self.connection.ask(Call::new(method, path).json(body)));
        accepted(answered)
    }

    pub fn get(&mut self, path: &str) -> Result<Value, Exit> {
        self.ask(Method::GET, path, None).map(|answered| answered.body)
    }

    /// Sends a long text, with a bar where that takes a while. What is wrong with it is said by its lines.
    pub fn upload(&mut self, path: &str, query: &str, text: Text) -> Result<Answered, Exit> {
        if text.bytes.len() > ASK_FIRST_BYTES {
            self.ask(Method::POST, &format!("{path}?dry_run=true"), Some(json!([])))?;
        }
        let total = text.bytes.len() as u64;
        let sent = Sent::default();
        let progress = Progress::start(format!("sending {}", text.name), Some(total));
        let path = format!("{path}?{query}");
        let call = Call::new(Method::POST, &path).long(text.content_type, text.bytes);
        let asked = self.connection.ask_counting(call, &sent);
        let answered = self.runtime.block_on(async {
            tokio::select! {
                answered = asked => answered,
                never = follow(&sent, total, &progress) => match never {},
            }
        });
        drop(progress);
        match answered {
            Ok(answered) if answered.body.get("problems").is_some() => {
                Err(self.problems(&text.name, answered.body))
            }
            answered => accepted(answered),
        }
    }

    fn problems(&self, file: &str, mut refused: Value) -> Exit {
        if self.json {
            let mut problems = refused["problems"].take();
            problems.as_array_mut().into_iter().flatten().for_each(|problem| problem["file"] = file.into());
            out::pretty(&json!({ "valid": false, "problems": problems }));
            return Exit::InvalidConfiguration;
        }
        for line in refused["detail"].as_str().unwrap_or_default().lines().map(out::plain) {
            let is_placed = line.starts_with(|first: char| first.is_ascii_digit());
            out::message(if is_placed { format!("{file}:{line}") } else { line });
        }
        Exit::InvalidConfiguration
    }

    /// Writes what is answered to stdout as it comes. A reader that has had enough is no error.
    pub fn download(&mut self, path: &str) -> Result<(), Exit> {
        let progress = Progress::start("receiving", None);
        let (mut stdout, mut done) = (io::stdout().lock(), 0);
        let written = self.runtime.block_on(self.connection.download(Call::new(Method::GET, path), |data| {
            done += data.len() as u64;
            progress.at(done);
            stdout.write_all(data)
        }));
        drop(progress);
        match written {
            Err(ClientError::Output { error, .. }) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => accepted(written).map(drop),
        }
    }
}

async fn follow(sent: &Sent, total: u64, progress: &Progress) -> std::convert::Infallible {
    while sent.bytes() < total {
        progress.at(sent.bytes());
        tokio::time::sleep(LOOK_EVERY).await;
    }
    progress.step("waiting for the server");
    std::future::pending().await
}

fn accepted(answered: Result<Answered, ClientError>) -> Result<Answered, Exit> {
    match answered {
        Ok(answered) if answered.status < 300 => Ok(answered),
        Ok(refused) => Err(out::refused(&refused)),
        Err(error) => Err(out::failed(&error)),
    }
}
