//! `TOLLGATE.CHECK name value … [COST n] [PEEK] [FULL]`: a decision by the rules.
//!
//! Names are the fields of `/v1/check`; others are attributes.

use thiserror::Error;
use tollgate::Hit;
use tollgate::internal::EngineVerdict;
use tollgate::internal::engine::DecisionMode;
use tollgate::internal::identity::address::parse_ip;
use tollgate::internal::identity::{Attribute, FieldSource, normal};

use super::frame::Args;
use super::reply::Replies;
use crate::check_bounds::{MAX_COST, MAX_PATH_BYTES, MAX_VALUE_BYTES};
use crate::response::millis;

const USAGE: &str = "use TOLLGATE.CHECK name value [name value ...] [COST n] [PEEK] [FULL]";

pub struct Check<'a> {
    pub hit: Hit<'a>,
    pub mode: DecisionMode,
    pub reply: CheckReply,
}

/// The form of the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CheckReply {
    /// An array of six elements.
    #[default]
    Short,
    /// A map of the fields of the decision API, with the ticket of a denial.
    Full,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CheckError {
    #[error("ERR wrong number of arguments: {USAGE}")]
    Arity,
    #[error("ERR {name} has no value: {USAGE}")]
    NoValue { name: String },
    #[error("ERR {name} is not UTF-8")]
    NotText { name: String },
    #[error("ERR {name} is longer than {max} bytes")]
    TooLong { name: String, max: usize },
    #[error("ERR {0}")]
    Attribute(String),
    #[error("ERR {name} is given twice")]
    Twice { name: String },
    #[error("ERR {name} is not valid: {value}")]
    Value { name: String, value: String },
}

/// The parts of a hit that are needed before it exists.
#[derive(Default)]
struct Target<'a> {
    domain: Option<&'a str>,
    method: Option<&'a str>,
    host: Option<&'a str>,
    path: Option<&'a str>,
}

impl<'a> Check<'a> {
    pub fn parse(args: &Args<'a, '_>) -> Result<Check<'a>, CheckError> {
        let mut target = Target::default();
        let mut pairs = Vec::new();
        let mut cost = None;
        let mut mode = DecisionMode::Check;
        let mut reply = CheckReply::default();
        let mut rest = args.iter().skip(1);
        while let Some(name) = rest.next() {
            let name = text("an attribute", name)?;
            if name.eq_ignore_ascii_case("peek") {
                mode = DecisionMode::Peek;
                continue;
            }
            if name.eq_ignore_ascii_case("full") {
                reply = CheckReply::Full;
                continue;
            }
            let value = rest.next().ok_or_else(|| CheckError::NoValue { name: shown(name) })?;
            let value = text(name, value)?;
            let max = if name == "path" { MAX_PATH_BYTES } else { MAX_VALUE_BYTES };
            if value.len() > max {
                return Err(CheckError::TooLong { name: shown(name), max });
            }
            let single = match name {
                "domain" => &mut target.domain,
                "method" => &mut target.method,
                "host" => &mut target.host,
                "path" => &mut target.path,
                _ if name.eq_ignore_ascii_case("cost") => &mut cost,
                _ => {
                    pairs.push((name, value));
                    continue;
                }
            };
            if single.replace(value).is_some() {
                return Err(CheckError::Twice { name: shown(name) });
            }
        }
        if args.len() == 1 {
            return Err(CheckError::Arity);
        }
        let [method, host, path] = [target.method, target.host, target.path].map(Option::unwrap_or_default);
        let mut hit = Hit::on(method, host, path).cost(parse_cost(cost)?);
        if let Some(domain) = target.domain {
            hit = hit.domain(domain);
        }
        let mut identities = Vec::new();
        for (name, value) in pairs {
            hit = with_attribute(hit, &mut identities, name, value)?;
        }
        Ok(Check { hit, mode, reply })
    }
}

fn parse_cost(cost: Option<&str>) -> Result<u64, CheckError> {
    let Some(text) = cost else { return Ok(1) };
    let cost = text.parse().ok().filter(|cost| *cost <= MAX_COST);
    cost.ok_or_else(|| CheckError::Value { name: "COST".to_owned(), value: shown(text) })
}

/// Adds a named value. A field may have several; of the identities, `known` are those that the hit has.
fn with_attribute<'a>(
    hit: Hit<'a>,
    known: &mut Vec<Attribute>,
    name: &'a str,
    value: &'a str,
) -> Result<Hit<'a>, CheckError> {
    let bad = || CheckError::Value { name: shown(name), value: shown(value) };
    let attribute = match Attribute::parse(name) {
        Ok(attribute) => attribute,
        Err(_) if is_attribute_name(name) => return Ok(hit.field(FieldSource::Attr, name, value)),
        Err(message) => return Err(CheckError::Attribute(message)),
    };
    if !matches!(attribute, Attribute::Field(..)) {
        if known.contains(&attribute) {
            return Err(CheckError::Twice { name: shown(name) });
        }
        known.push(attribute.clone());
    }
    Ok(match attribute {
        Attribute::Ip => hit.ip(parse_ip(value).ok_or_else(bad)?),
        Attribute::Mac => hit.mac(normal::mac(value).ok_or_else(bad)?.into_owned()),
        Attribute::User => hit.user(value),
        Attribute::Email => hit.email(value),
        Attribute::ApiKey => hit.api_key(value),
        Attribute::Field(FieldSource::Jwt, _) => {
            return Err(CheckError::Attribute(
                "a claim is only read from a verified token: pass header:authorization".to_owned(),
            ));
        }
        Attribute::Field(source, field) => hit.field(source, field.to_string(), value),
        Attribute::Method | Attribute::Host | Attribute::Path => return Err(bad()),
    })
}

/// Whether this is an attribute of the caller's own. A colon is behind the source of a field, which may be misspelt.
fn is_attribute_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(':') && name.len() <= MAX_VALUE_BYTES
}

fn text<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a str, CheckError> {
    std::str::from_utf8(bytes).map_err(|_| CheckError::NotText { name: shown(name) })
}

/// The beginning of a text, for an error.
fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Writes a verdict in the form that was asked for.
pub fn write_verdict(
    replies: &mut Replies,
    verdict: &EngineVerdict,
    form: CheckReply,
    ticket: impl FnOnce() -> Option<String>,
) {
    replies.limited += u64::from(!verdict.allowed);
    match form {
        CheckReply::Short => write_short(replies, verdict),
        CheckReply::Full => write_full(replies, verdict, ticket()),
    }
}

/// `[limited, rule, limit, remaining, retry_after_ms, reset_after_ms]`. The wait is -1 if the request is allowed, or if
/// no wait would help.
fn write_short(replies: &mut Replies, verdict: &EngineVerdict) {
    let reported = verdict.reported();
    replies.array(6);
    replies.integer((!verdict.allowed).into());
    optional_text(replies, reported.map(|limit| limit.rule.id.to_string()));
    optional_text(replies, reported.map(|limit| limit.limit.to_string()));
    optional_number(replies, reported.map(|limit| limit.remaining()));
    match verdict.retry_after.filter(|_| !verdict.allowed) {
        Some(wait) => optional_number(replies, Some(millis(wait))),
        None => replies.integer(-1),
    }
    optional_number(replies, reported.map(|limit| millis(limit.reset_after())));
}

/// A map of the verdict's fields, named as in the decision API.
fn write_full(replies: &mut Replies, verdict: &EngineVerdict, ticket: Option<String>) {
    let reported = verdict.reported();
    replies.map(10);
    replies.bulk(b"allowed");
    replies.boolean(verdict.allowed);
    replies.bulk(b"reason");
    replies.bulk(verdict.reason.name().as_bytes());
    replies.bulk(b"rule");
    optional_text(replies, reported.map(|limit| limit.rule.id.to_string()));
    replies.bulk(b"limit");
    optional_text(replies, reported.map(|limit| limit.limit.to_string()));
    replies.bulk(b"remaining");
    optional_number(replies, reported.map(|limit| limit.remaining()));
    replies.bulk(b"retry_after_ms");
    optional_number(replies, verdict.retry_after.map(millis));
    replies.bulk(b"reset_after_ms");
    optional_number(replies, reported.map(|limit| millis(limit.reset_after())));
    replies.bulk(b"delay_ms");
    optional_number(replies, Some(millis(verdict.delay)));
    replies.bulk(b"id");
    replies.bulk(verdict.id.to_string().as_bytes());
    replies.bulk(b"ticket");
    optional_text(replies, ticket);
}

fn optional_text(replies: &mut Replies, text: Option<String>) {
    match text {
        Some(text) => replies.bulk(text.as_bytes()),
        None => replies.null(),
    }
}

fn optional_number(replies: &mut Replies, number: Option<u64>) {
    match number {
        Some(number) => replies.integer(i64::try_from(number).unwrap_or(i64::MAX)),
        None => replies.null(),
    }
}
