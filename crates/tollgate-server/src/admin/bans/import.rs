//! Imports bans: all of them, or none if a line is invalid.

use std::collections::HashMap;
use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::Time;
use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::document::{self, MapReader, Node, Problems, TextPosition};
use tollgate::internal::identity::Key;
use tollgate::internal::time::{calendar, parse_duration};
use tollgate_stores::rules::{Edit, Precondition};

use crate::admin::bans::{MAX_REASON_BYTES, refuse_file_ban, until};
use crate::admin::edit::db_problem;
use crate::admin::guarded_work::run_guarded;
use crate::admin::keys::read_key;
use crate::admin::request::{self, AdminRequest};
use crate::admin::rules::{IMPORT_BODY_TIMEOUT, MAX_IMPORT_BYTES, busy, counted};
use crate::connection::FullResponse;
use crate::gate::Gate;
use crate::response::{self, ProblemDetails};

/// `{"bans":[{"key","for"|"until","reason"}]}`, a YAML list, or lines `KEY [DURATION|TIMESTAMP] [REASON]`.
pub async fn import(mut call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [dry_run] = call.parameters(["dry_run"])?;
    let dry_run = request::flag("dry_run", dry_run.as_deref())?;
    let admin = Arc::clone(&call.admin);
    let guard = Arc::clone(&admin.importing).try_lock_owned().map_err(|_| busy())?;
    let body = call.read_slow_body(MAX_IMPORT_BYTES, IMPORT_BODY_TIMEOUT).await?;
    let gate = Arc::clone(&admin.gate);
    let failed = |_| ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, "the import has failed");
    let parsed = run_guarded(guard, move || parse_bans(&gate, request::text(&body)?)).await;
    let (bans, _guard) = parsed.map_err(failed)?;
    let bans = bans?;
    let total = bans.len();
    let gate = call.gate();
    let Some(follower) = gate.rules_follower.get() else {
        let answer = if dry_run { preview_on_node(gate, &bans) } else { apply_to_node(gate, bans) };
        return Ok(response::json(StatusCode::OK, &answer));
    };
    let edits: Vec<_> = bans.iter().map(|(key, ban)| Edit::ban(key, ban, Precondition::Any)).collect();
    let answer = if dry_run {
        let planned = follower.db().map_err(db_problem)?.preview(edits).await.map_err(db_problem)?;
        let mut answer = counted(planned.iter().map(|(change, _)| change), total);
        answer["dry_run"] = true.into();
        answer
    } else {
        let changes = follower.edit(&call.caller, edits, gate.now()).await.map_err(db_problem)?;
        tracing::info!(changes = changes.len(), caller = call.caller, "bans imported");
        let mut answer = counted(changes.iter(), total);
        answer["version"] = changes.last().map(|change| change.version.to_string()).into();
        answer
    };
    Ok(response::json(StatusCode::OK, &answer))
}

/// Applies bans on a node without a database.
fn apply_to_node(gate: &Gate, bans: Vec<(Key, Ban)>) -> Value {
    let answer = counted_on_node(gate, &bans);
    bans.into_iter().for_each(|(key, ban)| gate.ban(key, ban));
    answer
}

fn preview_on_node(gate: &Gate, bans: &[(Key, Ban)]) -> Value {
    let mut answer = counted_on_node(gate, bans);
    answer["dry_run"] = true.into();
    answer
}

/// The numbers of bans that a node does not have yet, and of others.
fn counted_on_node(gate: &Gate, bans: &[(Key, Ban)]) -> Value {
    let now = gate.now();
    let known = bans.iter().filter(|(key, _)| gate.engine.find_ban(key.clone(), now).is_some()).count();
    json!({ "created": bans.len() - known, "changed": known, "deleted": 0, "unchanged": 0 })
}

/// Parses all bans of a text.
pub fn parse_bans(gate: &Gate, text: &str) -> Result<Vec<(Key, Ban)>, ProblemDetails> {
    let mut reading = BanImport {
        gate,
        now: gate.now(),
        bans: Vec::new(),
        first_seen: HashMap::new(),
        problems: Problems::new(),
    };
    // No key begins like a list or a map.
    if text.trim_start().starts_with(['{', '[', '-']) || text.trim_start().starts_with("bans:") {
        reading.document(&document::read(text)?);
    } else {
        reading.lines(text);
    }
    Ok(reading.problems.or(reading.bans)?)
}

struct BanImport<'g> {
    gate: &'g Gate,
    now: Time,
    bans: Vec<(Key, Ban)>,
    /// Where each key occurred first.
    first_seen: HashMap<Key, TextPosition>,
    problems: Problems,
}

impl BanImport<'_> {
    fn document(&mut self, root: &Node<'_>) {
        let under = root.as_map().and_then(|map| map.iter().find(|entry| entry.key() == "bans"));
        let list = under.map_or(root, |entry| entry.value());
        for other in root.as_map().unwrap_or_default().iter().filter(|entry| entry.key() != "bans") {
            self.reject(other.position(), other.key(), "only 'bans' is read from this file");
        }
        let Some(nodes) = list.as_list() else {
            return self.reject(list.position(), "bans", "expected a list of bans");
        };
        for (n, node) in nodes.iter().enumerate() {
            let path = format!("bans[{n}]");
            let Some(mut map) = MapReader::new(node, path.clone(), &mut self.problems) else { continue };
            let key = map.required_text("key");
            let duration = map.optional_text("for");
            let timestamp = map.optional_text("until");
            let reason = map.optional_text("reason").unwrap_or_default();
            map.finish();
            if let Some(key) = key {
                self.add(node.position(), &path, key, duration, timestamp, reason);
            }
        }
    }

    fn lines(&mut self, text: &str) {
        for (n, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let position = TextPosition { line: u32::try_from(n + 1).unwrap_or(u32::MAX), column: 1 };
            let (key, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let rest = rest.trim_start();
            let (time, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            let (duration, timestamp, reason) = if calendar::parse_rfc3339(time).is_some() {
                (None, Some(time), behind.trim_start())
            } else if parse_duration(time).is_ok() {
                (Some(time), None, behind.trim_start())
            } else {
                (None, None, rest)
            };
            self.add(position, "", key, duration, timestamp, reason);
        }
    }

    fn add(
        &mut self,
        position: TextPosition,
        path: &str,
        key: &str,
        duration: Option<&str>,
        timestamp: Option<&str>,
        reason: &str,
    ) {
        let key = match read_key("key", key) {
            Ok(key) => self.gate.ban_key(key),
            Err(problem) => return self.reject(position, path, &problem.detail),
        };
        if reason.len() > MAX_REASON_BYTES {
            return self.reject(
                position,
                path,
                &format!("the reason is longer than {MAX_REASON_BYTES} bytes"),
            );
        }
        if let Err(problem) = refuse_file_ban(self.gate, &key, self.now) {
            return self.reject(position, path, &problem.detail);
        }
        // As in the file, a ban without an end time is permanent.
        let until = match until(duration, timestamp, self.now) {
            Ok(until) => until.unwrap_or(Time::MAX),
            Err((_, why)) => return self.reject(position, path, &why),
        };
        if let Some(first) = self.first_seen.insert(key.clone(), position) {
            return self.reject(
                position,
                path,
                &format!("{key} is given twice, first at line {}", first.line),
            );
        }
        let reason = reason.to_owned();
        self.bans.push((key, Ban { until, reason, source: BanSource::Manual, strikes: 0 }));
    }

    fn reject(&mut self, position: TextPosition, path: &str, why: &str) {
        self.problems.push(document::Problem::new(Some(position), path, why));
    }
}
