//! The keys with the most decisions of several nodes together.
//!
//! A key that a node does not list by its text may have had as many decisions there as that node's `unlisted` says
//! (`bounded_sum`). Masked keys have another mark on each node and cannot be added up: they are listed for each node.

use std::collections::HashMap;

use super::bounded_sum::BoundedSum;
use super::key_text::has_mark;
use super::top_keys::{TopKey, TopList};

/// Merges the lists of nodes, each with the node's name. The keys are not sorted.
pub fn merge_tops(lists: Vec<(String, TopList)>) -> TopList {
    let unlisted: u64 = lists.iter().map(|(_, list)| list.unlisted).sum();
    let from = lists.iter().map(|(_, list)| list.from).min().unwrap_or(0);
    let mut keys = Vec::new();
    let mut sums: HashMap<(Option<String>, String), BoundedSum> = HashMap::new();
    for (node, list) in lists {
        for key in list.keys {
            if has_mark(&key.key) {
                keys.push(TopKey { node: Some(node.clone()), ..key });
                continue;
            }
            sums.entry((key.rule, key.key)).or_default().add(key.count, key.error, list.unlisted);
        }
    }
    keys.extend(sums.into_iter().map(|((rule, key), sum)| {
        let (count, error) = sum.bounds(unlisted);
        TopKey { rule, key, count, error, node: None }
    }));
    TopList { from, keys, unlisted }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use tollgate::internal::rule::RuleId;

    use super::super::space_saving::CAPACITY;
    use super::super::top_keys::{KeyWeight, TopKeys, TopOutcome, TopWindow};
    use super::*;

    const START: u64 = 1_800_000_000;

    /// The decisions of one node: how many keys there are, how many decisions, and from which seed.
    #[derive(Clone, Debug)]
    struct Traffic {
        keys: u64,
        decisions: u32,
        seed: u64,
    }

    /// Counts the decisions of a node in its sketches and in `truth`. Fingerprints differ from node to node, and some
    /// keys have no text yet.
    fn node(traffic: &Traffic, truth: &mut HashMap<String, u64>, limit: usize) -> TopList {
        let mut random = fastrand::Rng::with_seed(traffic.seed);
        let mut top = TopKeys::new(START);
        let rule = RuleId::new("login").expect("a valid id");
        for n in 0..traffic.decisions {
            if n == traffic.decisions / 2 {
                top.advance(START + 60);
            }
            // The lower keys are frequent, as those of real clients.
            let key = (random.f64().powi(3) * traffic.keys as f64) as u64;
            let text = format!("ip:{key}");
            *truth.entry(text.clone()).or_default() += 1;
            let text = (random.u8(..4) > 0).then(|| Arc::from(text));
            let fingerprint = (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ traffic.seed;
            let outcome = TopOutcome::Denied;
            top.add(&KeyWeight { fingerprint, rule: Some(&rule), text: text.as_ref(), outcome, weight: 1 });
        }
        top.top(TopOutcome::Denied, TopWindow::Minute, None, limit)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Also where a key is not listed by every node, since its list is short, its sketch is full, or its text is not
        /// known there.
        #[test]
        fn the_true_sum_of_all_nodes_is_within_the_bounds(
            nodes in prop::collection::vec(
                (1..8 * CAPACITY as u64, 0..20_000u32, any::<u64>())
                    .prop_map(|(keys, decisions, seed)| Traffic { keys, decisions, seed }),
                1..5,
            ),
            limit in 1..1_500usize,
            shown in 1..200usize,
        ) {
            let mut truth = HashMap::new();
            let lists = nodes.iter().enumerate();
            let lists: Vec<_> =
                lists.map(|(n, traffic)| (n.to_string(), node(traffic, &mut truth, limit))).collect();
            let mut merged = merge_tops(lists);
            merged.truncate(shown);
            prop_assert!(merged.keys.len() <= shown);
            let mut listed = std::collections::HashSet::new();
            for key in merged.keys.iter().filter(|key| key.node.is_none()) {
                let count = truth[&key.key];
                prop_assert!(
                    (key.count - key.error..=key.count).contains(&count),
                    "{count} is not within {key:?}"
                );
                listed.insert(key.key.clone());
            }
            for (key, count) in truth.iter().filter(|(key, _)| !listed.contains(*key)) {
                prop_assert!(*count <= merged.unlisted, "{key} has {count}, more than {}", merged.unlisted);
            }
        }
    }

    #[test]
    fn keys_with_a_mark_are_listed_for_each_node() {
        let list = |mark: &str, count| TopList {
            from: 60,
            keys: vec![
                TopKey { rule: None, key: format!("email:#{mark}"), count, error: 0, node: None },
                TopKey { rule: None, key: "user:a#b".to_owned(), count, error: 1, node: None },
            ],
            unlisted: 0,
        };
        let lists = [("a", list("0000000000000abc", 5)), ("b", list("0000000000000def", 7))];
        let mut merged = merge_tops(lists.map(|(node, list)| (node.to_owned(), list)).to_vec());
        merged.truncate(10);
        let shown: Vec<_> =
            merged.keys.iter().map(|key| (&*key.key, key.count, key.error, key.node.as_deref())).collect();
        let expected = [
            ("user:a#b", 12, 2, None),
            ("email:#0000000000000def", 7, 0, Some("b")),
            ("email:#0000000000000abc", 5, 0, Some("a")),
        ];
        assert_eq!(shown, expected);
    }
}
