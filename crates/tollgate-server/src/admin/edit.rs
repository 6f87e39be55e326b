//! Edits of the rules database: on what their author has seen, or not at all.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{ETAG, HeaderValue};
use serde_json::{Value, json};
use tollgate_stores::rules::{Change, DbError, Edit, Expected, Item, Version};

use crate::admin::audit;
use crate::admin::call::{Call, flag};
use crate::answer::{self, Problem};
use crate::connection::Answer;
use crate::rulebook::Rulebook;

/// What must be there, as the headers of the call say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    Anything,
    /// `If-None-Match: *`
    Nothing,
    /// `If-Match: *`
    Something,
    /// `If-Match: "0-17"`
    At(Version),
}

impl Condition {
    fn of(call: &Call) -> Result<Condition, Problem> {
        match (call.header("if-match")?, call.header("if-none-match")?) {
            (None, None) => Ok(Condition::Anything),
            (None, Some("*")) => Ok(Condition::Nothing),
            (None, Some(_)) => Err(Problem::bad_field("If-None-Match", "If-None-Match takes * here")),
            (Some("*"), None) => Ok(Condition::Something),
            (Some(tag), None) => {
                let version = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
                let version = version.and_then(|version| version.parse().ok());
                let wrong =
                    || Problem::bad_field("If-Match", "If-Match takes one ETag such as \"0-17\", or *");
                version.map(Condition::At).ok_or_else(wrong)
            }
            (Some(_), Some(_)) => {
                Err(Problem::bad_field("If-Match", "give If-Match or If-None-Match, not both"))
            }
        }
    }
}

/// How an edit is to be made.
#[derive(Clone, Copy)]
pub struct Terms {
    pub condition: Condition,
    /// Only to be looked at.
    pub dry_run: bool,
}

impl Terms {
    /// `?dry_run=true` and the conditions.
    pub fn of(call: &Call) -> Result<Terms, Problem> {
        let [dry_run] = call.parameters(["dry_run"])?;
        Terms::with(call, dry_run.as_deref())
    }

    pub fn with(call: &Call, dry_run: Option<&str>) -> Result<Terms, Problem> {
        Ok(Terms { condition: Condition::of(call)?, dry_run: flag("dry_run", dry_run)? })
    }

    /// What the database is to expect.
    pub async fn expected(&self, rulebook: &Rulebook, item: &Item) -> Result<Expected, Problem> {
        Ok(match self.condition {
            Condition::Anything => Expected::Anything,
            Condition::Nothing => Expected::Nothing,
            Condition::At(version) => Expected::At(version),
            Condition::Something => match rulebook.get(item.clone()).await.map_err(failed)? {
                Some(stored) => Expected::At(stored.version),
                None => return Err(precondition(format!("there is no {item}"), None)),
            },
        })
    }
}

/// What came of edits.
pub enum Made {
    Done(Vec<Change>),
    /// They were only looked at: the answer.
    Would(Answer),
}

impl Call {
    /// The rules database, where there is one.
    pub fn rulebook(&self) -> Result<&Arc<Rulebook>, Problem> {
        let none = "rules_db is none: what is in the configuration file is changed there";
        self.gate().rulebook.get().ok_or_else(|| Problem::new(StatusCode::CONFLICT, none))
    }

    /// Makes edits, all or none, or says what they would change.
    pub async fn make(&self, terms: &Terms, edits: Vec<Edit>) -> Result<Made, Problem> {
        let rulebook = self.rulebook()?;
        let done = if terms.dry_run {
            let planned = rulebook.db().map_err(failed)?.preview(edits).await;
            planned.map(|planned| Made::Would(would(&planned)))
        } else {
            rulebook.edit(&self.who, edits, self.gate().now()).await.map(Made::Done)
        };
        match done {
            Err(DbError::Exists { item, .. }) if terms.condition == Condition::Nothing => {
                let found = rulebook.get(item.clone()).await.ok().flatten();
                Err(precondition(format!("{item} exists already"), found.map(|found| found.version)))
            }
            done => done.map_err(failed),
        }
    }
}

/// What planned changes are.
pub fn would(planned: &[(Change, Option<String>)]) -> Answer {
    let changes = planned.iter().map(|(change, before)| audit::outline(change, before.as_deref()));
    answer::json(StatusCode::OK, &json!({ "dry_run": true, "changes": changes.collect::<Value>() }))
}

/// Why the database did not do what it was asked to.
pub fn failed(error: DbError) -> Problem {
    let detail = error.to_string();
    let status = match &error {
        DbError::Conflict { item, found, .. } => {
            let now = found.map_or_else(|| "deleted".to_owned(), |found| format!("at version {found}"));
            return precondition(format!("{item} is {now}: read it again"), *found);
        }
        DbError::Exists { item, .. } => {
            return Problem::new(StatusCode::CONFLICT, format!("{item} exists already"));
        }
        DbError::Missing { item, .. } => {
            return Problem::new(StatusCode::NOT_FOUND, format!("there is no {item}"));
        }
        DbError::NoChange(_) => StatusCode::NOT_FOUND,
        DbError::Twice { .. } | DbError::TooMany { .. } | DbError::Nul => StatusCode::BAD_REQUEST,
        error if error.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    if status.is_server_error() {
        tracing::warn!("rules database: {detail}");
    }
    Problem::new(status, detail)
}

/// The thing is not as the caller thinks: it is at another version, or there is none.
pub fn precondition(detail: String, version: Option<Version>) -> Problem {
    let version = version.map(|version| version.to_string());
    Problem::new(StatusCode::PRECONDITION_FAILED, detail).with("version", version)
}

/// Says which version of a thing an answer is about.
pub fn tagged(mut answer: Answer, version: Option<Version>) -> Answer {
    let tag = version.and_then(|version| HeaderValue::from_str(&format!("\"{version}\"")).ok());
    if let Some(tag) = tag {
        answer.headers_mut().insert(ETAG, tag);
    }
    answer
}
