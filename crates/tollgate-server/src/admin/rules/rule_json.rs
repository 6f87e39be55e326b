//! Serializes a rule in the schema of the configuration file.

use serde_json::{Map, Value, json};
use tollgate::internal::identity::Attribute;
use tollgate::internal::limit::{Refill, Release, Shape, WindowStart};
use tollgate::internal::rule::{
    AmbiguousKey, CountWhen, DenyOptions, Limits, MissingKey, OnExceed, OnStoreError, Rule, RuleLimit,
    Tracking,
};
use tollgate::internal::time::format_duration;

/// A rule in the schema of the file; default values are omitted.
pub fn rule_json(rule: &Rule) -> Value {
    let mut map = Map::new();
    let mut put = |name: &str, value: Value| {
        if !value.is_null() {
            map.insert(name.to_owned(), value);
        }
    };
    put("id", rule.id.as_str().into());
    put("uid", rule.uid.as_deref().into());
    let pattern = rule.match_text();
    let name = if rule.uid.is_some() { "url" } else { "match" };
    put(name, if pattern.is_empty() { Value::Null } else { pattern.into() });
    put("host", rule.pattern.host.as_ref().map(ToString::to_string).into());
    put("key", if rule.key.is_empty() { Value::Null } else { attributes(&rule.key) });
    put("missing_key", missing_key(rule.missing_key).into());
    put("ambiguous_key", ambiguous_key(rule).into());
    match &*rule.limits {
        Limits::Same(limits) => put("limits", rates(limits)),
        Limits::By { attribute, values, default } => {
            let mut by = Map::from_iter([("attr".to_owned(), attribute.to_string().into())]);
            by.extend(values.iter().map(|(value, limits)| (value.to_string(), rates(limits))));
            by.extend(default.iter().map(|limits| ("default".to_owned(), rates(limits))));
            put("limits_by", by.into());
        }
    }
    if let Some(any) = rule.limits.all().next() {
        shape(any.limit.shape(), &mut put);
    }
    put("cost", if rule.cost == 1 { Value::Null } else { rule.cost.into() });
    put("mode", rule.mode.name().into());
    let percent = rule.enforced.percent();
    put("enforce_percent", if percent == 100 { Value::Null } else { percent.into() });
    put("track", rule.track.map_or(Value::Null, track));
    put("on_exceed", on_exceed(rule.on_exceed).into());
    put("on_store_error", rule.on_store_error.map(on_store_error).into());
    put("count_denied", if rule.count_denied { true.into() } else { Value::Null });
    put("count_when", count_when(&rule.count_when).into());
    put("cost_from", rule.cost_from.as_deref().into());
    put(
        "ban",
        rule.ban.as_ref().map_or(Value::Null, |ban| {
            json!({
                "key": attributes(&ban.key),
                "after": ban.after,
                "within": format_duration(ban.within),
                "for": format_duration(ban.first),
                "max": format_duration(ban.max),
            })
        }),
    );
    put("deny", rule.deny.as_deref().map_or(Value::Null, deny));
    let overrides: Vec<_> = rule
        .overrides
        .list()
        .iter()
        .map(|each| {
            let values = each.values.iter().map(|(name, value)| (name.to_string(), value.clone().into()));
            Value::Object(values.chain([("limits".to_owned(), rates(&each.limits))]).collect())
        })
        .collect();
    put("overrides", if overrides.is_empty() { Value::Null } else { overrides.into() });
    map.into()
}

fn deny(options: &DenyOptions) -> Value {
    let mut map = Map::new();
    let body = options.body.as_ref();
    let members = [
        ("message", options.message.as_deref().map(ToOwned::to_owned)),
        ("body", body.map(|body| body.text.to_string())),
        ("content_type", body.map(|body| body.content_type.to_string())),
        ("retry_after_max", options.retry_after_max().map(format_duration)),
    ];
    map.extend(members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into()))));
    map.into()
}

/// `true` if both settings have their defaults.
fn track(tracking: Tracking) -> Value {
    if tracking == Tracking::default() {
        return true.into();
    }
    json!({ "times": tracking.times(), "keep": format_duration(tracking.keep()) })
}

fn attributes(key: &[Attribute]) -> Value {
    key.iter().map(ToString::to_string).collect()
}

fn rates(limits: &[RuleLimit]) -> Value {
    limits.iter().map(|each| each.limit.to_string()).collect()
}

fn shape(shape: Shape, put: &mut impl FnMut(&str, Value)) {
    put("algorithm", shape.name().into());
    match shape {
        Shape::Gcra { burst } => put("burst", burst.into()),
        Shape::Cell { burst } => put("burst", burst.into()),
        Shape::TokenBucket { burst, refill } => {
            put("burst", burst.into());
            match refill {
                Refill::Continuous => {}
                Refill::Tick(tick) => {
                    put("refill", "tick".into());
                    put("tick", format_duration(tick).into());
                }
                Refill::Calendar => put("refill", "calendar".into()),
            }
        }
        Shape::LeakyBucket { burst, release } => {
            put("burst", burst.into());
            if let Release::Hold { max_wait, after } = release {
                put("max_wait", max_wait.map(format_duration).into());
                put("hold_after", if after == 0 { Value::Null } else { after.into() });
            }
        }
        Shape::FixedWindow { start: WindowStart::Aligned } => put("window", "aligned".into()),
        Shape::FixedWindow { start: WindowStart::FirstHit } => put("window", "first-hit".into()),
        Shape::SlidingCompact { resolution } => put("resolution", format_duration(resolution).into()),
        Shape::TieredWindow { levels } => put("levels", levels.names().collect()),
        Shape::SlidingLog | Shape::SlidingCounter | Shape::Concurrency => {}
    }
}

fn missing_key(missing: MissingKey) -> Option<&'static str> {
    match missing {
        MissingKey::Skip => None,
        MissingKey::Deny => Some("deny"),
        MissingKey::Shared => Some("shared"),
    }
}

fn ambiguous_key(rule: &Rule) -> Option<&'static str> {
    let name = match rule.ambiguous_key {
        AmbiguousKey::Deny => "deny",
        AmbiguousKey::Each => "each",
    };
    (rule.ambiguous_key != AmbiguousKey::default_for(rule.missing_key)).then_some(name)
}

fn on_exceed(on_exceed: OnExceed) -> &'static str {
    match on_exceed {
        OnExceed::Reject => "reject",
        OnExceed::Hold => "hold",
        OnExceed::Queue => "queue",
    }
}

fn on_store_error(mode: OnStoreError) -> &'static str {
    match mode {
        OnStoreError::Open => "open",
        OnStoreError::Closed => "closed",
        OnStoreError::Local => "local",
    }
}

fn count_when(when: &CountWhen) -> Option<String> {
    match when {
        CountWhen::Always => None,
        CountWhen::Success => Some("success".to_owned()),
        CountWhen::Failure => Some("failure".to_owned()),
        CountWhen::Status(codes) => {
            let codes: Vec<_> = codes.iter().map(ToString::to_string).collect();
            Some(format!("status:{}", codes.join(",")))
        }
    }
}
