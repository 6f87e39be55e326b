//! Lists rules by pages: the file's in their order, then the database's by id.

use std::collections::BinaryHeap;

use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::internal::PolicySnapshot;
use tollgate::internal::rule::RuleId;
use tollgate_stores::rules::{ItemKind, PageQuery, StoredItem, Version};

use crate::admin::cursor::{self, Cursor};
use crate::admin::edit::db_problem;
use crate::admin::request::{self, AdminRequest};
use crate::admin::rules::{database_rule_json, file_rule_json, rule_json, stored_rule_json, with_ramp};
use crate::connection::FullResponse;
use crate::gate::Gate;
use crate::response::{self, ProblemDetails};
use crate::rules_follower::RulesFollower;

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListSource {
    All,
    File,
    Database,
}

/// `?limit=100&after=CURSOR&source=file|database&prefix=ID`
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [limit, after, source, prefix] = call.parameters(["limit", "after", "source", "prefix"])?;
    let limit = request::limit(limit.as_deref())?;
    let sources = [("all", ListSource::All), ("file", ListSource::File), ("database", ListSource::Database)];
    let source = request::choice("source", source.as_deref(), sources)?;
    let is_id = |name: &str| RuleId::new(name).is_some();
    let prefix = prefix.unwrap_or_default();
    let cursor = Cursor::parse(after.as_deref(), is_id)?;
    let gate = call.gate();
    let policy = gate.engine.policy();
    // One more than a page, to see whether another page follows.
    let mut found = Vec::with_capacity(limit + 1);
    if source != ListSource::Database && cursor.starts_in_file() {
        let listed = cursor.after(policy.listed(), |rule| rule.id.to_string())?;
        let listed = listed.filter(|rule| rule.id.as_str().starts_with(&prefix)).take(limit + 1);
        found.extend(listed.map(|rule| (Cursor::file(rule.id.as_str()), file_rule_json(rule))));
    }
    if source != ListSource::File && found.len() <= limit {
        let after = cursor.database_name();
        let limit = limit + 1 - found.len();
        let page = PageQuery { kind: ItemKind::Rule, prefix, after, limit };
        let stored = database_rules(gate, &policy, page).await?;
        found.extend(stored.into_iter().map(|(id, rule)| (Cursor::database(&id), rule)));
    }
    let (rules, next) = cursor::split_page(found, limit);
    let generation = policy.generation();
    let total = policy.rules().len();
    let body = json!({ "generation": generation, "total": total, "rules": rules, "next": next });
    Ok(response::json(StatusCode::OK, &body))
}

/// Rules of the database; while it cannot be read, those in force.
async fn database_rules(
    gate: &Gate,
    policy: &PolicySnapshot,
    page: PageQuery,
) -> Result<Vec<(String, Value)>, ProblemDetails> {
    let Some(follower) = gate.rules_follower.get() else { return Ok(Vec::new()) };
    let found = match follower.db() {
        Ok(db) => db.page(page.clone()).await,
        Err(error) => Err(error),
    };
    match found {
        Ok(found) => {
            let seen = follower.status().version;
            let shown = found.iter().map(|stored| listed_rule_json(follower, policy, stored, seen));
            Ok(found.iter().map(|stored| stored.item.name.to_string()).zip(shown).collect())
        }
        Err(error) if error.is_transient() => Ok(in_force(policy, &page)),
        Err(error) => Err(db_problem(error)),
    }
}

/// A rule as it is in force here, with its version if known.
fn listed_rule_json(
    follower: &RulesFollower,
    policy: &PolicySnapshot,
    stored: &StoredItem,
    seen: Option<Version>,
) -> Value {
    if let Some(rule) = policy.rule(&stored.item.name).filter(|rule| rule.is_added()) {
        let version = Some(stored.version).filter(|version| seen.is_some_and(|seen| seen >= *version));
        let shown = database_rule_json(rule_json(rule), version, None);
        return with_ramp(shown, follower, &stored.item.name);
    }
    let mut shown = stored_rule_json(follower, stored);
    if shown["left_out"].is_null() {
        shown["left_out"] = "it is not in force here yet".into();
    }
    shown
}

/// The first rules of a page by id. Rules in force are not ordered by id, so all ids are scanned.
fn in_force(policy: &PolicySnapshot, page: &PageQuery) -> Vec<(String, Value)> {
    let mut first: BinaryHeap<&str> = BinaryHeap::with_capacity(page.limit + 1);
    let ids = policy.rules().iter().filter(|rule| rule.is_added()).map(|rule| rule.id.as_str());
    for id in ids.filter(|id| *id > page.after.as_str() && id.starts_with(&page.prefix)) {
        first.push(id);
        if first.len() > page.limit {
            first.pop();
        }
    }
    let rules = first.into_sorted_vec().into_iter().filter_map(|id| policy.rule(id));
    rules.map(|rule| (rule.id.to_string(), database_rule_json(rule_json(rule), None, None))).collect()
}
