//! Which denials are written in the sample `denied`.
//!
//! An episode is the time during which one key is denied by one rule (or by a ban) again and again. Its first denials
//! are written one by one; then one line says that further ones are counted, and another one has their number when the
//! key was not denied for [`QUIET`]. So the number of lines depends on the number of keys, and that is bounded: the
//! denials of keys without room in the table are one common episode.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use tollgate::Time;

use super::DecisionRecord;
use super::line::{EpisodeEvent, EpisodeLine, Lines};

/// Denials of an episode that are written one by one.
const FIRST: u64 = 3;
/// An episode ends this long after its last denial.
pub(super) const QUIET: Duration = Duration::from_secs(60);
/// Pairs of a rule and a key in the table.
pub(super) const MAX_KEYS: usize = 4_096;

/// Separates rule and key; neither contains it.
const SEPARATOR: char = '\n';

#[derive(Default)]
pub(super) struct Episodes {
    /// By rule and key.
    table: HashMap<String, Episode>,
    /// All keys without room in the table.
    others: Option<Episode>,
    name: String,
}

struct Episode {
    since: Time,
    until: Time,
    denied: u64,
}

impl Episode {
    fn begin(at: Time) -> Episode {
        Episode { since: at, until: at, denied: 0 }
    }

    /// Returns the number of this denial.
    fn deny(&mut self, at: Time) -> u64 {
        self.until = self.until.max(at); // threads may deliver denials out of order
        self.denied += 1;
        self.denied
    }

    fn is_over(&self, now: Time) -> bool {
        now.since(self.until) >= QUIET
    }

    fn write(&self, lines: &mut Lines, event: EpisodeEvent, at: Time, rule: Option<&str>, key: Option<&str>) {
        let [at, since, until] = EpisodeLine::times(at, self.since, self.until);
        lines.push(&EpisodeLine { at, event, rule, key, denied: self.denied, since, until });
    }
}

impl Episodes {
    /// Adds a denial.
    pub(super) fn deny(&mut self, record: &DecisionRecord, lines: &mut Lines) {
        let rule = record.rule.as_ref().map_or("", |rule| rule.as_str());
        self.name.clear();
        write!(self.name, "{rule}{SEPARATOR}{}", record.key).expect("writing to a string cannot fail");
        if !self.table.contains_key(&self.name) {
            if self.table.len() >= MAX_KEYS {
                return self.deny_other(record, lines);
            }
            self.table.insert(self.name.clone(), Episode::begin(record.at));
        }
        let Some(episode) = self.table.get_mut(&self.name) else { return };
        let number = episode.deny(record.at);
        if number <= FIRST {
            lines.decision(record);
        } else if number == FIRST + 1 {
            let (rule, key) = names(&self.name);
            episode.write(lines, EpisodeEvent::LimitingBegins, record.at, rule, Some(key));
        }
    }

    fn deny_other(&mut self, record: &DecisionRecord, lines: &mut Lines) {
        let others = self.others.get_or_insert_with(|| Episode::begin(record.at));
        if others.deny(record.at) == 1 {
            others.write(lines, EpisodeEvent::LimitingBegins, record.at, None, None);
        }
    }

    /// Ends the episodes of keys that were not denied for a while.
    pub(super) fn end_quiet(&mut self, now: Time, lines: &mut Lines) {
        self.end(now, lines, |episode| episode.is_over(now));
    }

    /// Ends all episodes, at a stop.
    pub(super) fn end_all(&mut self, now: Time, lines: &mut Lines) {
        self.end(now, lines, |_| true);
    }

    fn end(&mut self, now: Time, lines: &mut Lines, is_over: impl Fn(&Episode) -> bool) {
        for (name, episode) in self.table.extract_if(|_, episode| is_over(episode)) {
            if episode.denied > FIRST {
                let (rule, key) = names(&name);
                episode.write(lines, EpisodeEvent::LimitingEnds, now, rule, Some(key));
            }
        }
        if let Some(others) = self.others.take_if(|others| is_over(others)) {
            others.write(lines, EpisodeEvent::LimitingEnds, now, None, None);
        }
    }
}

fn names(name: &str) -> (Option<&str>, &str) {
    let (rule, key) = name.split_once(SEPARATOR).unwrap_or(("", name));
    (Some(rule).filter(|rule| !rule.is_empty()), key)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tollgate::internal::engine::LoggedKey;
    use tollgate::internal::rule::RuleId;
    use tollgate::internal::verdict::{Reason, VerdictId};

    use super::*;

    fn denial(rule: &str, key: &str, at: Time) -> DecisionRecord {
        DecisionRecord {
            id: VerdictId { node: 1, generation: 1, sequence: 1 },
            at,
            allowed: false,
            reason: Reason::Limit,
            rule: RuleId::new(rule),
            limit: None,
            key: LoggedKey::Plain(key.into()),
            cost: 1,
            remaining: Some(0),
            retry_after: Some(Duration::from_micros(1)),
            trace: None,
            charged: Vec::new(),
        }
    }

    fn at(millis: u64) -> Time {
        Time::from_secs(1_800_000_000) + Duration::from_millis(millis)
    }

    fn take(lines: &mut Lines) -> Vec<Value> {
        let text = String::from_utf8(std::mem::take(lines).bytes).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    #[test]
    fn an_attack_is_five_lines_however_long_it_lasts() {
        let mut episodes = Episodes::default();
        let mut lines = Lines::default();
        for n in 0..100_000 {
            episodes.deny(&denial("login", "ip:192.0.2.1", at(n)), &mut lines);
            episodes.end_quiet(at(n), &mut lines);
        }
        let written = take(&mut lines);
        let events: Vec<_> = written.iter().map(|line| line["event"].as_str().unwrap_or_default()).collect();
        assert_eq!(events, ["decision", "decision", "decision", "limiting_begins"]);
        assert_eq!(written[0]["retry_after_ms"], 1, "rounded up");
        episodes.end_quiet(at(99_999 + 59_999), &mut lines);
        assert!(take(&mut lines).is_empty(), "it may go on");
        episodes.end_quiet(at(99_999 + 60_000), &mut lines);
        let ended = take(&mut lines);
        assert_eq!(ended.len(), 1);
        assert_eq!((&ended[0]["event"], &ended[0]["denied"]), (&"limiting_ends".into(), &100_000.into()));
        assert_eq!((&ended[0]["rule"], &ended[0]["key"]), (&"login".into(), &"ip:192.0.2.1".into()));
        assert_eq!(ended[0]["until"], "2027-01-15T08:01:39.999Z");
        episodes.deny(&denial("login", "ip:192.0.2.1", at(300_000)), &mut lines);
        assert_eq!(take(&mut lines)[0]["event"], "decision", "a new episode");
    }

    #[test]
    fn a_few_denials_have_no_other_lines() {
        let mut episodes = Episodes::default();
        let mut lines = Lines::default();
        for (rule, key) in [("a", "x"), ("b", "x"), ("a", "y"), ("a", "x"), ("a", "x")] {
            episodes.deny(&denial(rule, key, at(0)), &mut lines);
        }
        assert_eq!(take(&mut lines).len(), 5);
        episodes.end_all(at(1), &mut lines);
        assert!(take(&mut lines).is_empty() && episodes.table.is_empty());
    }

    #[test]
    fn keys_beyond_the_bound_are_counted_together() {
        let mut episodes = Episodes::default();
        let mut lines = Lines::default();
        for n in 0..10 * MAX_KEYS {
            episodes.deny(&denial("r", &format!("user:{n}"), at(n as u64)), &mut lines);
        }
        let written = take(&mut lines);
        assert_eq!(written.len(), MAX_KEYS + 1);
        assert_eq!(
            written.last().map(|line| (&line["event"], &line["key"])),
            Some((&"limiting_begins".into(), &Value::Null))
        );
        assert_eq!(episodes.table.len(), MAX_KEYS);
        episodes.end_all(at(0), &mut lines);
        let ended = take(&mut lines);
        assert_eq!(ended.len(), 1);
        assert_eq!(ended[0]["denied"], 9 * MAX_KEYS);
    }
}
