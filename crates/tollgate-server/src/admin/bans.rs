//! `/v1/bans`: list, add, lift.

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::Time;
use tollgate::ban::{Ban, BanSource};
use tollgate::identity::Key;
use tollgate::time::{calendar, parse_span};

use crate::admin::keys::candidates;
use crate::answer::{self, Problem};
use crate::body::{self, Object};
use crate::connection::{Answer, read_body};
use crate::gate::Gate;

const MAX_BODY_BYTES: usize = 64 << 10;
const MAX_REASON_BYTES: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewBan {
    key: String,
    #[serde(default)]
    r#for: Option<String>,
    #[serde(default)]
    until: Option<String>,
    #[serde(default)]
    reason: String,
}

pub fn list(gate: &Gate) -> Answer {
    let bans: Vec<_> = gate.engine.bans(gate.now()).iter().map(|(key, ban)| written(key, ban)).collect();
    answer::json(StatusCode::OK, &json!({ "bans": bans }))
}

pub async fn add(gate: &Gate, request: Request<Incoming>) -> Result<Answer, Problem> {
    let body = read_body(request, MAX_BODY_BYTES).await?;
    let Object(asked): Object<NewBan> = body::parse(&body)?;
    let key = read_key("key", &asked.key)?;
    if asked.reason.len() > MAX_REASON_BYTES {
        return Err(Problem::bad_field(
            "reason",
            format!("'reason' is longer than {MAX_REASON_BYTES} bytes"),
        ));
    }
    let now = gate.now();
    let ban = Ban { until: until(&asked, now)?, reason: asked.reason, source: BanSource::Manual, strikes: 0 };
    refuse_file_ban(gate, &key, now)?;
    let answer = written(&key, &ban);
    let until = ban.until;
    gate.ban(key, ban);
    tracing::info!(until = %shown(until), "ban added by hand");
    Ok(answer::json(StatusCode::CREATED, &answer))
}

/// Lifts a ban and says what was lifted.
pub fn remove(gate: &Gate, raw_key: &str) -> Result<Answer, Problem> {
    let now = gate.now();
    let keys = candidates(raw_key)?;
    let found = keys.iter().find_map(|key| Some((key, gate.engine.find_ban(key.clone(), now)?)));
    let Some((key, ban)) = found else {
        let key = keys.first().map_or_else(|| raw_key.to_owned(), ToString::to_string);
        return Err(Problem::new(StatusCode::NOT_FOUND, format!("{key} is not banned")));
    };
    refuse_file_ban(gate, key, now)?;
    gate.engine.unban(key.clone(), now);
    tracing::info!("ban lifted by hand");
    Ok(answer::json(StatusCode::OK, &json!({ "removed": written(key, &ban) })))
}

/// A ban of the file is neither lifted here nor replaced by one that could be.
fn refuse_file_ban(gate: &Gate, key: &Key, now: Time) -> Result<(), Problem> {
    match gate.engine.find_ban(key.clone(), now) {
        Some(ban) if ban.source == BanSource::File => {
            let detail = format!("{key} is banned by the configuration file: change it there");
            Err(Problem::new(StatusCode::CONFLICT, detail))
        }
        _ => Ok(()),
    }
}

fn read_key(field: &str, text: &str) -> Result<Key, Problem> {
    Key::parse(text).map_err(|error| Problem::bad_field(field, error.to_string()))
}

fn until(asked: &NewBan, now: Time) -> Result<Time, Problem> {
    match (&asked.r#for, &asked.until) {
        (Some(_), Some(_)) => Err(Problem::bad_field("until", "give 'for' or 'until', not both")),
        (None, None) => Err(Problem::bad_field("for", "how long is missing: 'for' such as 1h, or 'until'")),
        (Some(span), None) => {
            let span = parse_span(span).map_err(|message| Problem::bad_field("for", message))?;
            if span.is_zero() {
                Err(Problem::bad_field("for", "'for' is no time at all"))
            } else {
                Ok(now + span)
            }
        }
        (None, Some(text)) => match calendar::parse_rfc3339(text) {
            None => Err(Problem::bad_field("until", "expected an instant such as 2027-01-01T00:00:00Z")),
            Some(until) if until <= now => Err(Problem::bad_field("until", "'until' is in the past")),
            Some(until) => Ok(until),
        },
    }
}

fn written(key: &Key, ban: &Ban) -> Value {
    json!({
        "key": key.to_string(),
        "until": (ban.until != Time::MAX).then(|| calendar::rfc3339(ban.until)),
        "reason": ban.reason,
        "source": ban.source.name(),
        "strikes": ban.strikes,
    })
}

fn shown(until: Time) -> String {
    if until == Time::MAX { "further notice".to_owned() } else { calendar::rfc3339(until) }
}
