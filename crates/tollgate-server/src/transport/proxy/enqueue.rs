//! A request that is put aside instead of refused, and what its sender can ask about it later.

use std::sync::Arc;

use hyper::header::{HOST, HeaderValue, LOCATION};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use serde_json::json;
use tollgate::document::{self, Problems};
use tollgate::rule::OnExceed;
use tollgate::{Hit, Policy, Reason, Time, Verdict};

use crate::answer::{self, Problem};
use crate::config::QueueConfig;
use crate::connection::Answer;
use crate::gate::Gate;
use crate::queue::{Item, Queue, QueueError, Sender, State, new_id};
use crate::transport::proxy::body::{BodyError, Reply, Upload};
use crate::transport::proxy::budget::{Budget, Share};
use crate::transport::proxy::line::Lines;

/// Where a sender asks what became of its request. The id is its secret.
pub const STATUS_PATH: &str = "/.tollgate/queue/";
/// Bodies that are read to be queued, all together.
const MAX_READING_BYTES: usize = 256 << 20;

/// The queue, where a rule puts requests aside.
pub struct Aside {
    pub queue: Queue,
    pub config: QueueConfig,
    pub lines: Lines,
    /// Bodies that are read to be queued.
    reading: Arc<Budget>,
}

/// Whether all that denied would rather put the request aside.
pub fn is_for_later(verdict: &Verdict) -> bool {
    let mut denying = verdict.enforced().filter(|limit| !limit.allowed).peekable();
    // What can never pass has no later.
    let passes_later =
        verdict.reason == Reason::Limit && verdict.retry_after.is_some() && denying.peek().is_some();
    // Of a key with several values only one would be kept.
    let is_ambiguous = verdict.limits.iter().any(|limit| limit.repeated);
    passes_later && !is_ambiguous && denying.all(|limit| limit.rule.on_exceed == OnExceed::Queue)
}

/// Everything that a policy may ask about the sender, resolved now.
pub fn identity(policy: &Policy, hit: &Hit<'_>) -> Vec<(String, String)> {
    let mut identity: Vec<(String, String)> = Vec::new();
    policy.for_each_attribute(|attribute| {
        let name = attribute.to_string();
        if identity.iter().all(|(known, _)| *known != name)
            && let Some(value) = policy.value(hit, attribute)
        {
            identity.push((name, value.into_owned()));
        }
    });
    identity
}

/// Why a request could not be put aside.
pub enum NotAside {
    Body(BodyError),
    TooLong(usize),
    Queue(QueueError),
}

impl Aside {
    /// It must be called inside a tokio runtime.
    pub fn open(config: QueueConfig) -> Result<Aside, Problems> {
        let problem = |error| document::Problem::new(None, "queue", format!("{}: {error}", config.place));
        let queue = Queue::open(&config).map_err(problem)?;
        Ok(Aside { queue, config, lines: Lines::default(), reading: Budget::new(MAX_READING_BYTES) })
    }

    /// Keeps a request; returns its id.
    pub async fn keep(
        &self,
        gate: &Gate,
        (parts, host): (&Parts, &HeaderValue),
        mut upload: Upload,
        sender: Sender,
        (verdict, decided_at): (&Verdict, Time),
    ) -> Result<String, NotAside> {
        let mut share = Share::of(&self.reading);
        let body = self.read(&mut upload, &mut share).await?;
        let (policy, now) = (gate.engine.policy(), gate.now());
        // The API has to recognise the sender as the rules did.
        let asked = gate.asked();
        let identifying =
            asked.headers.iter().filter(|name| !self.config.headers.contains(name) && *name != HOST);
        let chosen = self.config.headers.iter().chain(identifying).flat_map(|name| {
            let lines = parts.headers.get_all(name).iter();
            lines.map(|line| (name.to_string(), String::from_utf8_lossy(line.as_bytes()).into_owned()))
        });
        let mut item = Item {
            id: new_id(),
            method: parts.method.to_string(),
            target: parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            host: host.to_str().unwrap_or_default().to_owned(),
            headers: chosen.collect(),
            body_bytes: body.len(),
            sender,
            state: State::Queued,
            queued_at: now,
            expires_at: now + self.config.ttl,
            next_at: now,
            tries: 0,
            status: None,
            error: None,
            lease: None,
        };
        // Not before it can pass; nor after it is too old, which is found out then.
        let place = self.lines.enter(&policy, &item.hit(), verdict, decided_at);
        item.next_at = place.min(item.expires_at);
        match self.queue.push(item.clone(), body).await {
            Ok(()) => Ok(item.id),
            Err(error) => {
                self.lines.leave(&policy, &item.hit(), verdict, decided_at);
                Err(NotAside::Queue(error))
            }
        }
    }

    async fn read(&self, upload: &mut Upload, share: &mut Share) -> Result<Vec<u8>, NotAside> {
        loop {
            if !share.grow_to(upload.prefix().len()) {
                return Err(NotAside::Queue(QueueError::Full));
            }
            if upload.prefix().len() > self.config.max_body {
                return Err(NotAside::TooLong(self.config.max_body));
            }
            if !upload.read_ahead().await.map_err(NotAside::Body)? {
                return Ok(Vec::from(upload.take_prefix()));
            }
        }
    }

    /// What the sender is told: it is kept, or to come back later and that it is kept all the same.
    pub fn accepted(&self, id: &str, verdict: &Verdict) -> Response<Reply> {
        let place = format!("{STATUS_PATH}{id}");
        let mut answer = if self.config.answer == 429 {
            answer::refusal(verdict)
        } else {
            let body = json!({ "status": State::Queued.name(), "id": id, "status_url": place });
            answer::json(StatusCode::ACCEPTED, &body)
        };
        let place = HeaderValue::from_str(&place).expect("an id is plain text");
        answer.headers_mut().insert(LOCATION, place);
        answer.map(Reply::Whole)
    }

    /// Answers somebody who asks what became of a request.
    pub async fn show(&self, method: &Method, id: &str) -> Result<Answer, Problem> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(Problem::method("GET, HEAD"));
        }
        let broken = |error: QueueError| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
        let found = self.queue.find(id).await.map_err(broken)?;
        let item =
            found.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "no such request, or no longer"))?;
        let body = json!({
            "id": item.id,
            "status": item.state.name(),
            "tries": item.tries,
            "response_status": item.status,
        });
        Ok(answer::json(StatusCode::OK, &body))
    }
}

impl From<NotAside> for Problem {
    fn from(not: NotAside) -> Problem {
        match not {
            NotAside::Body(_) => Problem::new(StatusCode::BAD_REQUEST, "the body could not be read"),
            NotAside::TooLong(max) => Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("a request with more than {max} bytes is not queued"),
            ),
            NotAside::Queue(error @ (QueueError::Full | QueueError::SenderFull)) => {
                Problem::new(StatusCode::TOO_MANY_REQUESTS, error.to_string())
            }
            NotAside::Queue(error) => {
                tracing::error!(%error, "a request could not be queued");
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the request could not be queued")
            }
        }
    }
}
