//! What the policy in force, its settings and the bans ask of a request.
//!
//! A transport hands over what is asked for and no more: a request may carry much else.

use std::collections::BTreeSet;

use hyper::header::{AUTHORIZATION, COOKIE, HeaderName};
use tollgate::Policy;
use tollgate::identity::{Attribute, Key, Source};
use tollgate::rule::Rule;

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Claims of a verified token.
    pub claims: BTreeSet<Box<str>>,
    pub headers: Vec<HeaderName>,
    /// Fields of the body, as `json:` or `form:`.
    pub body: BTreeSet<(Source, Box<str>)>,
}

impl Asked {
    /// What a policy and bans name.
    pub fn of(policy: &Policy, bans: &[Attribute]) -> Asked {
        let mut asked = Asked::default();
        policy.for_each_attribute(|attribute| asked.add(attribute));
        bans.iter().for_each(|attribute| asked.add(attribute));
        asked
    }

    pub fn of_rule(rule: &Rule) -> Asked {
        let mut asked = Asked::default();
        rule.attributes().for_each(|attribute| asked.add(attribute));
        rule.ban.iter().flat_map(|ban| &ban.key).for_each(|attribute| asked.add(attribute));
        asked
    }

    pub fn of_key(key: &Key) -> Asked {
        let mut asked = Asked::default();
        key.parts().iter().for_each(|(attribute, _)| asked.add(attribute));
        asked
    }

    pub fn of_attribute(attribute: &Attribute) -> Asked {
        let mut asked = Asked::default();
        asked.add(attribute);
        asked
    }

    fn add(&mut self, attribute: &Attribute) {
        let Attribute::Field(source, name) = attribute else { return };
        match source {
            Source::Header => self.headers.extend(HeaderName::from_bytes(name.as_bytes()).ok()),
            Source::Cookie => self.headers.push(COOKIE),
            Source::Jwt => {
                self.headers.push(AUTHORIZATION);
                self.claims.insert(name.clone());
            }
            Source::Json | Source::Form => _ = self.body.insert((*source, name.clone())),
            Source::Query | Source::Attr => {}
        }
        self.headers.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        self.headers.dedup();
    }

    pub fn covers(&self, other: &Asked) -> bool {
        other.claims.is_subset(&self.claims)
            && other.body.is_subset(&self.body)
            && other.headers.iter().all(|name| self.headers.contains(name))
    }

    pub fn and(&self, other: &Asked) -> Asked {
        let mut both = self.clone();
        both.claims.extend(other.claims.iter().cloned());
        both.body.extend(other.body.iter().cloned());
        both.headers.extend(other.headers.iter().cloned());
        both.headers.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        both.headers.dedup();
        both
    }
}
