//! The limit of a descriptor.

use super::tree::{ConfiguredLimit, DescriptorNode, Level};
use crate::envoy::Entry;
use crate::envoy::hit::counter_key;

/// A limit, and the counter of the descriptor under it.
#[derive(Debug)]
pub struct FoundLimit<'c> {
    pub limit: &'c ConfiguredLimit,
    pub counter: String,
}

impl Level {
    /// The limit at exactly the depth of the descriptor. At each level an exact value is preferred to a wildcard, the
    /// first of several wildcards to the others, and these to the bare key.
    pub fn find(&self, entries: &[Entry<'_>]) -> Option<FoundLimit<'_>> {
        let mut level = self;
        let mut nodes: Vec<&DescriptorNode> = Vec::with_capacity(entries.len());
        for entry in entries {
            let node = level.node(entry)?;
            level = &node.next;
            nodes.push(node);
        }
        let limit = nodes.last()?.limit.as_ref()?;
        let parts = entries.iter().zip(&nodes).map(|(entry, node)| {
            let value = if node.is_shared { &*node.value } else { entry.value.as_ref() };
            (entry.key.as_ref(), value)
        });
        Some(FoundLimit { limit, counter: counter_key(parts) })
    }

    fn node(&self, entry: &Entry<'_>) -> Option<&DescriptorNode> {
        let nodes = self.keys.get(entry.key.as_ref())?;
        let value = entry.value.as_ref();
        let wildcard = || nodes.wildcards.iter().find(|(glob, _)| glob.matches(value)).map(|(_, node)| node);
        nodes.exact.get(value).or_else(wildcard).or(nodes.bare.as_deref())
    }
}
