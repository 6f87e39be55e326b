//! `/v1/series`: decisions over time, of all requests or of one rule, with the changes of the rules in that time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::admin::request::{self, AdminRequest};
use crate::admin::scope::{self, Scope};
use crate::connection::FullResponse;
use crate::fleet::{NodeAnswer, NodesAnswered};
use crate::insight::{HOUR, HistoryFile, InsightData, MINUTE, OTHER, Point, RuleHistory, SeriesName, TOTAL};
use crate::response::{self, ProblemDetails};
use tollgate::Time;

/// Changes that are shown.
const MAX_CHANGES: usize = 100;
/// How long a database may take to list changes: without them a chart is still of use.
const CHANGES_TIMEOUT: Duration = Duration::from_secs(1);
/// Seconds by which the clocks of nodes may differ in a series of all nodes.
const MAX_BEHIND_SECS: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum SeriesStep {
    Second,
    Minute,
    Hour,
}

/// A period of time in seconds since 1970, both ends included.
#[derive(Clone, Copy)]
struct TimeRange {
    from: u64,
    to: u64,
}

#[derive(Serialize, Deserialize)]
struct SeriesResponse {
    /// In seconds.
    step: u64,
    rule: Option<String>,
    points: Vec<SeriesPoint>,
    changes: Value,
    nodes: NodesAnswered,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct SeriesPoint {
    at: u64,
    #[serde(flatten)]
    point: Point,
}

impl NodeAnswer for SeriesResponse {
    fn node(&self) -> Option<&str> {
        self.nodes.answered.first().map(String::as_str)
    }
}

/// `?step=second|minute|hour&rule=ID&from=&to=&scope=node|fleet`
pub async fn show(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [step, rule, from, to, scope] = call.parameters(["step", "rule", "from", "to", "scope"])?;
    let steps = [("second", SeriesStep::Second), ("minute", SeriesStep::Minute), ("hour", SeriesStep::Hour)];
    let step = request::choice("step", step.as_deref(), steps)?;
    let range = TimeRange { from: seconds("from", from, 0)?, to: seconds("to", to, u64::MAX)? };
    let scope = Scope::parse(scope.as_deref())?;
    let name = match rule.as_deref() {
        None => SeriesName::Total,
        Some("other") => SeriesName::Other,
        Some(id) => SeriesName::Rule(id),
    };
    if let SeriesName::Rule(id) = name
        && call.gate().engine.policy().rule(id).is_none()
        && call.insight()?.data().series(name).is_none()
    {
        return Err(ProblemDetails::new(StatusCode::NOT_FOUND, format!("no rule '{id}'")));
    }
    let mut points = points(&call.insight()?.data(), name, step, range);
    let step_secs = match step {
        SeriesStep::Second => 1,
        SeriesStep::Minute => MINUTE,
        SeriesStep::Hour => HOUR,
    };
    if step != SeriesStep::Second {
        add_saved(&call, name, step_secs, range, &mut points).await?;
    }
    let mut nodes = NodesAnswered::own(call.gate());
    if scope == Scope::Fleet {
        nodes = add_others(&call, step, &mut points).await?;
    }
    let first = points.first_key_value().map_or(u64::MAX, |(at, _)| *at).min(range.to);
    let changes = changes(&call, TimeRange { from: first.max(range.from), to: range.to }).await;
    let points = points.into_iter().map(|(at, point)| SeriesPoint { at, point }).collect();
    Ok(response::json(StatusCode::OK, &SeriesResponse { step: step_secs, rule, points, changes, nodes }))
}

/// Adds the points of all other nodes. Their seconds end at different times: the latest ones, which not all nodes have
/// yet, are left out.
async fn add_others(
    call: &AdminRequest,
    step: SeriesStep,
    points: &mut BTreeMap<u64, Point>,
) -> Result<NodesAnswered, ProblemDetails> {
    let complete_before = call.insight()?.data().second().saturating_sub(MAX_BEHIND_SECS);
    let nodes = scope::ask_others(call, &[], "", |answer: SeriesResponse| {
        for SeriesPoint { at, point } in answer.points {
            points.entry(at).or_default().add(&point);
        }
    })
    .await?;
    if step == SeriesStep::Second {
        points.retain(|at, _| *at < complete_before);
    }
    Ok(nodes)
}

/// The minutes of a series that are read from the file.
struct SavedRange {
    /// The first minute that is in memory only.
    before: u64,
    /// The minute in which the node was started, and what it has saved of it since: that part is in memory, too.
    start: Option<(u64, Point)>,
}

impl SavedRange {
    fn of(data: &InsightData, name: SeriesName<'_>) -> SavedRange {
        let Some(series) = data.series(name) else { return SavedRange { before: u64::MAX, start: None } };
        let oldest = series.minutes.oldest();
        if oldest > data.first_minute() {
            return SavedRange { before: oldest, start: None };
        }
        let is_saved = data.second() / MINUTE > oldest;
        let saved = series.minutes.range(oldest, oldest).next().filter(|_| is_saved);
        SavedRange {
            before: oldest + 1,
            start: Some((oldest, saved.map(|(_, point)| point).unwrap_or_default())),
        }
    }
}

/// Adds the minutes of the file: those before the start, and those that are no longer in memory.
async fn add_saved(
    call: &AdminRequest,
    name: SeriesName<'_>,
    step_secs: u64,
    range: TimeRange,
    points: &mut BTreeMap<u64, Point>,
) -> Result<(), ProblemDetails> {
    let SavedRange { before, start } = SavedRange::of(&call.insight()?.data(), name);
    let to = range.to.min(before.saturating_mul(MINUTE).saturating_sub(1));
    let from = range.from / step_secs * step_secs;
    let series = match name {
        SeriesName::Total => TOTAL.to_owned(),
        SeriesName::Other => OTHER.to_owned(),
        SeriesName::Rule(id) => id.to_owned(),
    };
    let admin = Arc::clone(&call.admin);
    // An hour that has minutes in memory is added up of minutes.
    let first_in_memory = start.map_or(before, |(minute, _)| minute).saturating_mul(MINUTE);
    let hours_before =
        if step_secs == HOUR { first_in_memory.min(to.saturating_add(1)) / HOUR * HOUR } else { 0 };
    let read = move || {
        let history = admin.gate.insight.get()?.history.get()?;
        Some(read_saved(history, &series, TimeRange { from, to }, hours_before))
    };
    match tokio::task::spawn_blocking(read).await {
        Ok(Some(Ok(saved))) => {
            for (at, mut point) in saved {
                if let Some((_, in_memory)) = start.filter(|(minute, _)| *minute == at / MINUTE) {
                    point.subtract(&in_memory);
                }
                points.entry(at / step_secs * step_secs).or_default().add(&point);
            }
        }
        Ok(Some(Err(error))) => tracing::warn!(%error, "counts of past minutes cannot be read"),
        Ok(None) | Err(_) => {}
    }
    Ok(())
}

/// Whole hours before `hours_before`, and minutes from there on.
fn read_saved(
    history: &HistoryFile,
    series: &str,
    range: TimeRange,
    hours_before: u64,
) -> rusqlite::Result<Vec<(u64, Point)>> {
    let TimeRange { from, to } = range;
    if from >= hours_before {
        return history.read(series, from, to);
    }
    let mut points = history.read_hours(series, from, hours_before - 1)?;
    points.extend(history.read(series, hours_before, to)?);
    Ok(points)
}

fn seconds(name: &str, value: Option<String>, default: u64) -> Result<u64, ProblemDetails> {
    let Some(value) = value else { return Ok(default) };
    let number = value.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    let wrong = || ProblemDetails::bad_field(name, format!("'{name}' must be a time in seconds since 1970"));
    number.map(|number| number as u64).ok_or_else(wrong)
}

fn points(
    data: &InsightData,
    name: SeriesName<'_>,
    step: SeriesStep,
    range: TimeRange,
) -> BTreeMap<u64, Point> {
    let Some(series) = data.series(name) else { return BTreeMap::new() };
    match step {
        SeriesStep::Second => {
            let before = data.second().saturating_sub(1);
            series.seconds.range(range.from, range.to.min(before)).collect()
        }
        SeriesStep::Minute => {
            minutes(series, range).map(|(minute, point)| (minute * MINUTE, point)).collect()
        }
        SeriesStep::Hour => {
            let mut hours: BTreeMap<u64, Point> = BTreeMap::new();
            let from = range.from / HOUR * HOUR;
            for (minute, point) in minutes(series, TimeRange { from, to: range.to }) {
                hours.entry(minute * MINUTE / HOUR * HOUR).or_default().add(&point);
            }
            hours
        }
    }
}

fn minutes(series: &RuleHistory, range: TimeRange) -> impl Iterator<Item = (u64, Point)> {
    series.minutes.range(range.from / MINUTE, range.to / MINUTE)
}

/// The latest changes within a time, oldest first; none if the database does not answer. A set of changes, such as an
/// import, is one, and automatic bans are none: an attack bans more keys than are listed.
async fn changes(call: &AdminRequest, range: TimeRange) -> Value {
    let none = || Value::Array(Vec::new());
    let Some(Ok(db)) = call.gate().rules_follower.get().map(|follower| follower.db()) else { return none() };
    // The last second is included whole.
    let to = Time::from_nanos(range.to.saturating_add(1).saturating_mul(1_000_000_000).saturating_sub(1));
    let from = Time::from_nanos(range.from.saturating_mul(1_000_000_000));
    let calls = db.calls(from, to, MAX_CHANGES);
    let Ok(Ok(log)) = timeout(CHANGES_TIMEOUT, calls).await else { return none() };
    let change = log.iter().rev().map(|logged| {
        let item = &logged.change.item;
        let did = if logged.change.text.is_some() { "set" } else { "removed" };
        let action = match logged.set {
            Some(set) => format!("{} changes by {}", set.changes(), logged.author),
            None => format!("{} {} {did} by {}", item.kind.name(), item.name, logged.author),
        };
        json!({ "at": logged.at.secs(), "version": logged.set_version().to_string(), "action": action })
    });
    change.collect()
}
