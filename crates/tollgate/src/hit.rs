//! A hit: one request as the engine sees it, whatever its protocol.
//!
//! Everything is borrowed where possible. Values are returned in normal form, whatever their source.

use std::borrow::Cow;
use std::hash::{BuildHasher, Hash, Hasher as _};
use std::net::IpAddr;

use smallvec::SmallVec;

use crate::decimal::Ipv4Text;
use crate::identity::address::{self, client_address};
use crate::identity::{Attribute, FieldSource, key, normal};
use crate::request::{Target, fields};

#[allow(missing_docs)]
mod owned;
#[allow(missing_docs)]
mod values;

pub use owned::{OwnedHit, client, client_hash, target_hash};
pub use values::{AttributeValues, MAX_VALUES};

/// The target, the identities, and the cost.
#[derive(Clone, Debug)]
pub struct Hit<'a> {
    domain: Cow<'a, str>,
    target: Target<'a>,
    ip: Option<IpAddr>,
    user: Option<Cow<'a, str>>,
    email: Option<Cow<'a, str>>,
    mac: Option<Cow<'a, str>>,
    api_key: Option<Cow<'a, str>>,
    fields: SmallVec<[HitField<'a>; 1]>,
    /// Sources with more values than the bound.
    overfull_sources: SmallVec<[FieldSource; 1]>,
    cost: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct HitField<'a> {
    source: FieldSource,
    name: Cow<'a, str>,
    value: Cow<'a, str>,
}

impl<'a> Hit<'a> {
    pub(crate) const DEFAULT_DOMAIN: &'static str = "default";

    /// A hit on a target; the parts may be empty, and are canonicalised here.
    #[inline]
    pub fn on(method: &'a str, host: &'a str, path: &'a str) -> Hit<'a> {
        Hit::with_target(Target::new(method, host, path))
    }

    #[inline]
    fn with_target(target: Target<'a>) -> Hit<'a> {
        Hit {
            domain: Cow::Borrowed(Self::DEFAULT_DOMAIN),
            target,
            ip: None,
            user: None,
            email: None,
            mac: None,
            api_key: None,
            fields: SmallVec::new(),
            overfull_sources: SmallVec::new(),
            cost: 1,
        }
    }

    /// A hit without a target.
    #[inline]
    pub fn by(user: &'a str) -> Hit<'a> {
        Hit { user: Some(Cow::Borrowed(user)), ..Hit::with_target(Target::NONE) }
    }

    /// A name that separates counters: the same key counts apart in each domain.
    #[inline]
    pub fn domain(mut self, domain: impl Into<Cow<'a, str>>) -> Self {
        self.domain = domain.into();
        self
    }

    /// The address of the client.
    #[inline]
    pub fn ip(mut self, ip: IpAddr) -> Self {
        self.ip = Some(client_address(ip));
        self
    }

    /// The id of the user.
    #[inline]
    pub fn user(mut self, user: impl Into<Cow<'a, str>>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The email address of the user, or the one that is tried.
    #[inline]
    pub fn email(mut self, email: impl Into<Cow<'a, str>>) -> Self {
        self.email = Some(email.into());
        self
    }

    /// The MAC address of the device.
    #[inline]
    pub fn mac(mut self, mac: impl Into<Cow<'a, str>>) -> Self {
        self.mac = Some(mac.into());
        self
    }

    /// The API key of the caller.
    #[inline]
    pub fn api_key(mut self, api_key: impl Into<Cow<'a, str>>) -> Self {
        self.api_key = Some(api_key.into());
        self
    }

    /// A field such as a header (its name in lower case), a verified claim or a caller's attribute.
    pub fn field(
        mut self,
        source: FieldSource,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Self {
        self.fields.push(HitField { source, name: name.into(), value: value.into() });
        self
    }

    /// An attribute of your own, which rules count by as `attr:name`.
    pub fn attribute(self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        self.field(FieldSource::Attr, name, value)
    }

    /// Marks every field of a source as having too many values: rules that count by one deny the hit.
    pub(crate) fn too_many_values(mut self, source: FieldSource) -> Self {
        self.overfull_sources.push(source);
        self
    }

    /// What the hit costs: 1 by default.
    #[inline]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    pub(crate) fn domain_name(&self) -> &str {
        &self.domain
    }

    pub(crate) fn target(&self) -> &Target<'a> {
        &self.target
    }

    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.ip
    }

    pub(crate) fn units(&self) -> u64 {
        self.cost
    }

    /// The value of an attribute in normal form, the first of several; `None` if the request does not have it.
    pub(crate) fn value(&self, attribute: &Attribute, ipv6_prefix: u8) -> Option<Cow<'_, str>> {
        let present = |text: &'_ str| !text.is_empty();
        match attribute {
            Attribute::Ip => Some(Cow::Owned(address::group(self.ip?, ipv6_prefix).text())),
            Attribute::User => normal::text(self.user.as_deref()?).map(Cow::Borrowed),
            Attribute::Email => {
                Some(key::email(self.email.as_deref()?).into()).filter(|text: &Cow<'_, str>| present(text))
            }
            Attribute::Mac => normal::mac(self.mac.as_deref()?),
            Attribute::ApiKey => normal::text(self.api_key.as_deref()?).map(Cow::Borrowed),
            Attribute::Path => Some(self.target.path()).filter(|text| present(text)).map(Cow::Borrowed),
            Attribute::Method => Some(self.target.method()).filter(|text| present(text)).map(Cow::Borrowed),
            Attribute::Host => Some(self.target.host()).filter(|text| present(text)).map(Cow::Borrowed),
            Attribute::Field(source, name) => self.field_values(*source, name).next(),
        }
    }

    /// The value of an attribute that is one text in the request and already in normal form, whatever the settings.
    #[inline]
    pub(crate) fn plain_text(&self, attribute: &Attribute) -> Option<&str> {
        match attribute {
            Attribute::User => normal::text(self.user.as_deref()?),
            Attribute::ApiKey => normal::text(self.api_key.as_deref()?),
            _ => None,
        }
    }

    /// As [`plain_text`](Self::plain_text), also of an IPv4 address, whose text is written to `written`.
    #[inline(always)]
    pub(crate) fn plain_bytes<'t>(
        &'t self,
        attribute: &Attribute,
        written: &'t mut Ipv4Text,
    ) -> Option<&'t [u8]> {
        match attribute {
            Attribute::Ip => match self.ip? {
                IpAddr::V4(ip) => Some(written.write(ip)),
                IpAddr::V6(_) => None,
            },
            _ => self.plain_text(attribute).map(str::as_bytes),
        }
    }

    /// The different values of an attribute in normal form.
    #[inline]
    pub(crate) fn values(&self, attribute: &Attribute, ipv6_prefix: u8) -> AttributeValues<'_> {
        match attribute {
            Attribute::Field(source, _) if self.overfull_sources.contains(source) => AttributeValues::TooMany,
            Attribute::Field(source, name) => self.field_values(*source, name).collect(),
            _ => self.value(attribute, ipv6_prefix).map_or(AttributeValues::Missing, AttributeValues::One),
        }
    }

    /// Every value of an attribute in normal form, without a bound and with repetitions.
    pub(crate) fn all_values(&self, attribute: &Attribute, ipv6_prefix: u8) -> SmallVec<[Cow<'_, str>; 1]> {
        match attribute {
            Attribute::Field(source, name) => self.field_values(*source, name).collect(),
            _ => self.value(attribute, ipv6_prefix).into_iter().collect(),
        }
    }

    /// The values of a field, in the order of the request.
    fn field_values<'s>(&'s self, source: FieldSource, name: &str) -> impl Iterator<Item = Cow<'s, str>> {
        let is_authorization = source == FieldSource::Header && name == "authorization";
        let given = self.raw_values(source, name).flat_map(move |value| {
            let each = is_authorization.then(|| fields::credentials(value)).into_iter().flatten();
            each.chain((!is_authorization).then_some(Cow::Borrowed(value)))
        });
        let cookie_lines =
            (source == FieldSource::Cookie).then(|| self.raw_values(FieldSource::Header, "cookie"));
        let cookies = cookie_lines.into_iter().flatten().flat_map(move |line| fields::cookies(line, name));
        let query = if source == FieldSource::Query { self.target.query() } else { None };
        let parameters = query.into_iter().flat_map(move |query| fields::parameters(query, name));
        let all = given.chain(cookies.map(Cow::Borrowed)).chain(parameters);
        all.filter_map(move |value| normal::field(source, name, value))
    }

    /// All values given under a name, in order.
    pub(crate) fn raw_values<'s>(&'s self, source: FieldSource, name: &str) -> impl Iterator<Item = &'s str> {
        let same = move |field: &&HitField<'_>| field.source == source && field.name == name;
        self.fields.iter().filter(same).map(|field| field.value.as_ref())
    }
}

/// A hit without a target or any identity.
#[inline]
pub fn without_target<'a>() -> Hit<'a> {
    Hit::with_target(Target::NONE)
}

/// Sets the target, as [`Hit::on`], where the hit is.
#[inline]
pub fn set_target<'a>(hit: &mut Hit<'a>, method: &'a str, host: &'a str, path: &'a str) {
    hit.target = Target::new(method, host, path);
}

/// Sets the address of the client where the hit is: the methods of a hit move it.
#[inline]
pub fn set_address(hit: &mut Hit<'_>, ip: IpAddr) {
    hit.ip = Some(client_address(ip));
}

/// Adds a field where the hit is.
#[cfg(feature = "http")]
pub(crate) fn push_field<'a>(hit: &mut Hit<'a>, source: FieldSource, name: &'a str, value: Cow<'a, str>) {
    hit.fields.push(HitField { source, name: Cow::Borrowed(name), value });
}

/// The target of a hit.
pub fn target<'h, 'a>(hit: &'h Hit<'a>) -> &'h Target<'a> {
    hit.target()
}

/// The address of the client.
pub fn address(hit: &Hit<'_>) -> Option<IpAddr> {
    hit.address()
}

/// What a hit costs.
pub fn cost(hit: &Hit<'_>) -> u64 {
    hit.cost
}

/// All values given under a name, in order.
pub fn raw_values<'h>(hit: &'h Hit<'_>, source: FieldSource, name: &str) -> impl Iterator<Item = &'h str> {
    hit.raw_values(source, name)
}

/// The value of an attribute in normal form, the first of several.
pub fn value<'h>(hit: &'h Hit<'_>, attribute: &Attribute, ipv6_prefix: u8) -> Option<Cow<'h, str>> {
    hit.value(attribute, ipv6_prefix)
}

/// A hash of everything but the cost: hits of the same client on the same target have the same.
pub fn origin_hash(hit: &Hit<'_>, hasher: &impl BuildHasher) -> u64 {
    let Hit { domain, target, ip, user, email, mac, api_key, fields, overfull_sources, cost: _ } = hit;
    let mut state = hasher.build_hasher();
    (domain, target, ip, user, email).hash(&mut state);
    (mac, api_key, fields, overfull_sources).hash(&mut state);
    state.finish()
}

/// Marks every field of a source as having too many values.
pub fn with_too_many_values(hit: Hit<'_>, source: FieldSource) -> Hit<'_> {
    hit.too_many_values(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(hit: &Hit<'_>, attribute: &str) -> Option<String> {
        let attribute = Attribute::parse(attribute).expect(attribute);
        hit.value(&attribute, 64).map(Cow::into_owned)
    }

    #[test]
    fn values_are_returned_in_normal_form() {
        let hit = Hit::on("post", "API.example.com:443", "//login?token=a%20b")
            .ip("::ffff:1.2.3.4".parse().expect("valid"))
            .user(" 42 ")
            .email(" Ann@Example.com ")
            .mac("AA-BB-CC-DD-EE-FF")
            .field(FieldSource::Header, "cookie", "a=1; session=xyz")
            .attribute("plan", "pro");
        for (attribute, expected) in [
            ("ip", "1.2.3.4"),
            ("user", "42"),
            ("email", "ann@example.com"),
            ("mac", "aa:bb:cc:dd:ee:ff"),
            ("path", "/login"),
            ("method", "POST"),
            ("host", "api.example.com"),
            ("cookie:session", "xyz"),
            ("query:token", "a b"),
            ("attr:plan", "pro"),
        ] {
            assert_eq!(value(&hit, attribute).as_deref(), Some(expected), "{attribute}");
        }
    }

    #[test]
    fn what_is_not_there_or_empty_is_missing() {
        let hit = Hit::on("", "", "").user("  ").attribute("plan", "").mac("nonsense");
        for attribute in
            ["ip", "user", "email", "mac", "api_key", "path", "host", "attr:plan", "query:x", "jwt:sub"]
        {
            assert_eq!(value(&hit, attribute), None, "{attribute}");
        }
    }
}
