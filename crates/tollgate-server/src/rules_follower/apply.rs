//! Applies items of the rules database: rules and allowed keys to the policy, bans and settings to the engine.
//!
//! An item that this node cannot use is left out with its reason; all others are applied.

use tollgate::Time;
use tollgate::internal::Enforce;
use tollgate::internal::document::{self, Problems};
use tollgate::internal::identity::Key;
use tollgate::internal::policy::{self, PolicyDraft, PolicySnapshot};
use tollgate::internal::rule::{OnExceed, Rule, Warnings, parse};
use tollgate_stores::rules::{ItemChange, ItemId, ItemKind, parse_ban};

use crate::config::{Config, StoreConfig, memory};
use crate::gate::{FieldSelection, Gate};
use crate::notice;
use crate::ramp::RampInForce;
use crate::rules_follower::RulesFollower;

/// A policy update from items of the database.
pub(super) struct PolicyUpdate<'a> {
    gate: &'a Gate,
    capabilities: &'a NodeCapabilities,
    draft: PolicyDraft,
    is_changed: bool,
    now: Time,
    warnings: Warnings,
    pub(super) ramp: Option<RampInForce>,
    pub(super) source: UpdateSource,
}

/// Where the items of an update come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UpdateSource {
    /// All items: rules first, then settings.
    Load,
    /// Changes, in their order.
    Changes,
}

impl<'a> PolicyUpdate<'a> {
    pub(super) fn new(
        gate: &'a Gate,
        capabilities: &'a NodeCapabilities,
        draft: PolicyDraft,
        now: Time,
    ) -> PolicyUpdate<'a> {
        PolicyUpdate {
            gate,
            capabilities,
            draft,
            is_changed: false,
            now,
            warnings: Warnings::default(),
            ramp: None,
            source: UpdateSource::Load,
        }
    }

    /// For changes that follow the items in force.
    pub(super) fn of_changes(self, ramp: Option<RampInForce>) -> PolicyUpdate<'a> {
        PolicyUpdate { ramp, source: UpdateSource::Changes, ..self }
    }

    /// The ramp that is in force with the draft.
    pub(super) fn take_ramp(&mut self) -> Option<RampInForce> {
        self.ramp.take()
    }

    /// Applies an item, or returns why not.
    pub(super) fn put(&mut self, item: &ItemId, text: &str) -> Result<(), String> {
        let put = match item.kind {
            ItemKind::Rule => self.put_rule_text(&item.name, text),
            ItemKind::Allow => parse_key(item).and_then(|key| {
                self.gate.extend_field_selection(&FieldSelection::of_key(&key));
                self.change(policy::PolicyChange::Allow(key))
            }),
            ItemKind::Ban => {
                put_ban(self.gate, item, text, |key, ban| self.gate.engine.put_ban(key, ban, self.now))
            }
            ItemKind::Setting if *item == ItemId::ramp() => self.set_ramp(text),
            ItemKind::Setting => put_setting(self.gate, item, text),
        };
        self.report_rejected(item, put)
    }

    /// Applies a rule that was parsed already, or returns why not.
    pub(super) fn put_parsed(&mut self, item: &ItemId, rule: Result<Rule, String>) -> Result<(), String> {
        let put = rule.and_then(|rule| self.put_rule(rule));
        self.report_rejected(item, put)
    }

    /// Logs an item that is not in force, and removes its earlier version.
    fn report_rejected(&mut self, item: &ItemId, put: Result<(), String>) -> Result<(), String> {
        if let Err(why) = &put {
            // The name may be a key, which must not be logged.
            let name = if item.kind == ItemKind::Rule { &*item.name } else { "" };
            tracing::error!("rules database: {} {name} is not in force here: {why}", item.kind.name());
            self.remove_item(item).ok();
        }
        put
    }

    pub(super) fn put_rule(&mut self, rule: Rule) -> Result<(), String> {
        if let Some(why) = unsupported_reason(self.draft.policy(), self.capabilities, &rule) {
            return Err(why);
        }
        self.gate.extend_field_selection(&FieldSelection::of_rule(&rule));
        self.warnings.check(&rule, &self.draft.policy().settings().identity);
        self.change(policy::PolicyChange::Put(rule))
    }

    /// Applies a removal. The removal of a ban in force is a lift, which is published to the central store.
    pub(super) fn remove(&mut self, item: &ItemId) -> Result<(), String> {
        if item.kind == ItemKind::Rule {
            return self.remove_rule(&item.name);
        }
        if item.kind != ItemKind::Ban {
            return self.remove_item(item);
        }
        let key = parse_key(item)?;
        let lifted = self.gate.engine.remove_ban(key.clone(), self.now);
        if let (Some(_), Some(central)) = (lifted, self.gate.central.get()) {
            central.bans.forgive_later(self.gate.ban_key(key), self.now);
        }
        Ok(())
    }

    /// Removes an item; items of the file stay.
    pub(super) fn remove_item(&mut self, item: &ItemId) -> Result<(), String> {
        match item.kind {
            ItemKind::Rule => {
                let existing = self.draft.policy().rule(&item.name).filter(|rule| rule.is_added());
                match existing.map(|rule| rule.id.clone()) {
                    Some(id) => self.change(policy::PolicyChange::Remove(id)),
                    None => Ok(()),
                }
            }
            ItemKind::Allow => self.change(policy::PolicyChange::Disallow(parse_key(item)?)),
            ItemKind::Ban => {
                self.gate.engine.remove_ban(parse_key(item)?, self.now);
                Ok(())
            }
            ItemKind::Setting if *item == ItemId::ramp() => {
                self.end_ramp();
                Ok(())
            }
            ItemKind::Setting => {
                reset_setting(self.gate, item);
                Ok(())
            }
        }
    }

    pub(super) fn policy(&self) -> &PolicySnapshot {
        self.draft.policy()
    }

    fn change(&mut self, change: policy::PolicyChange) -> Result<(), String> {
        self.draft.apply(change, self.now).map_err(|error| error.to_string())?;
        self.is_changed = true;
        Ok(())
    }

    /// The updated draft; `None` if the policy did not change.
    pub(super) fn finish(self) -> Option<PolicyDraft> {
        notice::log_warnings(self.warnings);
        Some(self.draft).filter(|_| self.is_changed)
    }
}

/// Applies changes in their order.
pub(super) fn apply_changes(follower: &RulesFollower, gate: &Gate, changes: Vec<ItemChange>) {
    let now = gate.now();
    let last = changes.last().map(|change| change.version).unwrap_or_default();
    let revised = gate.engine.revise(|old| {
        let ramp = follower.ramp().map(|ramp| RampInForce::clone(&ramp));
        let update = PolicyUpdate::new(gate, &follower.capabilities, old.draft(), now);
        let mut update = update.of_changes(ramp);
        for ItemChange { item, text, version, .. } in changes {
            if follower.state().pending_edits.has_newer(&item, version) {
                continue;
            }
            let outcome = match text {
                Some(text) => update.put(&item, &text),
                None => update.remove(&item),
            };
            let left_out = &mut follower.state().left_out;
            match outcome {
                Err(why) => left_out.insert(item, why),
                Ok(()) => left_out.remove(&item),
            };
        }
        follower.state().pending_edits.loaded(last);
        follower.set_ramp(update.take_ramp());
        update.finish().map(PolicyDraft::finish).ok_or(())
    });
    if let Ok((before, after)) = revised {
        tracing::info!("rules generation {before} → {after}");
    }
}

/// Why a rule of the database cannot be in force on this node.
pub(super) fn unsupported_reason(
    policy: &PolicySnapshot,
    capabilities: &NodeCapabilities,
    rule: &Rule,
) -> Option<String> {
    if policy.rule(rule.id.as_str()).is_some_and(|existing| !existing.is_added()) {
        return Some(format!("a rule of the configuration file has the id '{}'", rule.id));
    }
    capabilities.unsupported_reason(rule)
}

/// Parses a rule of the database.
pub fn parse_rule(text: &str) -> Result<Rule, Problems> {
    let node = document::read(text)?;
    let mut problems = Problems::new();
    parse::rule(&node, "rule", &mut problems).ok_or(problems)
}

/// Parses a ban and passes it on. The field selection is extended first, so that the ban always has the fields it
/// needs.
pub(super) fn put_ban(
    gate: &Gate,
    item: &ItemId,
    text: &str,
    put: impl FnOnce(Key, tollgate::internal::ban::Ban),
) -> Result<(), String> {
    let key = parse_key(item)?;
    let ban = parse_ban(text).map_err(|error| error.to_string())?;
    gate.extend_field_selection(&FieldSelection::of_key(&key));
    put(key, ban);
    Ok(())
}

/// Applies an edit that the database does not have yet.
pub(super) fn put_pending(gate: &Gate, item: &ItemId, text: Option<&str>) {
    let now = gate.now();
    let put = match (item.kind, text) {
        (ItemKind::Ban, Some(text)) => {
            put_ban(gate, item, text, |key, ban| gate.engine.put_ban(key, ban, now))
        }
        (ItemKind::Ban, None) => parse_key(item).map(|key| _ = gate.engine.unban(key, now)),
        (ItemKind::Setting, Some(text)) => put_setting(gate, item, text),
        (ItemKind::Setting, None) => {
            reset_setting(gate, item);
            Ok(())
        }
        (ItemKind::Rule | ItemKind::Allow, _) => Err("it cannot be edited without the database".to_owned()),
    };
    if let Err(why) = put {
        tracing::error!("pending edit of a {} is not in force here: {why}", item.kind.name());
    }
}

fn put_setting(gate: &Gate, item: &ItemId, text: &str) -> Result<(), String> {
    if *item != ItemId::enforce() {
        return Err("this version has no such setting".to_owned());
    }
    let enforce = Enforce::parse(text).ok_or_else(|| format!("'{text}' is not one of on, shadow, off"))?;
    set_enforce(gate, enforce);
    Ok(())
}

pub(super) fn reset_setting(gate: &Gate, item: &ItemId) {
    if *item == ItemId::enforce() {
        set_enforce(gate, Enforce::On);
    }
}

fn set_enforce(gate: &Gate, enforce: Enforce) {
    let before = gate.engine.enforce();
    if enforce != before {
        tracing::warn!("enforce {} → {}", before.name(), enforce.name());
        gate.engine.set_enforce(enforce);
    }
}

fn parse_key(item: &ItemId) -> Result<Key, String> {
    Key::parse(&item.name).map_err(|error| error.to_string())
}

/// What this node supports beside what the library does; a rule may require more.
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
    fn unsupported_reason(&self, rule: &Rule) -> Option<String> {
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
