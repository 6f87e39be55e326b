//! What every listener shares: the engine, its clock, and the settings that a reload may change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tollgate::ban::Ban;
use tollgate::headers::HeaderStyle;
use tollgate::identity::{Attribute, Key, Source};
use tollgate::request::fields;
use tollgate::{Clock, Engine, Hit, Policy, Time};

use crate::history::History;
use crate::jwt::KeySet;

pub struct Gate {
    pub engine: Engine,
    pub clock: Clock,
    pub live: ArcSwap<Live>,
    /// The claims that rules, settings and bans ask for.
    claims: ArcSwap<BTreeSet<Box<str>>>,
    pub reloads: Reloads,
}

/// Settings that change with the file, beside the policy.
pub struct Live {
    pub headers: HeaderStyle,
    pub jwt: Option<KeySet>,
    pub history: History,
}

#[derive(Default)]
pub struct Reloads {
    pub applied: AtomicU64,
    pub rejected: AtomicU64,
}

impl Gate {
    pub fn new(engine: Engine, live: Live) -> Gate {
        let claims = ArcSwap::from_pointee(claims_of(&engine.policy(), &engine.bans(Time::EPOCH)));
        let (clock, live) = (Clock::new(), ArcSwap::from_pointee(live));
        Gate { engine, clock, live, claims, reloads: Reloads::default() }
    }

    /// Puts a new policy and its settings in force. At no instant a rule lacks a claim that it asks for.
    pub fn apply(&self, policy: Policy, live: Live) -> (u64, u64) {
        self.ask_for(claims_of(&policy, &[]));
        self.live.store(Arc::new(live));
        self.engine.apply(policy, self.now())
    }

    /// Bans a key.
    pub fn ban(&self, key: Key, ban: Ban) {
        self.ask_for(key.parts().iter().filter_map(|(attribute, _)| claim(attribute)).collect());
        self.engine.ban(key, ban, self.now());
    }

    /// Adds to the claims that tokens are asked for. One that nobody needs any more does no harm.
    fn ask_for(&self, claims: BTreeSet<Box<str>>) {
        if !claims.is_subset(&self.claims.load()) {
            self.claims.rcu(|asked| asked.union(&claims).cloned().collect::<BTreeSet<_>>());
        }
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Adds the claims of a verified bearer token; a token that does not verify is nobody's.
    pub fn identify<'a>(&self, hit: Hit<'a>, now: Time) -> Hit<'a> {
        let (live, asked) = (self.live.load(), self.claims.load());
        let Some(keys) = live.jwt.as_ref().filter(|_| !asked.is_empty()) else { return hit };
        let token = hit.given(Source::Header, "authorization").find_map(fields::bearer);
        let Some(Ok(claims)) = token.map(|token| keys.verify(token, now.secs())) else { return hit };
        asked.iter().fold(hit, |hit, name| match claims.get(name) {
            Some(value) => hit.field(Source::Jwt, name.to_string(), value.into_owned()),
            None => hit,
        })
    }
}

impl Reloads {
    pub fn count(&self) -> (u64, u64) {
        (self.applied.load(Ordering::Relaxed), self.rejected.load(Ordering::Relaxed))
    }
}

/// The claims that a policy and bans name.
fn claims_of(policy: &Policy, bans: &[(Key, Ban)]) -> BTreeSet<Box<str>> {
    let mut claims = BTreeSet::new();
    policy.for_each_attribute(|attribute| claims.extend(claim(attribute)));
    let banned = bans.iter().flat_map(|(key, _)| key.parts());
    claims.extend(banned.filter_map(|(attribute, _)| claim(attribute)));
    claims
}

fn claim(attribute: &Attribute) -> Option<Box<str>> {
    match attribute {
        Attribute::Field(Source::Jwt, name) => Some(name.clone()),
        _ => None,
    }
}
