//! What the database holds, taken into force: rules and allowed keys into the policy, the rest into the engine.
//!
//! What does not fit on this node is left out, and why is kept; all else is taken all the same.

use tollgate::document::{self, Problems};
use tollgate::identity::Key;
use tollgate::policy::{self, Draft, Policy};
use tollgate::rule::{Rule, Warnings, parse};
use tollgate::{Enforce, Time};
use tollgate_stores::rules::{Change, Item, Kind, ban_of};

use crate::gate::{Asked, Gate};
use crate::notice;
use crate::rulebook::{Means, Rulebook};

/// A policy that takes in what the database holds.
pub(super) struct Taken<'a> {
    gate: &'a Gate,
    means: &'a Means,
    draft: Draft,
    is_changed: bool,
    now: Time,
    warnings: Warnings,
}

impl<'a> Taken<'a> {
    pub(super) fn new(gate: &'a Gate, means: &'a Means, draft: Draft, now: Time) -> Taken<'a> {
        Taken { gate, means, draft, is_changed: false, now, warnings: Warnings::default() }
    }

    /// Takes a thing in, or says why not.
    pub(super) fn put(&mut self, item: &Item, text: &str) -> Result<(), String> {
        let put = match item.kind {
            Kind::Rule => {
                read(text).map_err(|problems| problems.to_string()).and_then(|rule| self.put_rule(rule))
            }
            Kind::Allow => key(item).and_then(|key| {
                self.gate.ask_for(&Asked::of_key(&key));
                self.make(policy::Change::Allow(key))
            }),
            Kind::Ban => {
                put_ban(self.gate, item, text, |key, ban| self.gate.engine.put_ban(key, ban, self.now))
            }
            Kind::Setting => put_setting(self.gate, item, text),
        };
        self.told(item, put)
    }

    /// Takes a rule in that was read already, or says why not.
    pub(super) fn put_parsed(&mut self, item: &Item, rule: Result<Rule, String>) -> Result<(), String> {
        let put = rule.and_then(|rule| self.put_rule(rule));
        self.told(item, put)
    }

    /// Logs what is not in force, and takes out what was there before.
    fn told(&mut self, item: &Item, put: Result<(), String>) -> Result<(), String> {
        if let Err(why) = &put {
            // The name may be a key, which is not for the log.
            let name = if item.kind == Kind::Rule { &*item.name } else { "" };
            tracing::error!("rules database: {} {name} is not in force here: {why}", item.kind.name());
            self.leave_out(item).ok();
        }
        put
    }

    fn put_rule(&mut self, rule: Rule) -> Result<(), String> {
        if let Some(why) = refusal(self.draft.policy(), self.means, &rule) {
            return Err(why);
        }
        self.gate.ask_for(&Asked::of_rule(&rule));
        self.warnings.look_at(&rule);
        self.make(policy::Change::Put(rule))
    }

    /// Follows a removal. Of a ban in force it is a lift, which a store that nodes share is told of.
    pub(super) fn remove(&mut self, item: &Item) -> Result<(), String> {
        if item.kind != Kind::Ban {
            return self.leave_out(item);
        }
        let key = key(item)?;
        let lifted = self.gate.engine.remove_ban(key.clone(), self.now);
        if let (Some(_), Some(central)) = (lifted, self.gate.central.get()) {
            central.bans.forgive_later(self.gate.banned_as(key), self.now);
        }
        Ok(())
    }

    /// Takes a thing out; what the file says stays.
    fn leave_out(&mut self, item: &Item) -> Result<(), String> {
        match item.kind {
            Kind::Rule => {
                let held = self.draft.policy().rule(&item.name).filter(|rule| rule.is_added());
                match held.map(|rule| rule.id.clone()) {
                    Some(id) => self.make(policy::Change::Remove(id)),
                    None => Ok(()),
                }
            }
            Kind::Allow => self.make(policy::Change::Disallow(key(item)?)),
            Kind::Ban => {
                self.gate.engine.remove_ban(key(item)?, self.now);
                Ok(())
            }
            Kind::Setting => {
                unset(self.gate, item);
                Ok(())
            }
        }
    }

    fn make(&mut self, change: policy::Change) -> Result<(), String> {
        self.draft.make(change, self.now).map_err(|error| error.to_string())?;
        self.is_changed = true;
        Ok(())
    }

    /// What has come of it; `None` if the policy stays as it is.
    pub(super) fn finish(self) -> Option<Draft> {
        notice::warn(self.warnings);
        Some(self.draft).filter(|_| self.is_changed)
    }
}

/// Takes changes in, in their order.
pub(super) fn changes(rulebook: &Rulebook, gate: &Gate, changes: Vec<Change>) {
    let now = gate.now();
    let revised = gate.engine.revise(|old| {
        let mut taken = Taken::new(gate, &rulebook.means, old.draft(), now);
        for Change { item, text, .. } in changes {
            let outcome = match text {
                Some(text) => taken.put(&item, &text),
                None => taken.remove(&item),
            };
            let left_out = &mut rulebook.state().left_out;
            match outcome {
                Err(why) => left_out.insert(item, why),
                Ok(()) => left_out.remove(&item),
            };
        }
        taken.finish().map(Draft::finish).ok_or(())
    });
    if let Ok((before, after)) = revised {
        tracing::info!("rules generation {before} → {after}");
    }
}

/// Why a rule of the database cannot be in force on this node.
pub(super) fn refusal(policy: &Policy, means: &Means, rule: &Rule) -> Option<String> {
    if policy.rule(rule.id.as_str()).is_some_and(|held| !held.is_added()) {
        return Some(format!("a rule of the configuration file has the id '{}'", rule.id));
    }
    means.refusal(rule)
}

/// The rule that a text of the database describes.
pub fn read(text: &str) -> Result<Rule, Problems> {
    let (node, mut problems) = (document::read(text)?, Problems::new());
    parse::rule(&node, "rule", &mut problems).ok_or(problems)
}

/// Reads a ban and hands it on. At no instant a request is not asked for what the ban names.
pub(super) fn put_ban(
    gate: &Gate,
    item: &Item,
    text: &str,
    put: impl FnOnce(Key, tollgate::ban::Ban),
) -> Result<(), String> {
    let (key, ban) = (key(item)?, ban_of(text).map_err(|error| error.to_string())?);
    gate.ask_for(&Asked::of_key(&key));
    put(key, ban);
    Ok(())
}

fn put_setting(gate: &Gate, item: &Item, text: &str) -> Result<(), String> {
    if *item != Item::enforce() {
        return Err("this version does not know the setting".to_owned());
    }
    let enforce = Enforce::parse(text).ok_or_else(|| format!("'{text}' is none of on, shadow, off"))?;
    set_enforce(gate, enforce);
    Ok(())
}

pub(super) fn unset(gate: &Gate, item: &Item) {
    if *item == Item::enforce() {
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

fn key(item: &Item) -> Result<Key, String> {
    Key::parse(&item.name).map_err(|error| error.to_string())
}
