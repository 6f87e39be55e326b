//! What the database holds, taken into force: rules into the policy, all else into the engine.
//!
//! What does not fit on this node is left out, and why is kept; the rest is taken all the same.

use tollgate::document::{self, Problems};
use tollgate::identity::Key;
use tollgate::policy::{self, Draft, Policy};
use tollgate::rule::{Rule, parse};
use tollgate::{Enforce, Time};
use tollgate_stores::rules::{Change, Item, Kind, Stored, ban_of};

use crate::config::StoreConfig;
use crate::gate::{Asked, Gate};
use crate::rulebook::Rulebook;

/// A policy that takes rules of the database in.
pub(super) struct Taken<'a> {
    gate: &'a Gate,
    store: Option<&'a StoreConfig>,
    draft: Draft,
    is_changed: bool,
}

impl<'a> Taken<'a> {
    pub(super) fn new(gate: &'a Gate, store: Option<&'a StoreConfig>, draft: Draft) -> Taken<'a> {
        Taken { gate, store, draft, is_changed: false }
    }

    /// Takes a rule in, or says why not.
    pub(super) fn put(&mut self, item: &Item, text: &str, now: Time) -> Option<(Item, String)> {
        let why = self.try_put(text, now).err()?;
        tracing::error!("rules database: {item} is not in force here: {why}");
        self.remove(&item.name, now);
        Some((item.clone(), why))
    }

    fn try_put(&mut self, text: &str, now: Time) -> Result<(), String> {
        let rule = read(text).map_err(|problems| problems.to_string())?;
        if let Some(why) = refusal(self.draft.policy(), self.store, &rule) {
            return Err(why);
        }
        let asked = Asked::of_rule(&rule);
        self.draft.make(policy::Change::Put(rule), now).map_err(|error| error.to_string())?;
        self.gate.ask_for(&asked);
        self.is_changed = true;
        Ok(())
    }

    /// Takes a rule out, unless it is the file's.
    pub(super) fn remove(&mut self, id: &str, now: Time) {
        let held = self.draft.policy().rule(id).filter(|rule| rule.is_added());
        if let Some(id) = held.map(|rule| rule.id.clone()) {
            self.draft.make(policy::Change::Remove(id), now).ok(); // to go is always possible
            self.is_changed = true;
        }
    }

    /// What has come of it; `None` if nothing is to be changed.
    pub(super) fn finish(self) -> Option<Draft> {
        Some(self.draft).filter(|_| self.is_changed)
    }
}

/// Why a rule of the database cannot be in force on this node.
pub(super) fn refusal(policy: &Policy, store: Option<&StoreConfig>, rule: &Rule) -> Option<String> {
    if policy.rule(rule.id.as_str()).is_some_and(|held| !held.is_added()) {
        return Some(format!("a rule of the configuration file has the id '{}'", rule.id));
    }
    store.and_then(|store| store.refusal(rule))
}

/// The rule that a text of the database describes.
pub fn read(text: &str) -> Result<Rule, Problems> {
    let (node, mut problems) = (document::read(text)?, Problems::new());
    parse::rule(&node, "rule", &mut problems).ok_or(problems)
}

/// Takes changes in, in their order.
pub(super) fn changes(rulebook: &Rulebook, gate: &Gate, changes: Vec<Change>) {
    let now = gate.now();
    let (rules, others): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|change| change.item.kind == Kind::Rule);
    if !rules.is_empty() {
        let revised = gate.engine.revise(|old| revised(rulebook, gate, old, rules, now).ok_or(()), now);
        if let Ok((before, after)) = revised {
            tracing::info!("rules generation {before} → {after}");
        }
    }
    for Change { item, text, .. } in others {
        let taken = match text {
            Some(text) => put_other(gate, &item, &text, now),
            None => remove_other(gate, &item, now),
        };
        note(rulebook, item, taken.err());
    }
}

fn revised(rulebook: &Rulebook, gate: &Gate, old: &Policy, rules: Vec<Change>, now: Time) -> Option<Policy> {
    let mut taken = Taken::new(gate, rulebook.store.as_ref(), old.draft());
    for Change { item, text, .. } in rules {
        let why = match text {
            Some(text) => taken.put(&item, &text, now).map(|(_, why)| why),
            None => {
                taken.remove(&item.name, now);
                None
            }
        };
        note(rulebook, item, why);
    }
    taken.finish().map(Draft::finish)
}

fn note(rulebook: &Rulebook, item: Item, why: Option<String>) {
    let left_out = &mut rulebook.state().left_out;
    match why {
        Some(why) => left_out.insert(item, why),
        None => left_out.remove(&item),
    };
}

/// What is not a rule, of a whole load.
#[derive(Default)]
pub(super) struct Others(Vec<Stored>);

impl Others {
    pub(super) fn put(&mut self, stored: Stored) {
        self.0.push(stored);
    }

    /// Takes all of it in; says what does not fit.
    pub(super) fn replace(self, gate: &Gate) -> Vec<(Item, String)> {
        let now = gate.now();
        if !self.0.iter().any(|stored| stored.item == Item::enforce()) {
            set_enforce(gate, Enforce::On);
        }
        let left_out = self.0.into_iter().filter_map(|stored| {
            let why = put_other(gate, &stored.item, &stored.text, now).err()?;
            tracing::error!("rules database: {} is not in force here: {why}", stored.item.kind.name());
            Some((stored.item, why))
        });
        left_out.collect()
    }
}

fn put_other(gate: &Gate, item: &Item, text: &str, now: Time) -> Result<(), String> {
    match item.kind {
        Kind::Ban => {
            let ban = ban_of(text).map_err(|error| error.to_string())?;
            if ban.until > now {
                gate.ban(key(item)?, ban);
            }
        }
        Kind::Setting if *item == Item::enforce() => {
            let enforce =
                Enforce::parse(text).ok_or_else(|| format!("'{text}' is none of on, shadow, off"))?;
            set_enforce(gate, enforce);
        }
        Kind::Rule | Kind::Allow | Kind::Setting => {}
    }
    Ok(())
}

fn set_enforce(gate: &Gate, enforce: Enforce) {
    let before = gate.engine.enforce();
    if enforce != before {
        tracing::warn!("enforce {} → {}", before.name(), enforce.name());
        gate.engine.set_enforce(enforce);
    }
}

fn remove_other(gate: &Gate, item: &Item, now: Time) -> Result<(), String> {
    match item.kind {
        Kind::Ban => _ = gate.engine.unban(key(item)?, now),
        Kind::Setting if *item == Item::enforce() => set_enforce(gate, Enforce::On),
        Kind::Rule | Kind::Allow | Kind::Setting => {}
    }
    Ok(())
}

fn key(item: &Item) -> Result<Key, String> {
    Key::parse(&item.name).map_err(|error| error.to_string())
}
