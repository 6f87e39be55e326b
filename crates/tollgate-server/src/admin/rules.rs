//! `/v1/rules`: those of the file, which are only shown, and those of the database.

use hyper::StatusCode;
use hyper::header::{HeaderValue, LOCATION};
use serde_json::{Value, json};
use tollgate::document;
use tollgate::policy::Change;
use tollgate::rule::Rule;
use tollgate_stores::rules::{Edit, Expected, Item, RuleText, Stored, Version};

use crate::admin::call::{self, Call};
use crate::admin::edit::{Made, Terms, failed, tagged};
use crate::answer::{self, Problem};
use crate::connection::Answer;
use crate::gate::Gate;
use crate::rulebook::{self, Rulebook};

mod export;
mod import;
mod list;
mod written;

pub use export::export;
pub use import::import;
pub(super) use import::{ARRIVES_WITHIN, MAX_IMPORT_BYTES, busy, counted};
pub use list::list;
use written::written;

const MAX_RULE_BYTES: usize = 1 << 20;
/// What a rule has when it is shown, beside itself: who sends it back need not take it out.
const SHOWN: [&str; 3] = ["source", "version", "left_out"];

/// `?as=written` shows a rule as its author wrote it.
pub async fn show(call: Call) -> Result<Answer, Problem> {
    let [shown_as] = call.parameters(["as"])?;
    let as_written = call::choice("as", shown_as.as_deref(), [("read", false), ("written", true)])?;
    let (gate, id) = (call.gate(), call.name.as_str());
    let none = || Problem::new(StatusCode::NOT_FOUND, format!("no rule '{id}'"));
    if let Some(rule) = gate.engine.policy().rule(id).filter(|rule| !rule.is_added()) {
        let shown = if as_written { json!({ "rule": written(rule) }) } else { of_file(rule) };
        return Ok(answer::json(StatusCode::OK, &shown));
    }
    let Some(rulebook) = gate.rulebook.get() else { return Err(none()) };
    let stored = match rulebook.get(Item::rule(id)).await {
        Ok(stored) => stored.ok_or_else(none)?,
        // What is in force can be shown without the database.
        Err(error) => match gate.engine.policy().rule(id) {
            Some(rule) if !as_written => {
                return Ok(answer::json(StatusCode::OK, &of_database(written(rule), None, None)));
            }
            _ => return Err(failed(error)),
        },
    };
    let shown = match as_written {
        true => json!({ "rule": raw(&stored.text), "version": stored.version.to_string() }),
        false => of_stored(rulebook, &stored),
    };
    Ok(tagged(answer::json(StatusCode::OK, &shown), Some(stored.version)))
}

pub async fn create(mut call: Call) -> Result<Answer, Problem> {
    let terms = Terms::of(&call)?;
    let rule = ReadRule::of(&mut call, None).await?;
    let id = rule.text.id().to_owned();
    let edit = Edit::rule(rule.text, Expected::Nothing);
    let changes = match call.make(&terms, vec![edit]).await? {
        Made::Would(answer) => return Ok(answer),
        Made::Done(changes) => changes,
    };
    tracing::info!(rule = id, who = call.who, "rule created");
    let version = changes.last().map(|change| change.version);
    let answer = answer::json(StatusCode::CREATED, &of_database(written(&rule.rule), version, None));
    Ok(located(tagged(answer, version), &id))
}

pub async fn replace(mut call: Call) -> Result<Answer, Problem> {
    let terms = Terms::of(&call)?;
    let id = call.name.clone();
    let rule = ReadRule::of(&mut call, Some(&id)).await?;
    let item = Item::rule(&id);
    let expected = terms.expected(call.rulebook()?, &item).await?;
    let changes = match call.make(&terms, vec![Edit::rule(rule.text, expected)]).await? {
        Made::Would(answer) => return Ok(answer),
        Made::Done(changes) => changes,
    };
    let (status, version) = match changes.last() {
        Some(change) if change.previous.is_none() => (StatusCode::CREATED, Some(change.version)),
        Some(change) => (StatusCode::OK, Some(change.version)),
        None => {
            let unchanged = call.rulebook()?.get(item).await.map_err(failed)?;
            (StatusCode::OK, unchanged.map(|stored| stored.version))
        }
    };
    if !changes.is_empty() {
        tracing::info!(rule = id, who = call.who, "rule changed");
    }
    let answer = tagged(answer::json(status, &of_database(written(&rule.rule), version, None)), version);
    Ok(if status == StatusCode::CREATED { located(answer, &id) } else { answer })
}

/// Deletes a rule, and says what it was.
pub async fn delete(call: Call) -> Result<Answer, Problem> {
    let terms = Terms::of(&call)?;
    let (gate, item) = (call.gate(), Item::rule(&call.name));
    refuse_file_rule(gate, &call.name)?;
    let rulebook = call.rulebook()?;
    let was = rulebook.get(item.clone()).await.map_err(failed)?;
    let expected = terms.expected(rulebook, &item).await?;
    match call.make(&terms, vec![Edit::delete(item, expected)]).await? {
        Made::Would(answer) => Ok(answer),
        Made::Done(_) => {
            tracing::info!(rule = call.name, who = call.who, "rule deleted");
            let removed = was.map(|was| of_stored(rulebook, &was));
            Ok(answer::json(StatusCode::OK, &json!({ "removed": removed })))
        }
    }
}

/// A rule as it was sent, which fits beside those in force.
struct ReadRule {
    rule: Rule,
    text: RuleText,
}

impl ReadRule {
    /// Reads the body; where the path has an id, it is the rule's.
    async fn of(call: &mut Call, id: Option<&str>) -> Result<ReadRule, Problem> {
        call.rulebook()?;
        if let Some(id) = id {
            refuse_file_rule(call.gate(), id)?;
        }
        let body = call.body(MAX_RULE_BYTES).await?;
        let mut node = document::read(call::text(&body)?)?.without(&SHOWN);
        if let (Some(id), Some(map)) = (id, node.as_map())
            && !map.iter().any(|entry| entry.key() == "id")
        {
            node = node.with("id", id);
        }
        let text = RuleText::from_node(&node, "")?;
        if id.is_some_and(|id| id != text.id()) {
            return Err(Problem::bad_field("id", "the rule's id is not that of the path"));
        }
        refuse_file_rule(call.gate(), text.id())?;
        let rule = rulebook::read(text.as_str())?;
        refuse_misfit(call, &rule)?;
        Ok(ReadRule { rule, text })
    }
}

/// A rule of the file is changed in the file.
pub(super) fn refuse_file_rule(gate: &Gate, id: &str) -> Result<(), Problem> {
    if gate.engine.policy().rule(id).is_none_or(|rule| rule.is_added()) {
        return Ok(());
    }
    let detail = format!("rule {id} is in the configuration file: change it there");
    Err(Problem::new(StatusCode::CONFLICT, detail))
}

/// A rule that could not be in force beside the others, or with the counters where they are, is not taken.
pub(super) fn refuse_misfit(call: &Call, rule: &Rule) -> Result<(), Problem> {
    let (policy, now) = (call.gate().engine.policy(), call.gate().now());
    if let Some(why) = call.rulebook()?.refusal(&policy, rule) {
        return Err(Problem::bad_field("rule", why));
    }
    let put = policy.draft().make(Change::Put(rule.clone()), now);
    put.map_err(|error| Problem::bad_field("rule", error.to_string()))
}

fn of_file(rule: &Rule) -> Value {
    let mut shown = written(rule);
    shown["source"] = "file".into();
    shown["version"] = Value::Null;
    shown
}

fn of_database(mut rule: Value, version: Option<Version>, left_out: Option<String>) -> Value {
    rule["source"] = "database".into();
    rule["version"] = version.map(|version| version.to_string()).into();
    if let Some(why) = left_out {
        rule["left_out"] = why.into();
    }
    rule
}

fn of_stored(rulebook: &Rulebook, stored: &Stored) -> Value {
    let rule = match rulebook::read(&stored.text) {
        Ok(rule) => written(&rule),
        Err(_) => raw(&stored.text),
    };
    of_database(rule, Some(stored.version), rulebook.left_out(&stored.item))
}

fn raw(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

fn located(mut answer: Answer, id: &str) -> Answer {
    let location = HeaderValue::from_str(&format!("/v1/rules/{id}")).expect("an id fits a header");
    answer.headers_mut().insert(LOCATION, location);
    answer
}
