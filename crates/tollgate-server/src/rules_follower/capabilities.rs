//! What this node supports beside what the library does; a rule may require more.

use tollgate::internal::rule::{OnExceed, Rule};

use crate::config::{Config, StoreConfig, memory};

#[derive(Clone)]
pub struct NodeCapabilities {
    /// The central store, if counters are not in memory.
    store: Option<StoreConfig>,
    memory_bytes: usize,
    /// Whether it is a proxy without a request queue.
    lacks_queue: bool,
}

impl NodeCapabilities {
    pub fn from_config(config: &Config) -> NodeCapabilities {
        let lacks_queue = config.proxy.is_some() && config.queue.is_none();
        NodeCapabilities { store: config.store.clone(), memory_bytes: config.memory_bytes, lacks_queue }
    }

    /// Why a rule cannot be in force here.
    pub(super) fn unsupported_reason(&self, rule: &Rule) -> Option<String> {
        if self.lacks_queue && rule.on_exceed == OnExceed::Queue {
            let why = "on_exceed: queue needs a queue: add queue: {} to the configuration file and restart";
            return Some(why.to_owned());
        }
        match &self.store {
            Some(store) => store.unsupported_reason(rule),
            None => memory::unsupported_reason(self.memory_bytes, rule),
        }
    }
}
