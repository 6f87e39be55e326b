//! Calls of a command to the admin API: an error response or a failure is printed, and becomes the exit code.

use std::io::{self, Write};
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::cli::input_file::InputFile;
use crate::cli::progress::Progress;
use crate::cli::{AdminArgs, Exit, out};
use crate::client::{self, ClientError, ClientRequest, ClientResponse, ServerClient, UploadCounter};

/// A longer body is sent only after the server has accepted an empty one: if the server rejects a body and closes the
/// connection while it is being sent, its response may be lost.
const PREFLIGHT_BYTES: usize = 1 << 20;
/// The setting of the address that is called.
pub const ADMIN_LISTENER: &str = "listen.admin";
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How a pause has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    Over,
    /// The user has pressed Ctrl-C.
    Interrupted,
}

pub struct Session {
    runtime: Runtime,
    client: ServerClient,
    json: bool,
}

impl Session {
    pub fn open(admin: &AdminArgs) -> Result<Session, Exit> {
        let runtime = client::runtime();
        let client = ServerClient::with_token(&admin.admin).map_err(|error| out::failed(&error))?;
        Ok(Session { runtime, client, json: admin.json })
    }

    pub fn call(&mut self, method: Method, path: &str, body: Option<Value>) -> Result<ClientResponse, Exit> {
        let answered =
            self.runtime.block_on(self.client.fetch_json(ClientRequest::new(method, path).json(body)));
        check_status(answered)
    }

    pub fn pause(&mut self, duration: Duration) -> Pause {
        self.runtime.block_on(async {
            tokio::select! {
                () = tokio::time::sleep(duration) => Pause::Over,
                _ = tokio::signal::ctrl_c() => Pause::Interrupted,
            }
        })
    }

    pub fn get(&mut self, path: &str) -> Result<Value, Exit> {
        self.call(Method::GET, path, None).map(|answered| answered.body)
    }

    /// A call that may take long: it fails only if the server does not answer `/healthz` either.
    pub fn call_long(&mut self, path: &str) -> Result<ClientResponse, Exit> {
        let request = ClientRequest::new(Method::POST, path).long_running("application/json", Bytes::new());
        check_status(self.runtime.block_on(self.client.fetch_json(request)))
    }

    /// Uploads a long text, with a progress bar if that takes a while. Problems are printed with their lines.
    pub fn upload(&mut self, path: &str, query: &str, text: InputFile) -> Result<ClientResponse, Exit> {
        if text.bytes.len() > PREFLIGHT_BYTES {
            self.call(Method::POST, &format!("{path}?dry_run=true"), Some(json!([])))?;
        }
        let total = text.bytes.len() as u64;
        let sent = UploadCounter::default();
        let progress = Progress::start(format!("sending {}", text.name), Some(total));
        let path = format!("{path}?{query}");
        let call = ClientRequest::new(Method::POST, &path).long_running(text.content_type, text.bytes);
        let response = self.client.fetch_json_counted(call, &sent);
        let answered = self.runtime.block_on(async {
            tokio::select! {
                answered = response => answered,
                never = track_upload(&sent, total, &progress) => match never {},
            }
        });
        drop(progress);
        match answered {
            Ok(answered) if answered.body.get("problems").is_some() => {
                Err(self.problems(&text.name, answered.body))
            }
            answered => check_status(answered),
        }
    }

    fn problems(&self, file: &str, mut refused: Value) -> Exit {
        if self.json {
            let mut problems = refused["problems"].take();
            problems.as_array_mut().into_iter().flatten().for_each(|problem| problem["file"] = file.into());
            out::pretty(&json!({ "valid": false, "problems": problems }));
            return Exit::InvalidConfiguration;
        }
        for line in refused["detail"].as_str().unwrap_or_default().lines().map(out::escape_control) {
            let is_placed = line.starts_with(|first: char| first.is_ascii_digit());
            out::message(if is_placed { format!("{file}:{line}") } else { line });
        }
        Exit::InvalidConfiguration
    }

    /// Streams the response to stdout. A closed pipe is not an error.
    pub fn download(&mut self, path: &str) -> Result<(), Exit> {
        let progress = Progress::start("receiving", None);
        let mut stdout = io::stdout().lock();
        let mut done = 0;
        let written =
            self.runtime.block_on(self.client.download(ClientRequest::new(Method::GET, path), |data| {
                done += data.len() as u64;
                progress.at(done);
                stdout.write_all(data)
            }));
        drop(progress);
        match written {
            Err(ClientError::Output { error, .. }) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => check_status(written).map(drop),
        }
    }
}

async fn track_upload(sent: &UploadCounter, total: u64, progress: &Progress) -> std::convert::Infallible {
    while sent.bytes() < total {
        progress.at(sent.bytes());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    progress.step("waiting for the server");
    std::future::pending().await
}

fn check_status(answered: Result<ClientResponse, ClientError>) -> Result<ClientResponse, Exit> {
    match answered {
        Ok(answered) if answered.status < 300 => Ok(answered),
        Ok(refused) => Err(out::refused(&refused, ADMIN_LISTENER)),
        Err(error) => Err(out::failed(&error)),
    }
}
