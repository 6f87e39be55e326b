//! The fields that the policy in force, its settings and the bans need of a request.
//!
//! A transport extracts these fields and no others.

use std::collections::BTreeSet;

use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE, HeaderName};

use crate::hit::{self, Hit};
use crate::identity::{Attribute, FieldSource, Key};
use crate::policy::PolicySnapshot;
use crate::rule::Rule;

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct FieldSelection {
    /// Claims of a verified token.
    pub claims: BTreeSet<Box<str>>,
    pub headers: Vec<HeaderName>,
    /// Fields of the body: `json:` or `form:`.
    pub body: BTreeSet<(FieldSource, Box<str>)>,
    /// Attributes that a caller passes. Transports take all of them, a log has other fields as well.
    pub attributes: BTreeSet<Box<str>>,
}

impl FieldSelection {
    /// The fields that a policy and bans name.
    pub fn of_policy(policy: &PolicySnapshot, bans: &[Attribute]) -> FieldSelection {
        let mut selection = FieldSelection::default();
        policy.attributes().for_each(|attribute| selection.add(attribute));
        bans.iter().for_each(|attribute| selection.add(attribute));
        selection
    }

    pub fn of_rule(rule: &Rule) -> FieldSelection {
        let mut selection = FieldSelection::default();
        rule.all_attributes().for_each(|attribute| selection.add(attribute));
        selection
    }

    pub fn of_key(key: &Key) -> FieldSelection {
        let mut selection = FieldSelection::default();
        key.parts().iter().for_each(|(attribute, _)| selection.add(attribute));
        selection
    }

    pub fn of_attribute(attribute: &Attribute) -> FieldSelection {
        let mut selection = FieldSelection::default();
        selection.add(attribute);
        selection
    }

    fn add(&mut self, attribute: &Attribute) {
        let Attribute::Field(source, name) = attribute else { return };
        match source {
            FieldSource::Header => self.headers.extend(HeaderName::from_bytes(name.as_bytes()).ok()),
            FieldSource::Cookie => self.headers.push(COOKIE),
            FieldSource::Jwt => {
                self.headers.push(AUTHORIZATION);
                self.claims.insert(name.clone());
            }
            FieldSource::Json | FieldSource::Form => _ = self.body.insert((*source, name.clone())),
            FieldSource::Attr => _ = self.attributes.insert(name.clone()),
            FieldSource::Query => {}
        }
        self.headers.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        self.headers.dedup();
    }

    /// Adds the selected headers of a request, with all their values, to its hit.
    #[inline]
    pub fn add_headers<'r>(&'r self, mut hit: Hit<'r>, headers: &'r HeaderMap) -> Hit<'r> {
        self.write_headers(&mut hit, headers);
        hit
    }

    /// As [`add_headers`](Self::add_headers), where the hit is.
    #[inline]
    pub fn write_headers<'r>(&'r self, hit: &mut Hit<'r>, headers: &'r HeaderMap) {
        for name in &self.headers {
            for value in headers.get_all(name) {
                let value = String::from_utf8_lossy(value.as_bytes());
                hit::push_field(hit, FieldSource::Header, name.as_str(), value);
            }
        }
    }

    pub fn covers(&self, other: &FieldSelection) -> bool {
        other.claims.is_subset(&self.claims)
            && other.body.is_subset(&self.body)
            && other.attributes.is_subset(&self.attributes)
            && other.headers.iter().all(|name| self.headers.contains(name))
    }

    pub fn union(&self, other: &FieldSelection) -> FieldSelection {
        let mut both = self.clone();
        both.claims.extend(other.claims.iter().cloned());
        both.body.extend(other.body.iter().cloned());
        both.attributes.extend(other.attributes.iter().cloned());
        both.headers.extend(other.headers.iter().cloned());
        both.headers.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        both.headers.dedup();
        both
    }
}
