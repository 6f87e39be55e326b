//! What every listener shares: the engine, its clock, and the settings that a reload may change.

use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tollgate::headers::HeaderStyle;
use tollgate::identity::{Attribute, Source};
use tollgate::request::fields;
use tollgate::{Clock, Engine, Hit, Policy, Time};

use crate::jwt::KeySet;

pub struct Gate {
    pub engine: Engine,
    pub clock: Clock,
    pub live: ArcSwap<Live>,
    pub reloads: Reloads,
}

/// Settings that change with the file, beside the policy.
pub struct Live {
    pub headers: HeaderStyle,
    pub jwt: Option<KeySet>,
    /// The claims that rules ask for.
    pub claims: Vec<Box<str>>,
    /// The configuration in force, as it was written.
    pub text: String,
}

#[derive(Default)]
pub struct Reloads {
    pub applied: AtomicU64,
    pub rejected: AtomicU64,
}

impl Gate {
    pub fn new(engine: Engine, live: Live) -> Gate {
        Gate { engine, clock: Clock::new(), live: ArcSwap::from_pointee(live), reloads: Reloads::default() }
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Adds the claims of a verified bearer token; a token that does not verify is nobody's.
    pub fn identify<'a>(&self, hit: Hit<'a>, now: Time) -> Hit<'a> {
        let live = self.live.load();
        let Some(keys) = live.jwt.as_ref().filter(|_| !live.claims.is_empty()) else { return hit };
        let token = hit.given(Source::Header, "authorization").find_map(fields::bearer);
        let Some(Ok(claims)) = token.map(|token| keys.verify(token, now.secs())) else { return hit };
        live.claims.iter().fold(hit, |hit, name| match claims.get(name) {
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

/// The claims that a policy's rules and settings name.
pub fn claims_of(policy: &Policy) -> Vec<Box<str>> {
    let mut claims: Vec<Box<str>> = Vec::new();
    policy.for_each_attribute(|attribute| {
        if let Attribute::Field(Source::Jwt, name) = attribute
            && !claims.contains(name)
        {
            claims.push(name.clone());
        }
    });
    claims
}
