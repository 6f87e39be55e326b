//! Which nodes charged, and whether what a key was charged on several nodes can be added up.

use std::collections::BTreeSet;

use tollgate::internal::engine::LogKeys;

use crate::cli::out::pluralize;
use crate::config::Config;
use crate::decision_log::Sample;

/// Where the configuration keeps counters.
pub enum Counters {
    /// Each node has its own.
    Memory,
    Central {
        store: String,
        /// How many nodes share them, if it is stated.
        nodes: Option<u64>,
        /// Whether each node logs a percentage of the keys, selected by its own marks.
        is_sampled_by_node: bool,
    },
    /// The rules come without a configuration.
    Unknown,
}

impl Counters {
    pub fn of(config: &Config) -> Counters {
        let Some(store) = &config.store else { return Counters::Memory };
        let is_sampled = matches!(&config.decision_log, Some(log) if matches!(log.sample, Sample::Keys(_)));
        Counters::Central {
            store: store.name.clone(),
            nodes: store.nodes,
            is_sampled_by_node: is_sampled && config.log_keys == LogKeys::Redacted,
        }
    }
}

/// The nodes of a log, and how they mark keys.
#[derive(Default)]
pub struct Origins {
    nodes: BTreeSet<Box<str>>,
    /// The ids of the secrets of marks that nodes share.
    fleet_secrets: BTreeSet<Box<str>>,
    /// Charges with a mark of their node.
    with_node_mark: u64,
    /// Charges of versions that did not name the node.
    without_node: u64,
}

impl Origins {
    /// Adds a charge.
    pub fn add(&mut self, node: Option<&str>, key: &str) {
        match node {
            Some(node) => insert(&mut self.nodes, node),
            None => self.without_node += 1,
        }
        match key.split_once(':') {
            Some((secret, _)) => insert(&mut self.fleet_secrets, secret),
            None => self.with_node_mark += 1,
        }
    }

    /// What is not wrong, and limits what was proven.
    pub fn notes(&self, counters: &Counters) -> Vec<String> {
        let nodes = self.nodes.len() as u64;
        match counters {
            Counters::Memory if nodes > 1 => vec![format!(
                "counters are in memory: each of the {} counts alone, and was checked alone",
                pluralize(nodes, "node")
            )],
            Counters::Unknown if nodes == 1 && self.fleet_secrets.is_empty() => vec![
                "a list of rules does not say where counters are: other nodes are not considered; give the configuration \
                 of the node"
                    .to_owned(),
            ],
            _ => Vec::new(),
        }
    }

    /// Why the charges of a key may be incomplete.
    pub fn unproven(&self, counters: &Counters) -> Vec<String> {
        match counters {
            Counters::Memory if self.fleet_secrets.is_empty() => Vec::new(),
            Counters::Memory => vec![
                "the log is of counters in a central store, and the configuration has them in memory: give the \
                 configuration of the nodes"
                    .to_owned(),
            ],
            Counters::Unknown if self.nodes.len() < 2 && self.fleet_secrets.is_empty() => Vec::new(),
            Counters::Unknown => vec![
                "a list of rules does not say whether the nodes of the log share counters: give their configuration"
                    .to_owned(),
            ],
            Counters::Central { store, nodes, is_sampled_by_node } => {
                let mut open = Vec::new();
                open.extend(self.missing_nodes(store, *nodes));
                open.extend(self.different_marks());
                if *is_sampled_by_node && *nodes != Some(1) {
                    open.push(
                        "with redacted keys a percentage is of other keys on each node: write the log with `sample: all`"
                            .to_owned(),
                    );
                }
                open
            }
        }
    }

    fn missing_nodes(&self, store: &str, nodes: Option<u64>) -> Option<String> {
        let seen = self.nodes.len() as u64;
        let Some(nodes) = nodes else {
            return Some(format!(
                "counters are on {store}, which other nodes may share: set `nodes` to their number, and give the logs of \
                 all of them"
            ));
        };
        if nodes == 1 {
            return None;
        }
        if self.without_node > 0 {
            let charges = pluralize(self.without_node, "charge");
            return Some(format!("{charges} of an older version, which does not name the node"));
        }
        (seen < nodes).then(|| {
            let seen = pluralize(seen, "node");
            format!("the charges are of {seen}, and {nodes} share the counters on {store}: give the logs of all of them")
        })
    }

    /// Marks of one key that differ.
    fn different_marks(&self) -> Option<String> {
        let charges = pluralize(self.with_node_mark, "charge");
        let are_marked_by_nodes = self.with_node_mark > 0;
        match self.fleet_secrets.len() {
            0 if self.nodes.len() > 1 => Some(format!(
                "{charges} of {}, each of which marks keys under a secret of its own, so that what a key used on several \
                 nodes is not added up: set store_secret_file or receipt_key_file to a secret that all nodes share",
                pluralize(self.nodes.len() as u64, "node")
            )),
            0 => None,
            1 if are_marked_by_nodes => Some(format!(
                "{charges} with marks of a node, not of the fleet: made before the nodes shared a secret, or to counters \
                 of the node while the store did not answer (on_store_error: local)"
            )),
            1 => None,
            count => Some(format!(
                "keys are marked under {count} secrets: the nodes do not share one, or it was changed meanwhile"
            )),
        }
    }
}

fn insert(set: &mut BTreeSet<Box<str>>, name: &str) {
    if !set.contains(name) {
        set.insert(name.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLEET: [&str; 2] = ["#aaaaaaaa:0123456789abcdef", "#bbbbbbbb:0123456789abcdef"];
    const NODE: &str = "#0123456789abcdef";

    fn central(nodes: impl Into<Option<u64>>) -> Counters {
        Counters::Central {
            store: "redis://store".to_owned(),
            nodes: nodes.into(),
            is_sampled_by_node: false,
        }
    }

    /// What is not proven by charges of these nodes with these marks.
    fn check(counters: &Counters, charges: &[(&str, &str)]) -> String {
        let mut origins = Origins::default();
        charges.iter().for_each(|(node, key)| origins.add(Some(*node).filter(|node| !node.is_empty()), key));
        origins.unproven(counters).join("\n")
    }

    #[test]
    fn charges_of_all_nodes_under_one_secret_are_complete() {
        assert_eq!(check(&central(2), &[("1", FLEET[0]), ("2", FLEET[0])]), "");
        assert_eq!(check(&central(1), &[("1", NODE)]), "", "one node needs no secret");
        assert_eq!(check(&central(1), &[("", NODE)]), "", "of an older version, too");
        assert_eq!(check(&Counters::Memory, &[("1", NODE), ("2", NODE)]), "", "each counts alone");
        assert_eq!(check(&Counters::Unknown, &[("1", NODE)]), "");
    }

    #[test]
    fn a_central_store_needs_the_logs_of_all_nodes() {
        let unknown = check(&central(None), &[("1", FLEET[0]), ("2", FLEET[0])]);
        assert!(unknown.contains("redis://store, which other nodes may share: set `nodes`"), "{unknown}");
        let missing = check(&central(3), &[("1", FLEET[0]), ("2", FLEET[0])]);
        assert!(missing.contains("of 2 nodes, and 3 share the counters"), "{missing}");
        let unnamed = check(&central(2), &[("", NODE), ("2", NODE)]);
        assert!(unnamed.contains("1 charge of an older version"), "{unnamed}");
        let list = check(&Counters::Unknown, &[("1", NODE), ("2", NODE)]);
        assert!(list.contains("a list of rules does not say"), "{list}");
        let wrong = check(&Counters::Memory, &[("1", FLEET[0])]);
        assert!(wrong.contains("the configuration has them in memory"), "{wrong}");
    }

    #[test]
    fn marks_that_differ_between_nodes_prove_nothing() {
        let own = check(&central(2), &[("1", NODE), ("2", NODE), ("2", NODE)]);
        assert!(
            own.contains("3 charges of 2 nodes, each of which marks keys under a secret of its own"),
            "{own}"
        );
        let mixed = check(&central(1), &[("1", NODE), ("1", FLEET[0])]);
        assert!(mixed.contains("1 charge with marks of a node"), "{mixed}");
        let secrets = check(&central(2), &[("1", FLEET[0]), ("2", FLEET[1])]);
        assert!(secrets.contains("under 2 secrets"), "{secrets}");
        let sampled =
            Counters::Central { store: "redis://store".to_owned(), nodes: Some(2), is_sampled_by_node: true };
        let sampled = check(&sampled, &[("1", FLEET[0]), ("2", FLEET[0])]);
        assert!(sampled.contains("other keys on each node"), "{sampled}");
    }
}
