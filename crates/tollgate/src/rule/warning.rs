//! Warnings about rules that are valid but probably not intended.
//!
//! A warning never prevents a rule from coming into force. `rules check` and the server's log show them.

use std::time::Duration;

use crate::identity::{Attribute, FieldSource};
use crate::limit::{Limit, Release, Shape};
use crate::rule::{Rule, RuleMode};
use crate::time::format_duration;

/// Browsers, HTTP libraries and load balancers commonly give up after this time.
pub const USUAL_CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Warnings about rules, in their order: the first [`MAX`](Warnings::MAX), and a count of the rest.
#[derive(Default, Debug)]
pub struct Warnings {
    texts: Vec<String>,
    more: usize,
}

impl Warnings {
    pub const MAX: usize = 20;

    /// `identity` names the attributes that identities are read from, as in the settings.
    pub fn of<'r>(
        rules: impl IntoIterator<Item = &'r Rule>,
        identity: &[(Attribute, Attribute)],
    ) -> Warnings {
        let mut warnings = Warnings::default();
        rules.into_iter().for_each(|rule| warnings.check(rule, identity));
        warnings
    }

    /// Adds the warnings about a rule.
    pub fn check(&mut self, rule: &Rule, identity: &[(Attribute, Attribute)]) {
        for warning in [hold_warning(rule), ban_warning(rule, identity)].into_iter().flatten() {
            if self.texts.len() < Self::MAX {
                self.texts.push(format!("rule {}: {warning}", rule.id));
            } else {
                self.more += 1;
            }
        }
    }

    /// One line each.
    pub fn into_lines(self) -> Vec<String> {
        let mut lines = self.texts;
        if self.more > 0 {
            lines.push(format!("{} more rules have such warnings", self.more));
        }
        lines
    }
}

/// Whether a queue holds requests for longer than their clients will wait, or holds none at all.
fn hold_warning(rule: &Rule) -> Option<String> {
    if rule.mode == RuleMode::Off {
        return None;
    }
    rule.all_limits().find_map(|each| {
        let limit = each.limit;
        let Shape::LeakyBucket { release: Release::Hold { max_wait, after }, .. } = limit.shape() else {
            return None;
        };
        let most_ahead = limit.capacity().saturating_sub(rule.cost);
        if after > 0 && after >= most_ahead {
            return Some(format!(
                "{limit} never holds a request, as no more than {most_ahead} can be ahead of one and hold_after is \
                 {after}: lower it, or write on_exceed: reject"
            ));
        }
        let longest = time_of(&limit, most_ahead.saturating_sub(after));
        (max_wait.is_none() && longest > USUAL_CLIENT_TIMEOUT).then(|| {
            format!(
                "{limit} holds requests for up to {}, longer than most clients wait ({}): set max_wait or a \
                 smaller burst, or write on_exceed: reject",
                format_duration(longest),
                format_duration(USUAL_CLIENT_TIMEOUT)
            )
        })
    })
}

/// Whether a client can get another client banned: by sending requests with that client's key.
fn ban_warning(rule: &Rule, identity: &[(Attribute, Attribute)]) -> Option<String> {
    let ban = rule.ban.as_ref().filter(|_| rule.mode != RuleMode::Off)?;
    let is_chosen = |attribute: &Attribute| match attribute {
        Attribute::ApiKey => false, // a secret, wherever it is
        _ => {
            let source = identity.iter().find(|(name, _)| name == attribute).map(|(_, source)| source);
            is_chosen_by_client(source.unwrap_or(attribute))
        }
    };
    if !ban.key.iter().all(is_chosen) {
        return None;
    }
    let key: Vec<_> = ban.key.iter().map(ToString::to_string).collect();
    Some(format!(
        "its ban is keyed by {}, which a client chooses freely and can forge to have others banned: use key: [ip] in ban, or add ip to it",
        key.join("+")
    ))
}

fn is_chosen_by_client(attribute: &Attribute) -> bool {
    match attribute {
        Attribute::Ip | Attribute::User | Attribute::ApiKey => false,
        Attribute::Field(FieldSource::Jwt | FieldSource::Attr, _) => false,
        Attribute::Email | Attribute::Mac | Attribute::Path | Attribute::Method | Attribute::Host => true,
        Attribute::Field(
            FieldSource::Header
            | FieldSource::Cookie
            | FieldSource::Query
            | FieldSource::Json
            | FieldSource::Form,
            _,
        ) => true,
    }
}

/// How long `tokens` take to leak, in whole seconds, rounded up.
fn time_of(limit: &Limit, tokens: u64) -> Duration {
    let rate = limit.rate();
    let seconds = u128::from(tokens) * u128::from(rate.period().secs());
    let seconds = seconds.div_ceil(u128::from(rate.count().max(1)));
    Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicySnapshot;

    fn lines(rules: &str) -> Vec<String> {
        lines_with(rules, &[])
    }

    fn lines_with(rules: &str, identity: &[(Attribute, Attribute)]) -> Vec<String> {
        let policy = PolicySnapshot::from_yaml(&format!("rules: [{rules}]")).expect("valid rules");
        Warnings::of(policy.rules().iter().map(|rule| &***rule), identity).into_lines()
    }

    fn leaky(options: &str) -> Vec<String> {
        lines(&format!("{{ id: q, algorithm: leaky-bucket, {options} }}"))
    }

    #[test]
    fn a_ban_key_that_clients_choose_is_warned_of() {
        let ban = |key: &str| {
            lines(&format!(
                "{{ id: b, key: email, limit: 5/m, ban: {{ key: {key}, after: 3, within: 10m, for: 1h }} }}"
            ))
        };
        for key in ["email", "[email]", "header:x-id", "[cookie:a, json:b]", "mac"] {
            let warnings = ban(key);
            assert_eq!(warnings.len(), 1, "{key}: {warnings:?}");
            assert!(warnings[0].contains("use key: [ip]"), "{warnings:?}");
        }
        for key in ["ip", "[ip, email]", "user", "jwt:sub", "api_key"] {
            assert_eq!(ban(key), [""; 0], "{key}");
        }
    }

    /// A regression: `user` was taken for safe although `identity` reads it from a header.
    #[test]
    fn a_ban_key_is_judged_by_where_the_identity_is_read() {
        let warned = |key: &str, source: &str| {
            let named = |name: &str| Attribute::parse(name).expect("an attribute");
            let rule = format!(
                "{{ id: b, key: ip, limit: 5/m, ban: {{ key: {key}, after: 3, within: 10m, for: 1h }} }}"
            );
            !lines_with(&rule, &[(named(key), named(source))]).is_empty()
        };
        for source in ["header:x-user", "cookie:user", "query:u", "json:user", "form:user"] {
            assert!(warned("user", source), "{source}");
        }
        assert!(!warned("user", "jwt:sub") && !warned("email", "jwt:email"));
        assert!(!warned("api_key", "header:x-api-key"), "the key of another client is a secret");
    }

    #[test]
    fn a_queue_longer_than_client_timeouts_is_warned_of() {
        let warnings = leaky("limit: 5/m");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("rule q: 5/m holds requests for up to 48s"), "{warnings:?}");
        assert_eq!(leaky("limits: [10/s, 5/m]").len(), 1);
        assert_eq!(leaky("limit: 10/s, key: user, overrides: [{ user: a, limit: 5/m }]").len(), 1);
        for options in [
            "limit: 1/s, burst: 31",
            "limit: 5/m, hold_after: 2",
            "limit: 5/m, max_wait: 1h",
            "limit: 5/m, on_exceed: reject",
            "limit: 5/m, mode: off",
            "limit: 0/m",
            "limit: 1/d",
        ] {
            assert_eq!(leaky(options), [""; 0], "{options}");
        }
        assert_eq!(leaky("limit: 1/s, burst: 32").len(), 1);
    }

    #[test]
    fn a_queue_that_holds_no_request_is_warned_of() {
        assert!(leaky("limit: 5/s, hold_after: 4")[0].contains("never holds"));
        assert_eq!(leaky("limit: 5/s, hold_after: 3"), [""; 0]);
        assert!(leaky("limit: 5/s, hold_after: 3, cost: 2")[0].contains("no more than 3"));
    }

    #[test]
    fn the_number_of_warnings_is_bounded() {
        let many: Vec<_> = (0..500)
            .map(|n| format!("{{ id: r{n}, match: /r{n}, algorithm: leaky-bucket, limit: 1/m, burst: 2 }}"))
            .collect();
        let lines = lines(&many.join(", "));
        assert_eq!(lines.len(), Warnings::MAX + 1);
        assert_eq!(lines.last().map(String::as_str), Some("480 more rules have such warnings"));
    }
}
