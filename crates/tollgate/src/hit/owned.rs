//! A copy of a hit that outlives its request, to decide it again.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::net::IpAddr;

use crate::hit::{Hit, HitField};
use crate::identity::{Attribute, FieldSource};
use crate::request::Target;

/// A field's source, name and value.
type OwnedField = (FieldSource, Box<str>, Box<str>);

/// A hit with texts of its own.
#[derive(Clone, Debug)]
pub struct OwnedHit {
    domain: Box<str>,
    method: Box<str>,
    host: Box<str>,
    path: Box<str>,
    query: Option<Box<str>>,
    ip: Option<IpAddr>,
    user: Option<Box<str>>,
    email: Option<Box<str>>,
    mac: Option<Box<str>>,
    api_key: Option<Box<str>>,
    fields: Box<[OwnedField]>,
    overfull_sources: Box<[FieldSource]>,
    cost: u64,
}

impl OwnedHit {
    pub fn of(hit: &Hit<'_>) -> OwnedHit {
        let copy = |text: &Option<Cow<'_, str>>| text.as_deref().map(Box::from);
        let target = hit.target();
        let fields =
            hit.fields.iter().map(|field| (field.source, (*field.name).into(), (*field.value).into()));
        OwnedHit {
            domain: hit.domain_name().into(),
            method: target.method().into(),
            host: target.host().into(),
            path: target.path().into(),
            query: target.query().map(Box::from),
            ip: hit.address(),
            user: copy(&hit.user),
            email: copy(&hit.email),
            mac: copy(&hit.mac),
            api_key: copy(&hit.api_key),
            fields: fields.collect(),
            overfull_sources: hit.overfull_sources.iter().copied().collect(),
            cost: hit.cost,
        }
    }

    pub fn hit(&self) -> Hit<'_> {
        let target = Target::canonical(&self.method, &self.host, &self.path, self.query.as_deref());
        let mut hit = Hit::with_target(target).domain(&*self.domain).cost(self.cost);
        hit.ip = self.ip;
        hit.user = borrow(&self.user);
        hit.email = borrow(&self.email);
        hit.mac = borrow(&self.mac);
        hit.api_key = borrow(&self.api_key);
        hit.fields = self.fields.iter().map(borrow_field).collect();
        hit.overfull_sources = self.overfull_sources.iter().copied().collect();
        hit
    }

    /// Bytes of it, texts included.
    pub fn bytes(&self) -> usize {
        let given = [&self.user, &self.email, &self.mac, &self.api_key, &self.query];
        let given: usize = given.into_iter().flatten().map(|text| text.len()).sum();
        let fields =
            self.fields.iter().map(|(_, name, value)| size_of::<OwnedField>() + name.len() + value.len());
        let target = self.domain.len() + self.method.len() + self.host.len() + self.path.len();
        size_of::<OwnedHit>() + given + target + fields.sum::<usize>()
    }
}

fn borrow(text: &Option<Box<str>>) -> Option<Cow<'_, str>> {
    text.as_deref().map(Cow::Borrowed)
}

fn borrow_field((source, name, value): &OwnedField) -> HitField<'_> {
    HitField { source: *source, name: Cow::Borrowed(name), value: Cow::Borrowed(value) }
}

/// What identifies the client of a hit best: its user, its API key, its address, or another identity.
pub fn client<'h>(hit: &'h Hit<'_>) -> Option<(Attribute, Cow<'h, str>)> {
    if let Some(user) = &hit.user {
        Some((Attribute::User, Cow::Borrowed(&**user)))
    } else if let Some(api_key) = &hit.api_key {
        Some((Attribute::ApiKey, Cow::Borrowed(&**api_key)))
    } else if let Some(ip) = hit.ip {
        Some((Attribute::Ip, Cow::Owned(ip.to_string())))
    } else if let Some(email) = &hit.email {
        Some((Attribute::Email, Cow::Borrowed(&**email)))
    } else {
        hit.mac.as_ref().map(|mac| (Attribute::Mac, Cow::Borrowed(&**mac)))
    }
}

/// A hash of what identifies the client of a hit.
pub fn client_hash(hit: &Hit<'_>, hasher: &impl BuildHasher) -> u64 {
    let text = [&hit.user, &hit.api_key].into_iter().find_map(|text| text.as_deref());
    match (text, hit.ip) {
        (Some(text), _) => hasher.hash_one(text),
        (None, Some(ip)) => hasher.hash_one(ip),
        (None, None) => hasher.hash_one((&hit.email, &hit.mac)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_the_same_hit() {
        let hit = Hit::on("post", "API.example.com:443", "/a//b/?q=1&q=2#x")
            .domain("shop")
            .ip([192, 0, 2, 1].into())
            .user("ann")
            .email("Ann@example.com")
            .mac("02-00-00-00-00-01")
            .api_key("k")
            .field(FieldSource::Header, "x-tenant", "t")
            .too_many_values(FieldSource::Query)
            .cost(7);
        let copy = OwnedHit::of(&hit);
        assert_eq!(format!("{:?}", copy.hit()), format!("{hit:?}"));
        assert!(copy.bytes() > size_of::<OwnedHit>() + "x-tenant".len());
        let none = OwnedHit::of(&Hit::on("", "", ""));
        assert_eq!(format!("{:?}", none.hit()), format!("{:?}", Hit::on("", "", "")));
    }

    #[test]
    fn a_client_is_known_by_its_best_identity() {
        let hit = Hit::on("GET", "", "/");
        assert!(client(&hit).is_none());
        let hit = hit.ip([192, 0, 2, 1].into());
        assert_eq!(client(&hit), Some((Attribute::Ip, "192.0.2.1".into())));
        assert_eq!(client(&hit.user("ann")), Some((Attribute::User, "ann".into())));
    }
}
