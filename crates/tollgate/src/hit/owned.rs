//! A copy of a hit that outlives its request, to decide it again.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::fingerprint::Secret;
use crate::hit::{Hit, HitField};
use crate::identity::{Attribute, FieldSource};
use crate::request::Target;
use crate::request::target::OtherReadings;

/// A field's source, name and value.
type OwnedField = (FieldSource, Box<str>, Box<str>);

/// The texts of a hit in the order in which a copy has them: those that differ most often first.
const PARTS: usize = 11;

/// A hit without its cost, with texts of its own, one after the other in one allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedHit {
    texts: Box<str>,
    /// Where each text ends.
    ends: [u32; PARTS],
    /// A bit for each text that is not missing.
    present: u16,
    ip: Option<IpAddr>,
    fields: Box<[OwnedField]>,
    overfull_sources: Box<[FieldSource]>,
}

fn parts<'h>(hit: &'h Hit<'_>) -> [Option<&'h str>; PARTS] {
    let target = hit.target();
    let others = target.other_readings();
    [
        Some(target.path()),
        target.query(),
        hit.user.as_deref(),
        hit.api_key.as_deref(),
        hit.email.as_deref(),
        hit.mac.as_deref(),
        Some(target.method()),
        Some(target.host()),
        Some(hit.domain_name()),
        others.and_then(|others| others.resolved.as_deref()),
        others.and_then(|others| others.literal.as_deref()),
    ]
}

impl OwnedHit {
    /// `None` if the copy would take more than `max_bytes`.
    pub fn of(hit: &Hit<'_>, max_bytes: usize) -> Option<OwnedHit> {
        let parts = parts(hit);
        let len: usize = parts.iter().flatten().map(|text| text.len()).sum();
        let of_fields = |field: &HitField<'_>| size_of::<OwnedField>() + field.name.len() + field.value.len();
        let bytes = size_of::<OwnedHit>() + len + hit.fields.iter().map(of_fields).sum::<usize>();
        if bytes > max_bytes || u32::try_from(len).is_err() {
            return None;
        }
        let mut texts = String::with_capacity(len);
        let mut ends = [0; PARTS];
        let mut present = 0;
        for (n, part) in parts.into_iter().enumerate() {
            texts.push_str(part.unwrap_or_default());
            ends[n] = texts.len() as u32;
            present |= u16::from(part.is_some()) << n;
        }
        let fields =
            hit.fields.iter().map(|field| (field.source, (*field.name).into(), (*field.value).into()));
        Some(OwnedHit {
            texts: texts.into(),
            ends,
            present,
            ip: hit.address(),
            fields: fields.collect(),
            overfull_sources: hit.overfull_sources.iter().copied().collect(),
        })
    }

    fn part(&self, n: usize) -> Option<&str> {
        let begin = n.checked_sub(1).map_or(0, |before| self.ends[before]);
        (self.present & 1 << n != 0).then(|| &self.texts[begin as usize..self.ends[n] as usize])
    }

    /// The hit, with a cost.
    pub fn hit(&self, cost: u64) -> Hit<'_> {
        let text = |n| self.part(n).unwrap_or_default();
        let given = |n| self.part(n).map(Cow::Borrowed);
        let reading = |n| self.part(n).map(str::to_owned);
        let others = OtherReadings { resolved: reading(9), literal: reading(10) };
        let target = Target::canonical(text(6), text(7), text(0), self.part(1), others);
        let mut hit = Hit::with_target(target).domain(text(8)).cost(cost);
        hit.ip = self.ip;
        hit.user = given(2);
        hit.api_key = given(3);
        hit.email = given(4);
        hit.mac = given(5);
        hit.fields = self.fields.iter().map(borrow_field).collect();
        hit.overfull_sources = self.overfull_sources.iter().copied().collect();
        hit
    }

    /// Whether this is a copy of a hit, apart from its cost.
    pub fn is_of(&self, hit: &Hit<'_>) -> bool {
        let fields = hit.fields.iter().map(|field| (field.source, &*field.name, &*field.value));
        self.ip == hit.ip
            && parts(hit).into_iter().enumerate().all(|(n, part)| self.part(n) == part)
            && self.fields.iter().map(|(source, name, value)| (*source, &**name, &**value)).eq(fields)
            && *self.overfull_sources == *hit.overfull_sources
    }

    /// Bytes of it, texts included.
    pub fn bytes(&self) -> usize {
        let fields =
            self.fields.iter().map(|(_, name, value)| size_of::<OwnedField>() + name.len() + value.len());
        size_of::<OwnedHit>() + self.texts.len() + fields.sum::<usize>()
    }
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
#[inline]
pub fn client_hash(hit: &Hit<'_>, secret: &Secret) -> u64 {
    let text = [&hit.user, &hit.api_key].into_iter().find_map(|text| text.as_deref());
    let digest = match (text, hit.ip) {
        (Some(text), _) => secret.digest().part(text.as_bytes()),
        (None, Some(IpAddr::V4(ip))) => secret.digest().part(&ip.octets()),
        (None, Some(IpAddr::V6(ip))) => secret.digest().part(&ip.octets()),
        (None, None) => {
            let texts = [&hit.email, &hit.mac].map(|text| text.as_deref().unwrap_or_default());
            texts.into_iter().fold(secret.digest(), |digest, text| digest.part(text.as_bytes()))
        }
    };
    digest.finish().to_bits()
}

/// A hash of the method, host, path and query of a hit.
#[inline]
pub fn target_hash(hit: &Hit<'_>, secret: &Secret) -> u64 {
    let target = hit.target();
    let texts = [target.method(), target.host(), target.path(), target.query().unwrap_or_default()];
    let digest = texts.into_iter().fold(secret.digest(), |digest, text| digest.part(text.as_bytes()));
    digest.finish().to_bits()
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
        let copy = OwnedHit::of(&hit, 1_000).expect("it is short");
        assert_eq!(format!("{:?}", copy.hit(7)), format!("{hit:?}"));
        assert!(OwnedHit::of(&hit, copy.bytes()).is_some() && OwnedHit::of(&hit, copy.bytes() - 1).is_none());
        assert!(copy.is_of(&hit) && copy.is_of(&hit.clone().cost(8)));
        for other in [
            hit.clone().user("bob"),
            hit.clone().attribute("plan", "pro"),
            hit.clone().ip([192, 0, 2, 2].into()),
            hit.clone().too_many_values(FieldSource::Cookie),
            hit.domain("other"),
        ] {
            assert!(!copy.is_of(&other), "{other:?}");
        }
        let none = OwnedHit::of(&Hit::on("", "", ""), 1_000).expect("it is short");
        assert_eq!(format!("{:?}", none.hit(1)), format!("{:?}", Hit::on("", "", "")));
        assert!(!none.is_of(&Hit::on("", "", "").user("")), "an empty user is not a missing one");
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
