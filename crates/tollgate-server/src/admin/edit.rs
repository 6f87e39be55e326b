//! Edits of the rules database, with preconditions against lost updates.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{ETAG, HeaderValue};
use serde_json::{Value, json};
use tokio::time::timeout;
use tollgate::Time;
use tollgate_stores::rules::{DbError, Edit, ItemChange, ItemId, Precondition, Version};

use crate::admin::audit;
use crate::admin::request::{AdminRequest, flag};
use crate::connection::FullResponse;
use crate::response::{self, ProblemDetails};
use crate::rules_follower::{DeferredEdit, RulesFollower};

/// The precondition in the headers of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    Any,
    /// `If-None-Match: *`
    Absent,
    /// `If-Match: *`
    Exists,
    /// `If-Match: "0-17"`
    AtVersion(Version),
}

impl Condition {
    fn of(call: &AdminRequest) -> Result<Condition, ProblemDetails> {
        match (call.header("if-match")?, call.header("if-none-match")?) {
            (None, None) => Ok(Condition::Any),
            (None, Some("*")) => Ok(Condition::Absent),
            (None, Some(_)) => {
                Err(ProblemDetails::bad_field("If-None-Match", "If-None-Match must be * here"))
            }
            (Some("*"), None) => Ok(Condition::Exists),
            (Some(tag), None) => {
                let version = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
                let version = version.and_then(|version| version.parse().ok());
                let wrong = || {
                    ProblemDetails::bad_field("If-Match", "If-Match must be one ETag such as \"0-17\", or *")
                };
                version.map(Condition::AtVersion).ok_or_else(wrong)
            }
            (Some(_), Some(_)) => {
                Err(ProblemDetails::bad_field("If-Match", "give If-Match or If-None-Match, not both"))
            }
        }
    }
}

/// Options of an edit.
#[derive(Clone, Copy)]
pub struct EditOptions {
    pub condition: Condition,
    /// Reports the changes without making them.
    pub dry_run: bool,
    /// When the edit is made, in the response as in the database.
    pub at: Time,
}

impl EditOptions {
    /// Reads `?dry_run=true` and the preconditions.
    pub fn of(call: &AdminRequest) -> Result<EditOptions, ProblemDetails> {
        let [dry_run] = call.parameters(["dry_run"])?;
        EditOptions::with(call, dry_run.as_deref())
    }

    pub fn with(call: &AdminRequest, dry_run: Option<&str>) -> Result<EditOptions, ProblemDetails> {
        let condition = Condition::of(call)?;
        Ok(EditOptions { condition, dry_run: flag("dry_run", dry_run)?, at: call.gate().now() })
    }

    /// Whether the edit is to be made whatever the database has.
    pub fn is_unconditional(&self) -> bool {
        self.condition == Condition::Any && !self.dry_run
    }

    /// The state that the database is to expect.
    pub async fn expected(
        &self,
        follower: &RulesFollower,
        item: &ItemId,
    ) -> Result<Precondition, ProblemDetails> {
        Ok(match self.condition {
            Condition::Any => Precondition::Any,
            Condition::Absent => Precondition::Absent,
            Condition::AtVersion(version) => Precondition::AtVersion(version),
            Condition::Exists => match follower.get(item.clone()).await.map_err(db_problem)? {
                Some(stored) => Precondition::AtVersion(stored.version),
                None => return Err(precondition_failed(format!("there is no {item}"), None)),
            },
        })
    }
}

/// The outcome of edits.
pub enum EditOutcome {
    Applied(Vec<ItemChange>),
    /// A dry run, with its response.
    DryRun(FullResponse),
}

/// The outcome of an edit that does not wait for the database.
pub enum UrgentEdit {
    Done(EditOutcome),
    /// The database cannot be written: the caller puts the edit into force on this node.
    Pending(DeferredEdit),
}

/// Why the response to an edit has no version.
pub const fn pending_text(deferred: DeferredEdit) -> &'static str {
    match deferred {
        DeferredEdit::OnDisk => {
            "the rules database cannot be written: this is in force on this node only, also after a restart, until it can"
        }
        DeferredEdit::InMemory => {
            "the rules database cannot be written, nor can state_dir: this is in force on this node only, and a restart \
             forgets it"
        }
    }
}

/// How long an urgent edit waits for a database that seems to be writable.
const URGENT_TIMEOUT: Duration = Duration::from_secs(3);

impl AdminRequest {
    /// The rules database, if configured.
    pub fn rules_follower(&self) -> Result<&Arc<RulesFollower>, ProblemDetails> {
        let none = "rules_db is none: edit the configuration file instead";
        self.gate().rules_follower.get().ok_or_else(|| ProblemDetails::new(StatusCode::CONFLICT, none))
    }

    /// Makes edits, all or none; a dry run reports what they would change.
    pub async fn apply_edits(
        &self,
        terms: &EditOptions,
        edits: Vec<Edit>,
    ) -> Result<EditOutcome, ProblemDetails> {
        let follower = self.rules_follower()?;
        let done = if terms.dry_run {
            let planned = follower.db().map_err(db_problem)?.preview(edits).await;
            planned.map(|planned| EditOutcome::DryRun(dry_run_response(&planned)))
        } else {
            follower.edit(&self.caller, edits, terms.at).await.map(EditOutcome::Applied)
        };
        match done {
            Err(DbError::Exists { item, .. }) if terms.condition == Condition::Absent => {
                let found = follower.get(item.clone()).await.ok().flatten();
                Err(precondition_failed(format!("{item} exists already"), found.map(|found| found.version)))
            }
            done => done.map_err(db_problem),
        }
    }
}

impl AdminRequest {
    /// Makes an edit. While the database cannot be written, an edit without a precondition is queued.
    pub async fn apply_urgent_edit(
        &self,
        terms: &EditOptions,
        edit: Edit,
    ) -> Result<UrgentEdit, ProblemDetails> {
        if !terms.is_unconditional() {
            return self.apply_edits(terms, vec![edit]).await.map(UrgentEdit::Done);
        }
        let follower = self.rules_follower()?;
        if !follower.must_defer_edits() {
            let editing = follower.edit(&self.caller, vec![edit.clone()], terms.at);
            match timeout(URGENT_TIMEOUT, editing).await {
                Ok(Ok(changes)) => return Ok(UrgentEdit::Done(EditOutcome::Applied(changes))),
                Ok(Err(error)) if !error.is_transient() => return Err(db_problem(error)),
                Ok(Err(error)) => tracing::warn!("rules database: {error}"),
                Err(_) => tracing::warn!("rules database: no answer within {URGENT_TIMEOUT:?}"),
            }
        }
        self.defer_edit(edit).await.map(UrgentEdit::Pending)
    }

    /// Queues an edit until the database can be written.
    pub async fn defer_edit(&self, edit: Edit) -> Result<DeferredEdit, ProblemDetails> {
        let deferred = self.rules_follower()?.defer_edit(&self.caller, edit, self.gate().now()).await;
        deferred.ok_or_else(|| {
            let detail = "the rules database cannot be written, and too many edits wait for it";
            ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        })
    }
}

/// The response with planned changes.
pub fn dry_run_response(planned: &[(ItemChange, Option<String>)]) -> FullResponse {
    let changes = planned.iter().map(|(change, before)| audit::change_json(change, before.as_deref()));
    response::json(StatusCode::OK, &json!({ "dry_run": true, "changes": changes.collect::<Value>() }))
}

/// Converts a database error to a response.
pub fn db_problem(error: DbError) -> ProblemDetails {
    let detail = error.to_string();
    let status = match &error {
        DbError::Conflict { item, found, .. } => {
            let now = found.map_or_else(|| "deleted".to_owned(), |found| format!("at version {found}"));
            return precondition_failed(format!("{item} is {now}: read it again"), *found);
        }
        DbError::Exists { item, .. } => {
            return ProblemDetails::new(StatusCode::CONFLICT, format!("{item} exists already"));
        }
        DbError::Missing { item, .. } => {
            return ProblemDetails::new(StatusCode::NOT_FOUND, format!("there is no {item}"));
        }
        DbError::ChangedSince { found, .. } => return precondition_failed(detail, *found),
        DbError::UnknownVersion(_) => StatusCode::NOT_FOUND,
        DbError::PrunedSet(_) | DbError::NothingToRevert(_) | DbError::RampMoved => StatusCode::CONFLICT,
        DbError::DuplicateItem { .. } | DbError::TooManyEdits { .. } | DbError::NulCharacter => {
            StatusCode::BAD_REQUEST
        }
        error if error.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    if status.is_server_error() {
        tracing::warn!("rules database: {detail}");
    }
    ProblemDetails::new(status, detail)
}

/// The precondition fails: the item has another version, or does not exist.
pub fn precondition_failed(detail: String, version: Option<Version>) -> ProblemDetails {
    let version = version.map(|version| version.to_string());
    ProblemDetails::new(StatusCode::PRECONDITION_FAILED, detail).with("version", version)
}

/// Sets the version of an item as `ETag`.
pub fn with_etag(mut answer: FullResponse, version: Option<Version>) -> FullResponse {
    let tag = version.and_then(|version| HeaderValue::from_str(&format!("\"{version}\"")).ok());
    if let Some(tag) = tag {
        answer.headers_mut().insert(ETAG, tag);
    }
    answer
}
