//! The tree of descriptors of one domain.

use std::collections::{HashMap, HashSet};

use super::glob::Glob;
use crate::envoy::LimitUnit;

/// One level of the tree: what an entry of a descriptor may match, by its key.
#[derive(Default, Debug)]
pub struct Level {
    pub keys: HashMap<Box<str>, KeyNodes>,
}

/// The nodes of one key.
#[derive(Default, Debug)]
pub struct KeyNodes {
    pub exact: HashMap<Box<str>, DescriptorNode>,
    /// In the order of the file.
    pub wildcards: Vec<(Glob, DescriptorNode)>,
    /// The wildcards as they are written.
    pub patterns: HashSet<Box<str>>,
    /// Any other value.
    pub bare: Option<Box<DescriptorNode>>,
}

#[derive(Debug)]
pub struct DescriptorNode {
    /// As it is written; empty for any value.
    pub value: Box<str>,
    pub limit: Option<ConfiguredLimit>,
    /// Whether all values that match its wildcard share one counter.
    pub is_shared: bool,
    pub next: Level,
}

pub type Domain = Level;

#[derive(Clone, Debug)]
pub struct ConfiguredLimit {
    /// The name that `replaces` refers to; may be empty.
    pub name: Box<str>,
    pub replaces: Vec<Box<str>>,
    pub mode: LimitMode,
    pub quantity: Quantity,
    /// The path of its rule.
    pub path: Box<str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quantity {
    Unlimited,
    PerUnit { requests: u32, unit: LimitUnit },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitMode {
    Enforce,
    /// Always OK.
    Shadow,
    /// Reported in the status and in the dynamic metadata; the request passes.
    Quota,
}

impl Level {
    /// All nodes, each with the entries that lead to it.
    pub fn visit<'l>(
        &'l self,
        path: &mut Vec<(&'l str, &'l str)>,
        visit: &mut impl FnMut(&[(&'l str, &'l str)], &'l DescriptorNode),
    ) {
        let mut keys: Vec<_> = self.keys.iter().collect();
        keys.sort_by_key(|(key, _)| *key);
        for (key, nodes) in keys {
            let mut exact: Vec<_> = nodes.exact.values().collect();
            exact.sort_by_key(|node| &node.value);
            let wildcards = nodes.wildcards.iter().map(|(_, node)| node);
            for node in exact.into_iter().chain(wildcards).chain(nodes.bare.as_deref()) {
                path.push((key, &node.value));
                visit(path, node);
                node.next.visit(path, visit);
                path.pop();
            }
        }
    }
}
