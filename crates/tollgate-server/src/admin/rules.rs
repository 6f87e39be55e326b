//! `/v1/rules`: rules of the file, which are read-only, and of the database.

use hyper::StatusCode;
use hyper::header::{HeaderValue, LOCATION};
use serde_json::{Value, json};
use tollgate::internal::document;
use tollgate::internal::policy::PolicyChange;
use tollgate::internal::rule::Rule;
use tollgate_stores::rules::{Edit, ItemId, Precondition, RuleText, StoredItem, Version};

use crate::admin::edit::{EditOptions, EditOutcome, db_problem, with_etag};
use crate::admin::request::{self, AdminRequest};
use crate::connection::FullResponse;
use crate::gate::Gate;
use crate::response::{self, ProblemDetails};
use crate::rules_follower::{self, RulesFollower};

mod export;
mod import;
mod list;
mod rule_json;

pub use export::export;
pub use import::import;
pub(super) use import::{IMPORT_BODY_TIMEOUT, MAX_IMPORT_BYTES, busy, counted};
pub use list::list;
use rule_json::rule_json;

const MAX_RULE_BYTES: usize = 1 << 20;
/// Fields that responses add to a rule. They are ignored in requests, so that a response can be sent back unchanged.
const RESPONSE_ONLY_FIELDS: [&str; 4] = ["source", "version", "left_out", "ramp_percent"];

/// `?as=written` shows a rule as its author wrote it.
pub async fn show(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [shown_as] = call.parameters(["as"])?;
    let as_written = request::choice("as", shown_as.as_deref(), [("read", false), ("written", true)])?;
    let gate = call.gate();
    let id = call.path_parameter.as_str();
    let none = || ProblemDetails::new(StatusCode::NOT_FOUND, format!("no rule '{id}'"));
    if let Some(rule) = gate.engine.policy().rule(id).filter(|rule| !rule.is_added()) {
        let shown = if as_written { json!({ "rule": rule_json(rule) }) } else { file_rule_json(rule) };
        return Ok(response::json(StatusCode::OK, &shown));
    }
    let Some(follower) = gate.rules_follower.get() else { return Err(none()) };
    let stored = match follower.get(ItemId::rule(id)).await {
        Ok(stored) => stored.ok_or_else(none)?,
        // A rule in force can be shown without the database.
        Err(error) => match gate.engine.policy().rule(id) {
            Some(rule) if !as_written => {
                return Ok(response::json(StatusCode::OK, &database_rule_json(rule_json(rule), None, None)));
            }
            _ => return Err(db_problem(error)),
        },
    };
    let shown = match as_written {
        true => json!({ "rule": stored_text_json(&stored.text), "version": stored.version.to_string() }),
        false => stored_rule_json(follower, &stored),
    };
    Ok(with_etag(response::json(StatusCode::OK, &shown), Some(stored.version)))
}

pub async fn create(mut call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let terms = EditOptions::of(&call)?;
    let rule = SubmittedRule::of(&mut call, None).await?;
    let id = rule.text.id().to_owned();
    let edit = Edit::rule(rule.text, Precondition::Absent);
    let changes = match call.apply_edits(&terms, vec![edit]).await? {
        EditOutcome::DryRun(answer) => return Ok(answer),
        EditOutcome::Applied(changes) => changes,
    };
    tracing::info!(rule = id, caller = call.caller, "rule created");
    let version = changes.last().map(|change| change.version);
    let answer =
        response::json(StatusCode::CREATED, &database_rule_json(rule_json(&rule.rule), version, None));
    Ok(with_location(with_etag(answer, version), &id))
}

pub async fn replace(mut call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let terms = EditOptions::of(&call)?;
    let id = call.path_parameter.clone();
    let rule = SubmittedRule::of(&mut call, Some(&id)).await?;
    let item = ItemId::rule(&id);
    let expected = terms.expected(call.rules_follower()?, &item).await?;
    let changes = match call.apply_edits(&terms, vec![Edit::rule(rule.text, expected)]).await? {
        EditOutcome::DryRun(answer) => return Ok(answer),
        EditOutcome::Applied(changes) => changes,
    };
    let (status, version) = match changes.last() {
        Some(change) if change.previous.is_none() => (StatusCode::CREATED, Some(change.version)),
        Some(change) => (StatusCode::OK, Some(change.version)),
        None => {
            let unchanged = call.rules_follower()?.get(item).await.map_err(db_problem)?;
            (StatusCode::OK, unchanged.map(|stored| stored.version))
        }
    };
    if !changes.is_empty() {
        tracing::info!(rule = id, caller = call.caller, "rule changed");
    }
    let answer =
        with_etag(response::json(status, &database_rule_json(rule_json(&rule.rule), version, None)), version);
    Ok(if status == StatusCode::CREATED { with_location(answer, &id) } else { answer })
}

/// Deletes a rule, and returns it.
pub async fn delete(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let terms = EditOptions::of(&call)?;
    let gate = call.gate();
    let item = ItemId::rule(&call.path_parameter);
    let was = match call.rules_follower() {
        Ok(follower) => follower.get(item.clone()).await.map_err(db_problem)?,
        Err(_) => None,
    };
    // A rule of the database that has the id of a rule in the file is not in force; it can be deleted.
    if was.is_none() {
        refuse_file_rule(gate, &call.path_parameter)?;
    }
    let is_in_file = is_file_rule(gate, &call.path_parameter);
    let follower = call.rules_follower()?;
    let expected = terms.expected(follower, &item).await?;
    match call.apply_edits(&terms, vec![Edit::delete(item, expected)]).await? {
        EditOutcome::DryRun(answer) => Ok(answer),
        EditOutcome::Applied(_) => {
            tracing::info!(rule = call.path_parameter, caller = call.caller, "rule deleted");
            let removed = was.map(|was| stored_rule_json(follower, &was));
            let mut answer = json!({ "removed": removed });
            if is_in_file {
                answer["still_in_force"] = "file".into();
            }
            Ok(response::json(StatusCode::OK, &answer))
        }
    }
}

/// A submitted rule, checked against the rules in force.
struct SubmittedRule {
    rule: Rule,
    text: RuleText,
}

impl SubmittedRule {
    /// Reads the body; an id in the path is the rule's.
    async fn of(call: &mut AdminRequest, id: Option<&str>) -> Result<SubmittedRule, ProblemDetails> {
        call.rules_follower()?;
        if let Some(id) = id {
            refuse_file_rule(call.gate(), id)?;
        }
        let body = call.read_body(MAX_RULE_BYTES).await?;
        let mut node = document::read(request::text(&body)?)?.without(&RESPONSE_ONLY_FIELDS);
        if let (Some(id), Some(map)) = (id, node.as_map())
            && !map.iter().any(|entry| entry.key() == "id")
        {
            node = node.with("id", id);
        }
        let text = RuleText::from_node(&node, "")?;
        if id.is_some_and(|id| id != text.id()) {
            return Err(ProblemDetails::bad_field("id", "the rule's id differs from the id in the path"));
        }
        refuse_file_rule(call.gate(), text.id())?;
        let rule = rules_follower::parse_rule(text.as_str())?;
        reject_unsupported(call, &rule)?;
        Ok(SubmittedRule { rule, text })
    }
}

/// A rule of the file can be changed in the file only.
pub(super) fn refuse_file_rule(gate: &Gate, id: &str) -> Result<(), ProblemDetails> {
    if !is_file_rule(gate, id) {
        return Ok(());
    }
    let detail = format!("rule {id} is in the configuration file: change it there");
    Err(ProblemDetails::new(StatusCode::CONFLICT, detail))
}

fn is_file_rule(gate: &Gate, id: &str) -> bool {
    gate.engine.policy().rule(id).is_some_and(|rule| !rule.is_added())
}

/// Rejects a rule that cannot be in force beside the others, or with this node's store.
pub(super) fn reject_unsupported(call: &AdminRequest, rule: &Rule) -> Result<(), ProblemDetails> {
    let policy = call.gate().engine.policy();
    let now = call.gate().now();
    if let Some(why) = call.rules_follower()?.unsupported_reason(&policy, rule) {
        return Err(ProblemDetails::bad_field("rule", why));
    }
    let put = policy.draft().apply(PolicyChange::Put(rule.clone()), now);
    put.map_err(|error| ProblemDetails::bad_field("rule", error.to_string()))
}

fn file_rule_json(rule: &Rule) -> Value {
    let mut shown = rule_json(rule);
    shown["source"] = "file".into();
    shown["version"] = Value::Null;
    shown
}

fn database_rule_json(mut rule: Value, version: Option<Version>, left_out: Option<String>) -> Value {
    rule["source"] = "database".into();
    rule["version"] = version.map(|version| version.to_string()).into();
    if let Some(why) = left_out {
        rule["left_out"] = why.into();
    }
    rule
}

fn stored_rule_json(follower: &RulesFollower, stored: &StoredItem) -> Value {
    let rule = match rules_follower::parse_rule(&stored.text) {
        Ok(rule) => rule_json(&rule),
        Err(_) => stored_text_json(&stored.text),
    };
    let shown = database_rule_json(rule, Some(stored.version), follower.left_out_reason(&stored.item));
    with_ramp(shown, follower, &stored.item.name)
}

/// Adds the share of keys for which the last apply of a rule is enforced so far.
fn with_ramp(mut rule: Value, follower: &RulesFollower, id: &str) -> Value {
    if let Some(ramp) = follower.ramp().filter(|ramp| ramp.rule(id).is_some()) {
        rule["ramp_percent"] = ramp.setting.percent.into();
    }
    rule
}

fn stored_text_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

fn with_location(mut answer: FullResponse, id: &str) -> FullResponse {
    let location = HeaderValue::from_str(&format!("/v1/rules/{id}")).expect("an id fits a header");
    answer.headers_mut().insert(LOCATION, location);
    answer
}
