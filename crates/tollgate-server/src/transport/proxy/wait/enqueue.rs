//! Enqueues denied requests of rules with `on_exceed: queue`, and answers status queries of their senders.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use hyper::header::{HOST, HeaderValue, LOCATION};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use serde_json::json;
use tollgate::internal::document::{self, Problems};
use tollgate::internal::rule::OnExceed;
use tollgate::internal::{EngineVerdict, PolicySnapshot};
use tollgate::{Hit, Reason, Time};

use crate::config::QueueConfig;
use crate::connection::FullResponse;
use crate::error_response::{self, ErrorFormat};
use crate::gate::{Gate, GateSnapshot};
use crate::log_rate::LogLimiter;
use crate::queue::{QueueBackend, QueueError, QueuedRequest, QueuedState, RequestSender, new_id};
use crate::response::{self, ProblemDetails};
use crate::transport::proxy::body::{BoxError, ResponseBody, Upload};
use crate::transport::proxy::wait::budget::{Budget, BudgetReservation, SHARE_DIVISOR};
use crate::transport::proxy::wait::retry_schedule::RetrySchedule;

/// Path of status queries, followed by the request's id. A client that has the id may query it, so the id is a secret.
pub const STATUS_PATH: &str = "/.tollgate/queue/";
/// Bound on all bodies together that are being read in order to be enqueued.
const MAX_READING_BYTES: usize = 256 << 20;

/// The request queue as the proxy uses it.
pub struct RequestQueue {
    pub backend: QueueBackend,
    pub config: QueueConfig,
    pub retry_schedule: RetrySchedule,
    /// Memory of bodies that are being read in order to be enqueued.
    body_budget: Arc<Budget>,
    /// Of the log: clients can cause as many failures as they send requests.
    pub failures: LogLimiter,
}

/// A denied request that is to be stored, without its body.
pub struct DeniedRequest<'r> {
    pub parts: &'r Parts,
    pub host: &'r HeaderValue,
    pub sender: RequestSender,
    /// The client whose share of memory the body takes.
    pub budget_client: Option<IpAddr>,
    pub verdict: &'r EngineVerdict,
    pub decided_at: Time,
}

/// Whether all denying limits have `on_exceed: queue`.
pub fn is_queueable(verdict: &EngineVerdict) -> bool {
    let mut denying = verdict.enforced().filter(|limit| !limit.is_allowed()).peekable();
    // A cost that exceeds the limit never passes, so the request is not enqueued.
    let passes_later =
        verdict.reason == Reason::Limit && verdict.retry_after.is_some() && denying.peek().is_some();
    // An entry stores one value per key, so a key with several values cannot be enqueued.
    let is_ambiguous = verdict.limits().iter().any(|limit| limit.repeated);
    passes_later && !is_ambiguous && denying.all(|limit| limit.rule.on_exceed == OnExceed::Queue)
}

/// All identity attributes that the policy may use for this sender, resolved now.
pub fn resolve_identity(policy: &PolicySnapshot, hit: &Hit<'_>) -> Vec<(String, String)> {
    let mut known = HashSet::new();
    let attributes = policy.attributes().filter(|attribute| known.insert(*attribute));
    attributes
        .filter_map(|attribute| Some((attribute.to_string(), policy.value(hit, attribute)?.into_owned())))
        .collect()
}

/// Why a request could not be enqueued.
pub enum EnqueueError {
    Body(BoxError),
    TooLong(usize),
    Queue(QueueError),
}

impl RequestQueue {
    /// It must be called inside a tokio runtime.
    pub fn open(config: QueueConfig) -> Result<RequestQueue, Problems> {
        let problem = |error| document::Problem::new(None, "queue", format!("{}: {error}", config.location));
        let queue = QueueBackend::open(&config).map_err(problem)?;
        // A share has room for the longest body.
        let share = config.max_body.max(MAX_READING_BYTES / SHARE_DIVISOR);
        Ok(RequestQueue {
            backend: queue,
            config,
            retry_schedule: RetrySchedule::default(),
            body_budget: Budget::with_share(MAX_READING_BYTES, share),
            failures: LogLimiter::default(),
        })
    }

    /// Stores a request; returns its id.
    pub async fn enqueue(
        &self,
        gate: &Gate,
        snapshot: &GateSnapshot,
        denied: DeniedRequest<'_>,
        mut upload: Upload,
    ) -> Result<String, EnqueueError> {
        let DeniedRequest { parts, host, sender, budget_client, verdict, decided_at } = denied;
        let mut reservation = BudgetReservation::of(&self.body_budget, budget_client);
        let body = self.read_body(&mut upload, &mut reservation).await?;
        let policy = &snapshot.policy;
        let now = gate.now();
        // The sender's identity is replayed as the rules saw it, so the API recognises the same sender.
        let identifying = snapshot
            .fields
            .headers
            .iter()
            .filter(|name| !self.config.headers.contains(name) && *name != HOST);
        let chosen = self.config.headers.iter().chain(identifying).flat_map(|name| {
            let lines = parts.headers.get_all(name).iter();
            lines.map(|line| (name.to_string(), String::from_utf8_lossy(line.as_bytes()).into_owned()))
        });
        let mut item = QueuedRequest {
            id: new_id(),
            method: parts.method.to_string(),
            target: parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            host: host.to_str().unwrap_or_default().to_owned(),
            headers: chosen.collect(),
            body_bytes: body.len(),
            sender,
            state: QueuedState::Queued,
            queued_at: now,
            expires_at: now + self.config.ttl,
            next_at: now,
            tries: 0,
            status: None,
            error: None,
            delivery_tag: None,
        };
        // Due when it can pass, but at the latest when it expires: the expiry is detected then.
        let next_at = self.retry_schedule.schedule(policy, &item.hit(), verdict, decided_at);
        item.next_at = next_at.min(item.expires_at);
        match self.backend.push(item.clone(), body).await {
            Ok(()) => Ok(item.id),
            Err(error) => {
                self.retry_schedule.cancel(policy, &item.hit(), verdict, decided_at);
                if !error.is_full() {
                    self.failures.warn("errors of the queue", || {
                        tracing::error!(%error, "a request could not be queued");
                    });
                }
                Err(EnqueueError::Queue(error))
            }
        }
    }

    async fn read_body(
        &self,
        upload: &mut Upload,
        reservation: &mut BudgetReservation,
    ) -> Result<Vec<u8>, EnqueueError> {
        loop {
            if upload.prefix().len() > self.config.max_body {
                return Err(EnqueueError::TooLong(self.config.max_body));
            }
            if reservation.grow_to(upload.prefix().len()).is_err() {
                return Err(EnqueueError::Queue(QueueError::Full));
            }
            if !upload.read_ahead().await.map_err(EnqueueError::Body)? {
                return Ok(Vec::from(upload.take_prefix()));
            }
        }
    }

    /// The response to an enqueued request: 202 with the status URL, or 429 where the configuration says so.
    pub fn accepted_response(
        &self,
        id: &str,
        verdict: &EngineVerdict,
        ticket: Option<&str>,
        format: ErrorFormat,
    ) -> Response<ResponseBody> {
        let status_url = format!("{STATUS_PATH}{id}");
        let mut answer = if self.config.accepted_status == 429 {
            error_response::denied(verdict, ticket, format)
        } else {
            let body = json!({ "status": QueuedState::Queued.name(), "id": id, "status_url": status_url });
            response::json(StatusCode::ACCEPTED, &body)
        };
        let status_url = HeaderValue::from_str(&status_url).expect("an id is plain text");
        answer.headers_mut().insert(LOCATION, status_url);
        answer.map(ResponseBody::Full)
    }

    /// Answers a status query.
    pub async fn status(&self, method: &Method, id: &str) -> Result<FullResponse, ProblemDetails> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(ProblemDetails::method_not_allowed("GET, HEAD"));
        }
        let unavailable =
            |error: QueueError| ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
        let found = self.backend.find(id).await.map_err(unavailable)?;
        let item = found.ok_or_else(|| {
            ProblemDetails::new(StatusCode::NOT_FOUND, "no such request, or it has expired")
        })?;
        let body = json!({
            "id": item.id,
            "status": item.state.name(),
            "tries": item.tries,
            "response_status": item.status,
        });
        Ok(response::json(StatusCode::OK, &body))
    }
}

impl From<EnqueueError> for ProblemDetails {
    fn from(error: EnqueueError) -> ProblemDetails {
        match error {
            EnqueueError::Body(_) => {
                ProblemDetails::new(StatusCode::BAD_REQUEST, "the body could not be read")
            }
            EnqueueError::TooLong(max) => ProblemDetails::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("a request with more than {max} bytes is not queued"),
            ),
            EnqueueError::Queue(error) if error.is_full() => {
                ProblemDetails::new(StatusCode::TOO_MANY_REQUESTS, error.to_string())
            }
            EnqueueError::Queue(_) => {
                ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, "the request could not be queued")
            }
        }
    }
}
