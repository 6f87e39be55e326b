//! What of the server's file a layer does not support. It is rejected by name: a rule does not limit if its key is never
//! present, and a ban by such a key bans nothing.

use tollgate::FieldSource;
use tollgate::internal::PolicySnapshot;
use tollgate::internal::identity::{Attribute, Key};
use tollgate::internal::rule::{MissingKey, OnExceed, Rule};

use crate::builder::LayerError;
use crate::limiter::Identify;

/// Where the attributes of a request come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestSources {
    /// The head of the request.
    Head,
    /// The head, and whatever `identify` adds.
    HeadAndIdentify,
}

impl RequestSources {
    pub(crate) fn of(identify: Option<&Identify>) -> RequestSources {
        match identify {
            Some(_) => RequestSources::HeadAndIdentify,
            None => RequestSources::Head,
        }
    }
}

/// Rejects rules and lists that cannot work in a layer.
pub(crate) fn check_policy(policy: &PolicySnapshot, sources: RequestSources) -> Result<(), LayerError> {
    for rule in policy.rules().iter() {
        if let Some(reason) = in_rule(policy, rule, sources) {
            return Err(LayerError::Unsupported { rule: rule.id.to_string(), reason });
        }
    }
    let allowed = policy.allow_list().map(|(key, _)| ("allow", key));
    let banned = policy.file_bans().map(|(key, _)| ("bans", key));
    for (list, key) in allowed.chain(banned) {
        if let Some(reason) = in_key(policy, key, sources) {
            return Err(LayerError::UnsupportedKey { list, key: key.to_string(), reason });
        }
    }
    Ok(())
}

/// Why a key can never be that of a request.
pub(crate) fn in_key(policy: &PolicySnapshot, key: &Key, sources: RequestSources) -> Option<String> {
    key.parts().iter().find_map(|(attribute, _)| never_present(policy, attribute, sources))
}

fn in_rule(policy: &PolicySnapshot, rule: &Rule, sources: RequestSources) -> Option<String> {
    if rule.on_exceed == OnExceed::Queue {
        return Some("on_exceed: queue needs the server; use hold or reject".to_owned());
    }
    // A rule that denies requests without its key, or counts them together, does limit, unless it is for one user.
    let is_limited_anyway = |attribute: &Attribute| {
        rule.missing_key != MissingKey::Skip
            && rule.key.contains(attribute)
            && rule.uid.is_none()
            && !rule.ban.iter().any(|ban| ban.key.contains(attribute))
            && body_field(policy, attribute).is_none()
    };
    let mut attributes = rule.all_attributes().filter(|attribute| !is_limited_anyway(attribute));
    attributes.find_map(|attribute| never_present(policy, attribute, sources))
}

/// Why no request has an attribute; `None` if one may have it.
fn never_present(policy: &PolicySnapshot, attribute: &Attribute, sources: RequestSources) -> Option<String> {
    if let Some(field) = body_field(policy, attribute) {
        let advice = "in the body, which a layer does not read; add an attribute by `identify`";
        return Some(match field == attribute {
            true => format!("{attribute} is {advice}"),
            false => format!("{attribute} is {field}, {advice}, and remove it from `identity`"),
        });
    }
    if sources == RequestSources::HeadAndIdentify {
        return None;
    }
    let source = source_of(policy, attribute).unwrap_or(attribute);
    match source {
        Attribute::Ip | Attribute::Path | Attribute::Method | Attribute::Host => None,
        Attribute::Field(FieldSource::Header | FieldSource::Cookie | FieldSource::Query, _) => None,
        Attribute::Field(FieldSource::Jwt, _) if source == attribute => Some(format!(
            "{attribute} is never present: a layer verifies no tokens; add the claim by `identify`"
        )),
        Attribute::Field(FieldSource::Jwt, _) => Some(format!(
            "{attribute} is {source}, and a layer verifies no tokens: add the claim by `identify`"
        )),
        Attribute::Field(..) => Some(format!("{attribute} is never present: add it by `identify`")),
        Attribute::User | Attribute::Email | Attribute::Mac | Attribute::ApiKey => Some(format!(
            "{attribute} is never present: add it by `identify`, or name a source, such as \
             identity: {{ {attribute}: 'header:x-{}' }}",
            attribute.to_string().replace('_', "-")
        )),
    }
}

/// The field of the body that an attribute is, or comes from.
fn body_field<'a>(policy: &'a PolicySnapshot, attribute: &'a Attribute) -> Option<&'a Attribute> {
    let is_in_body = |attribute: &&Attribute| {
        matches!(attribute, Attribute::Field(FieldSource::Json | FieldSource::Form, _))
    };
    [Some(attribute), source_of(policy, attribute)].into_iter().flatten().find(is_in_body)
}

/// The configured source of an identity.
fn source_of<'p>(policy: &'p PolicySnapshot, attribute: &Attribute) -> Option<&'p Attribute> {
    policy.settings().identity.iter().find(|(identity, _)| identity == attribute).map(|(_, source)| source)
}
