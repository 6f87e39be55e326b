//! The keys with the most decisions, by outcome: sketches of the last minutes and hours.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollgate::internal::rule::RuleId;

use super::bounded_sum::BoundedSum;
use super::key_text::{MAX_KEY_TEXT, SHARED_TEXT_BYTES, is_unknown, unknown_key};
use super::rule_history::{HOUR, MINUTE};
use super::space_saving::{CAPACITY, FingerprintMap, MAX_MONITORED, SpaceSaving};

/// Complete minutes beside the current one.
const MINUTES: usize = 5;
/// The current hour and the one before it.
const HOURS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopOutcome {
    Denied,
    Allowed,
    /// Allowed, with at least 80 % of a limit used.
    Near,
}

const OUTCOMES: usize = 3;

/// Each window is the current step and the complete ones before it: one to two minutes, five to six, one to two hours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopWindow {
    Minute,
    FiveMinutes,
    Hour,
}

#[derive(Clone)]
struct KeyName {
    rule: Option<RuleId>,
    text: Option<Arc<str>>,
}

impl KeyName {
    fn complete(&mut self, other: &KeyName) {
        if self.text.is_none() {
            self.text.clone_from(&other.text);
        }
    }
}

/// A key of the list. Its true count is within [count − error, count].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TopKey {
    pub rule: Option<String>,
    pub key: String,
    pub count: u64,
    pub error: u64,
    /// The node whose decisions are counted, if not those of the whole fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// The keys of a window, most decisions first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TopList {
    /// The start of the window, in seconds since 1970.
    pub from: u64,
    pub keys: Vec<TopKey>,
    /// A key that is not listed by its text has at most this many.
    pub unlisted: u64,
}

impl TopList {
    /// Sorts the keys and leaves the first ones.
    pub fn truncate(&mut self, limit: usize) {
        let order = |a: &TopKey, b: &TopKey| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key));
        self.keys.sort_unstable_by(|a, b| order(a, b).then_with(|| a.node.cmp(&b.node)));
        if let Some(next) = self.keys.get(limit) {
            self.unlisted = self.unlisted.max(next.count);
        }
        self.keys.truncate(limit);
    }
}

/// Sketches of successive steps, by outcome.
struct SketchRing<const STEPS: usize> {
    step_secs: u64,
    step: u64,
    sketches: Box<[[SpaceSaving<KeyName>; OUTCOMES]; STEPS]>,
}

impl<const STEPS: usize> SketchRing<STEPS> {
    fn new(step_secs: u64, second: u64) -> Self {
        let sketches = Box::new(std::array::from_fn(|_| std::array::from_fn(|_| SpaceSaving::default())));
        SketchRing { step_secs, step: second / step_secs, sketches }
    }

    fn advance(&mut self, second: u64) {
        let step = second / self.step_secs;
        for ahead in 1..=step.saturating_sub(self.step).min(STEPS as u64) {
            let slot = ((self.step + ahead) % STEPS as u64) as usize;
            self.sketches[slot].iter_mut().for_each(SpaceSaving::clear);
        }
        self.step = self.step.max(step);
    }

    fn current(&mut self) -> &mut [SpaceSaving<KeyName>; OUTCOMES] {
        &mut self.sketches[(self.step % STEPS as u64) as usize]
    }

    /// The sketches of the current step, unless it is over at `second`.
    fn ended(&mut self, second: u64) -> Option<&mut [SpaceSaving<KeyName>; OUTCOMES]> {
        (second / self.step_secs > self.step).then(|| self.current())
    }

    /// The sketches of the current step and of `before` complete ones.
    fn latest(&self, outcome: TopOutcome, before: u64) -> impl Iterator<Item = &SpaceSaving<KeyName>> {
        (0..=before.min(STEPS as u64 - 1)).map(move |back| {
            let slot = (self.step.saturating_sub(back) % STEPS as u64) as usize;
            &self.sketches[slot][outcome as usize]
        })
    }
}

pub struct TopKeys {
    minutes: SketchRing<{ MINUTES + 1 }>,
    /// Without the current minute.
    hours: SketchRing<HOURS>,
}

/// A key with its new decisions.
pub struct KeyWeight<'k> {
    pub fingerprint: u64,
    pub rule: Option<&'k RuleId>,
    pub text: Option<&'k Arc<str>>,
    pub outcome: TopOutcome,
    pub weight: u32,
}

impl TopKeys {
    /// Only the sketches of the current minute monitor more keys than are kept, and the one of an hour that a minute is
    /// added to. The latter shares the texts of that minute.
    pub const MAX_BYTES: usize = OUTCOMES
        * ((MINUTES + HOURS) * CAPACITY + MAX_MONITORED)
        * (COUNTER_BYTES + MAX_KEY_TEXT + SHARED_TEXT_BYTES)
        + (MAX_MONITORED - CAPACITY) * COUNTER_BYTES;

    pub fn new(second: u64) -> TopKeys {
        TopKeys { minutes: SketchRing::new(MINUTE, second), hours: SketchRing::new(HOUR, second) }
    }

    pub fn advance(&mut self, second: u64) {
        if let Some(ended) = self.minutes.ended(second) {
            for (hour, minute) in self.hours.current().iter_mut().zip(ended) {
                minute.compact();
                hour.absorb(minute, KeyName::complete);
            }
        }
        self.minutes.advance(second);
        self.hours.advance(second);
    }

    pub fn add(&mut self, key: &KeyWeight<'_>) {
        if key.weight == 0 {
            return;
        }
        let name = || KeyName { rule: key.rule.cloned(), text: key.text.cloned() };
        let sketch = &mut self.minutes.current()[key.outcome as usize];
        let known = sketch.add(key.fingerprint, key.weight.into(), name);
        if let Some(known) = known.filter(|known| known.text.is_none()) {
            known.text = key.text.cloned();
        }
    }

    /// The keys of a window, most decisions first.
    pub fn top(&self, outcome: TopOutcome, window: TopWindow, rule: Option<&str>, limit: usize) -> TopList {
        let (from, (keys, unmonitored)) = match window {
            TopWindow::Minute => {
                (self.minutes.step.saturating_sub(1) * MINUTE, merged(self.minutes.latest(outcome, 1)))
            }
            TopWindow::FiveMinutes => {
                let before = MINUTES as u64;
                (
                    self.minutes.step.saturating_sub(before) * MINUTE,
                    merged(self.minutes.latest(outcome, before)),
                )
            }
            TopWindow::Hour => {
                let hours = self.hours.latest(outcome, 1);
                let all = hours.chain(self.minutes.latest(outcome, 0));
                (self.hours.step.saturating_sub(1) * HOUR, merged(all))
            }
        };
        let is_of_rule = |key: &TopKey| rule.is_none_or(|rule| key.rule.as_deref() == Some(rule));
        let keys: Vec<TopKey> = keys.into_iter().filter(is_of_rule).collect();
        // A key whose text is not known is listed, but not by its text.
        let without_text = keys.iter().filter(|key| is_unknown(&key.key)).map(|key| key.count).max();
        let mut list = TopList { from, keys, unlisted: unmonitored.max(without_text.unwrap_or(0)) };
        list.truncate(limit);
        list
    }
}

/// Bytes of a counter without the text of its key: the sketch's fields, and a table entry at a load of at least 7/16.
const COUNTER_BYTES: usize =
    3 * size_of::<u64>() + size_of::<KeyName>() + (size_of::<(u64, u16)>() + 1) * 16 / 7;

/// The sum of several sketches, which each list what they monitor; also returns what a key may have that none monitors.
fn merged<'s>(sketches: impl Iterator<Item = &'s SpaceSaving<KeyName>>) -> (Vec<TopKey>, u64) {
    let mut sums: FingerprintMap<(&KeyName, BoundedSum)> = FingerprintMap::default();
    let mut unmonitored = 0;
    for sketch in sketches {
        let least = sketch.max_unmonitored();
        unmonitored += least;
        for one in sketch.iter() {
            let (name, sum) = sums.entry(one.fingerprint).or_insert((one.item, BoundedSum::default()));
            sum.add(one.count, one.error, least);
            if name.text.is_none() {
                *name = one.item;
            }
        }
    }
    let key = |(fingerprint, (name, sum)): (u64, (&KeyName, BoundedSum))| {
        let (count, error) = sum.bounds(unmonitored);
        TopKey {
            rule: name.rule.as_ref().map(|rule| rule.to_string()),
            key: name.text.as_ref().map_or_else(|| unknown_key(fingerprint), |text| text.to_string()),
            count,
            error,
            node: None,
        }
    };
    (sums.into_iter().map(key).collect(), unmonitored)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_800_000_000;

    fn add(top: &mut TopKeys, fingerprint: u64, text: Option<&str>, weight: u32) {
        let rule = RuleId::new("login").expect("a valid id");
        let text = text.map(Arc::from);
        let outcome = TopOutcome::Denied;
        top.add(&KeyWeight { fingerprint, rule: Some(&rule), text: text.as_ref(), outcome, weight });
    }

    #[test]
    fn a_window_adds_its_steps_and_forgets_older_ones() {
        let mut top = TopKeys::new(START);
        add(&mut top, 1, Some("ip:192.0.2.1"), 10);
        top.advance(START + 60);
        add(&mut top, 1, None, 5);
        add(&mut top, 2, None, 7);
        let list = |top: &TopKeys, window| -> Vec<(String, u64, u64)> {
            let keys = top.top(TopOutcome::Denied, window, Some("login"), 10).keys;
            keys.into_iter().map(|one| (one.key, one.count, one.error)).collect()
        };
        let first = ("ip:192.0.2.1".to_owned(), 15, 0);
        let second = ("#0000000000000002".to_owned(), 7, 0);
        assert_eq!(list(&top, TopWindow::Minute), [first.clone(), second.clone()]);
        top.advance(START + 120);
        assert_eq!(list(&top, TopWindow::Minute)[0].1, 7);
        assert_eq!(list(&top, TopWindow::FiveMinutes), [first.clone(), second.clone()]);
        top.advance(START + 600);
        assert!(list(&top, TopWindow::FiveMinutes).is_empty());
        assert_eq!(list(&top, TopWindow::Hour), [first, second]);
        top.advance(START + 7_200);
        assert!(list(&top, TopWindow::Hour).is_empty());
        assert!(top.top(TopOutcome::Allowed, TopWindow::Hour, None, 10).keys.is_empty());
    }

    /// A million keys in two minutes: every true count is within the bounds of the merged list.
    #[test]
    fn bounds_hold_over_merged_steps() {
        let mut random = fastrand::Rng::with_seed(4);
        let mut truth = std::collections::HashMap::new();
        let mut top = TopKeys::new(START);
        for minute in 0..2 {
            top.advance(START + 60 * minute);
            for _ in 0..100_000 {
                let key = if random.u8(..4) == 0 { random.u64(..50) } else { random.u64(..1_000_000) };
                let fingerprint = key.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                *truth.entry(fingerprint).or_insert(0u64) += 1;
                add(&mut top, fingerprint, None, 1);
            }
        }
        let keys = top.top(TopOutcome::Denied, TopWindow::Minute, None, usize::MAX).keys;
        for one in &keys {
            let fingerprint = u64::from_str_radix(&one.key[1..], 16).expect("a mark");
            let count = truth[&fingerprint];
            assert!((one.count - one.error..=one.count).contains(&count), "{count}: {one:?}");
        }
        let listed: std::collections::HashSet<_> = keys.iter().map(|one| one.key.clone()).collect();
        assert!(
            truth
                .iter()
                .filter(|(_, count)| **count > 500)
                .all(|(key, _)| listed.contains(&unknown_key(*key)))
        );
    }
}
