//! `/v1/activity`: the most active rules, with the clients that they limit and how much of their limits is used.

use std::cmp::Reverse;
use std::collections::HashMap;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use crate::admin::request::AdminRequest;
use crate::admin::scope::{self, Scope};
use crate::connection::FullResponse;
use crate::fleet::{NodeAnswer, NodesAnswered};
use crate::insight::{InsightData, RuleHistory, SeriesName, headroom};
use crate::response::{self, ProblemDetails};

/// Rules of an answer for the whole fleet.
const MAX_RULES: usize = 100;

#[derive(Serialize, Deserialize)]
struct ActivityResponse {
    rules: Vec<RuleActivity>,
    /// The second of the last element of each `recent`.
    at: u64,
    nodes: NodesAnswered,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct RuleActivity {
    rule: String,
    allowed: u64,
    denied: u64,
    shadow_denied: u64,
    clients_limited: u64,
    near_limit: u64,
    headroom: Vec<f64>,
    /// Requests by the share of the limit that is used, in equal steps.
    used: Vec<u64>,
    /// Denied and allowed requests of each second of the last minute, oldest first.
    recent: Vec<[u64; 2]>,
}

impl NodeAnswer for ActivityResponse {
    fn node(&self) -> Option<&str> {
        self.nodes.answered.first().map(String::as_str)
    }
}

/// `?rule=ID&scope=node|fleet`
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [rule, scope] = call.parameters(["rule", "scope"])?;
    let scope = Scope::parse(scope.as_deref())?;
    let mut answer = own_activity(&call, rule.as_deref())?;
    if scope == Scope::Fleet {
        let at = answer.at;
        let mut sum = ActivitySum::new(at, answer.rules);
        let nodes = scope::ask_others(&call, &[], "", |other: ActivityResponse| sum.add(other)).await?;
        answer = ActivityResponse { rules: sum.into_rules(), at, nodes };
    }
    Ok(response::json(StatusCode::OK, &answer))
}

fn own_activity(call: &AdminRequest, rule: Option<&str>) -> Result<ActivityResponse, ProblemDetails> {
    let data = call.insight()?.data();
    let series = match rule {
        None => data.by_activity(),
        Some("other") => data.series(SeriesName::Other).into_iter().collect(),
        Some(id) => data.series(SeriesName::Rule(id)).into_iter().collect(),
    };
    let rules = series.into_iter().map(|series| RuleActivity::of(&data, series)).collect();
    Ok(ActivityResponse { rules, at: data.second(), nodes: NodesAnswered::own(call.gate()) })
}

impl RuleActivity {
    fn of(data: &InsightData, series: &RuleHistory) -> RuleActivity {
        let minute = series.last_minute();
        let seconds = data.last_minute();
        let mut recent: Vec<[u64; 2]> = vec![[0, 0]; seconds.clone().count()];
        for (second, point) in series.seconds.range(*seconds.start(), *seconds.end()) {
            recent[(second - seconds.start()) as usize] = [point.denied.into(), point.allowed.into()];
        }
        if let Some(current) = recent.last_mut() {
            *current = [series.current.denied.into(), series.current.allowed.into()];
        }
        RuleActivity {
            rule: series.rule.as_ref().map_or("other", |rule| rule.as_str()).to_owned(),
            allowed: minute.allowed.into(),
            denied: minute.denied.into(),
            shadow_denied: minute.shadow_denied.into(),
            clients_limited: series.clients_limited(),
            near_limit: series.near_limit(),
            headroom: series.headroom(),
            used: series.used(),
            recent,
        }
    }

    /// Adds the counts of another node, whose `recent` ends `behind` seconds before this one's.
    fn add(&mut self, other: RuleActivity, behind: i64) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.denied = self.denied.saturating_add(other.denied);
        self.shadow_denied = self.shadow_denied.saturating_add(other.shadow_denied);
        // The same client may be limited by both.
        self.clients_limited = self.clients_limited.max(other.clients_limited);
        self.near_limit = self.near_limit.saturating_add(other.near_limit);
        for (own, other) in self.used.iter_mut().zip(other.used) {
            *own = own.saturating_add(other);
        }
        self.headroom = headroom(&self.used);
        let own_end = self.recent.len() as i64 - behind;
        let offset = own_end - other.recent.len() as i64;
        for (n, [denied, allowed]) in other.recent.into_iter().enumerate() {
            let place = usize::try_from(n as i64 + offset).ok();
            if let Some(own) = place.and_then(|place| self.recent.get_mut(place)) {
                own[0] = own[0].saturating_add(denied);
                own[1] = own[1].saturating_add(allowed);
            }
        }
    }
}

/// The activity of several nodes by rule.
struct ActivitySum {
    at: u64,
    places: HashMap<String, usize>,
    rules: Vec<RuleActivity>,
}

impl ActivitySum {
    fn new(at: u64, own: Vec<RuleActivity>) -> ActivitySum {
        let places = own.iter().enumerate().map(|(place, rule)| (rule.rule.clone(), place)).collect();
        ActivitySum { at, places, rules: own }
    }

    fn add(&mut self, other: ActivityResponse) {
        let behind = self.at as i64 - other.at as i64;
        for rule in other.rules {
            let place = *self.places.entry(rule.rule.clone()).or_insert_with(|| {
                let minute = (self.rules.first()).map_or(rule.recent.len(), |first| first.recent.len());
                self.rules.push(RuleActivity::empty(&rule, minute));
                self.rules.len() - 1
            });
            self.rules[place].add(rule, behind);
        }
    }

    /// The most active first.
    fn into_rules(mut self) -> Vec<RuleActivity> {
        let decisions = |rule: &RuleActivity| rule.allowed.saturating_add(rule.denied);
        self.rules
            .sort_by(|a, b| Reverse(decisions(a)).cmp(&Reverse(decisions(b))).then(a.rule.cmp(&b.rule)));
        self.rules.truncate(MAX_RULES);
        self.rules
    }
}

impl RuleActivity {
    /// The same rule without requests.
    fn empty(like: &RuleActivity, seconds: usize) -> RuleActivity {
        RuleActivity {
            rule: like.rule.clone(),
            allowed: 0,
            denied: 0,
            shadow_denied: 0,
            clients_limited: 0,
            near_limit: 0,
            headroom: Vec::new(),
            used: vec![0; like.used.len()],
            recent: vec![[0, 0]; seconds],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(id: &str, recent: Vec<[u64; 2]>) -> RuleActivity {
        let denied = recent.iter().map(|[denied, _]| denied).sum();
        let allowed = recent.iter().map(|[_, allowed]| allowed).sum();
        let used = vec![denied, allowed];
        let headroom = headroom(&used);
        let rule = id.to_owned();
        RuleActivity {
            rule,
            allowed,
            denied,
            shadow_denied: 1,
            clients_limited: 2,
            near_limit: 3,
            headroom,
            used,
            recent,
        }
    }

    fn answer(at: u64, rules: Vec<RuleActivity>) -> ActivityResponse {
        ActivityResponse { rules, at, nodes: NodesAnswered::default() }
    }

    #[test]
    fn seconds_of_nodes_whose_clocks_differ_are_added_at_the_same_time() {
        let mut sum = ActivitySum::new(100, vec![rule("a", vec![[1, 0], [2, 0], [3, 0]])]);
        sum.add(answer(99, vec![rule("a", vec![[10, 0], [20, 0], [30, 0]])]));
        sum.add(answer(
            102,
            vec![rule("a", vec![[0, 100], [0, 200], [0, 300]]), rule("b", vec![[0, 7], [0, 0], [0, 0]])],
        ));
        let rules = sum.into_rules();
        assert_eq!(rules[0].recent, [[21, 0], [32, 0], [3, 100]]);
        assert_eq!((rules[0].denied, rules[0].allowed, rules[0].clients_limited), (66, 600, 2));
        assert_eq!((rules[0].near_limit, &rules[0].used), (9, &vec![66, 600]));
        assert_eq!((rules[1].rule.as_str(), &rules[1].recent), ("b", &vec![[0, 0], [0, 0], [0, 7]]));
    }
}
