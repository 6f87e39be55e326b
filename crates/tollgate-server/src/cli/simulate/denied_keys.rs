//! How often each key was denied by each rule: exact up to a bound of keys and of their length, beyond it with a stated
//! error.
//!
//! When the table is full, the keys with the lowest counts are dropped (lossy counting). A key that comes back starts at
//! zero, so the true count lies within `[count, count + error]`.

use std::collections::HashMap;

/// Keys of all rules together.
const MAX_KEYS: usize = 1 << 19;
/// Of the text of all keys: a client may choose a long one, such as a user agent.
const MAX_TEXT_BYTES: usize = 16 << 20;
/// Between a rule's id and a key; neither contains it.
const SEPARATOR: char = '\n';

pub struct DeniedKeys {
    counts: HashMap<Box<str>, u64>,
    text_bytes: usize,
    max_keys: usize,
    max_text_bytes: usize,
    /// The largest count of a key that was dropped.
    pub error: u64,
}

impl Default for DeniedKeys {
    fn default() -> DeniedKeys {
        DeniedKeys {
            counts: HashMap::new(),
            text_bytes: 0,
            max_keys: MAX_KEYS,
            max_text_bytes: MAX_TEXT_BYTES,
            error: 0,
        }
    }
}

/// The denied keys of one rule.
#[derive(Default)]
pub struct DenialsByRule<'k> {
    /// Their number; with an error, at least that many.
    pub clients: u64,
    /// Most denials first.
    pub worst: Vec<(&'k str, u64)>,
}

impl DeniedKeys {
    /// `buffer` is scratch space.
    pub fn add(&mut self, rule: &str, key: &str, buffer: &mut String) {
        buffer.clear();
        buffer.push_str(rule);
        buffer.push(SEPARATOR);
        buffer.push_str(key);
        if let Some(count) = self.counts.get_mut(buffer.as_str()) {
            *count += 1;
            return;
        }
        let is_full = |keys: &DeniedKeys| {
            keys.counts.len() >= keys.max_keys || keys.text_bytes + buffer.len() > keys.max_text_bytes
        };
        while !self.counts.is_empty() && is_full(self) {
            self.drop_lower_half();
        }
        self.text_bytes += buffer.len();
        self.counts.insert(buffer.as_str().into(), 1);
    }

    fn drop_lower_half(&mut self) {
        let mut counts: Vec<u64> = self.counts.values().copied().collect();
        let middle = counts.len() / 2;
        let (_, median, _) = counts.select_nth_unstable(middle);
        let least = *median;
        self.counts.retain(|_, count| *count > least);
        self.text_bytes = self.counts.keys().map(|key| key.len()).sum();
        self.error += least;
    }

    /// By rule, with the `most` keys that were denied most often.
    pub fn by_rule(&self, most: usize) -> HashMap<&str, DenialsByRule<'_>> {
        let mut rules: HashMap<&str, DenialsByRule<'_>> = HashMap::new();
        for (name, count) in &self.counts {
            let Some((rule, key)) = name.split_once(SEPARATOR) else { continue };
            let denials = rules.entry(rule).or_default();
            denials.clients += 1;
            denials.worst.push((key, *count));
            if denials.worst.len() >= most.max(1) * 64 {
                keep_worst(&mut denials.worst, most);
            }
        }
        rules.values_mut().for_each(|denials| keep_worst(&mut denials.worst, most));
        rules
    }
}

fn keep_worst(keys: &mut Vec<(&str, u64)>, most: usize) {
    keys.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    keys.truncate(most);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn true_counts_lie_within_the_stated_error_when_keys_are_dropped() {
        let mut keys = DeniedKeys { max_keys: 64, ..DeniedKeys::default() };
        let mut random = fastrand::Rng::with_seed(1);
        let mut truth: HashMap<String, u64> = HashMap::new();
        let mut buffer = String::new();
        for n in 0..50_000_u32 {
            let key = if n % 3 == 0 { random.u32(..4) } else { random.u32(4..5_000) }.to_string();
            keys.add("rule", &key, &mut buffer);
            *truth.entry(key).or_default() += 1;
        }
        assert!(keys.error > 0 && keys.counts.len() <= 64);
        let by_rule = keys.by_rule(4);
        let denials = &by_rule["rule"];
        for (key, count) in &denials.worst {
            let true_count = truth[*key];
            assert!((*count..=*count + keys.error).contains(&true_count), "{key}: {count} of {true_count}");
        }
        let mut worst: Vec<_> = denials.worst.iter().map(|(key, _)| *key).collect();
        worst.sort_unstable();
        assert_eq!(worst, ["0", "1", "2", "3"], "the frequent keys are found");
    }

    /// A regression: half a million keys were kept, however long clients had made them.
    #[test]
    fn long_keys_are_bounded_by_their_bytes_and_the_frequent_one_is_found() {
        let mut keys = DeniedKeys { max_text_bytes: 100_000, ..DeniedKeys::default() };
        let mut buffer = String::new();
        for n in 0..1_000 {
            let agent = format!("{n:04}{}", "x".repeat(4_000));
            keys.add("rule", &agent, &mut buffer);
            keys.add("rule", "often", &mut buffer);
            let held: usize = keys.counts.keys().map(|key| key.len()).sum();
            assert_eq!(held, keys.text_bytes);
            assert!(held <= 100_000, "{held}");
        }
        assert_eq!(keys.by_rule(1)["rule"].worst, [("often", 1_000)]);
        let beyond_the_bound = "y".repeat(200_000);
        keys.add("rule", &beyond_the_bound, &mut buffer);
        assert_eq!(keys.counts.len(), 1, "the largest one takes the place of all others");
    }
}
