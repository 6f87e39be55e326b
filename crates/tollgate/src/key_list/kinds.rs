//! The kinds of keys in a list, and the lookup of a request by each of them.
//!
//! Keys with the same attributes are of one kind, and so are networks with the same prefix length. A lookup costs one
//! probe per kind, however many keys there are of it.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;
use smallvec::SmallVec;

use crate::fingerprint::{Digest, Fingerprint, Secret, ShortPart};
use crate::identity::{Attribute, Key};

/// Combinations that are looked up for a request with several values for the attributes of a key, if it has no more
/// values than that; otherwise as many as it has values. So a lookup is linear in the request.
const MAX_COMBINATIONS: usize = 64;

/// A request has more combinations of values for the attributes of a kind than are looked up.
pub(crate) struct TooManyCombinations {
    /// One of them: the first value of each attribute.
    pub(crate) first: Key,
}

#[derive(Clone, Default)]
pub(crate) struct KeyKinds {
    /// Longest prefix first.
    networks: Vec<(PrefixKind, usize)>,
    combinations: Vec<Combination>,
}

/// The length comes first, so that the longest is the greatest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PrefixKind {
    length: u8,
    is_v4: bool,
}

#[derive(Clone)]
struct Combination {
    attributes: Vec<Attribute>,
    names_hash: ShortPart,
    count: usize,
}

impl KeyKinds {
    /// Adds a key to the counts; `true` if it is the first of its kind.
    pub(crate) fn add(&mut self, key: &Key) -> bool {
        let Some(network) = key.network() else { return self.add_combination(key) };
        let prefix = PrefixKind::of(&network);
        match self.networks.binary_search_by(|(known, _)| prefix.cmp(known)) {
            Ok(at) => self.networks[at].1 += 1,
            Err(at) => {
                self.networks.insert(at, (prefix, 1));
                return true;
            }
        }
        false
    }

    fn add_combination(&mut self, key: &Key) -> bool {
        match self.combinations.iter_mut().find(|shape| shape.matches(key)) {
            Some(shape) => shape.count += 1,
            None => {
                let attributes = attributes(key).cloned().collect();
                self.combinations.push(Combination { attributes, names_hash: names_hash(key), count: 1 });
                return true;
            }
        }
        false
    }

    /// Removes a key from the counts; `true` if it was the last of its kind.
    pub(crate) fn remove(&mut self, key: &Key) -> bool {
        let kinds = self.networks.len() + self.combinations.len();
        match key.network() {
            Some(network) => {
                let prefix = PrefixKind::of(&network);
                self.networks.iter_mut().filter(|(known, _)| *known == prefix).for_each(|each| each.1 -= 1);
                self.networks.retain(|(_, count)| *count > 0);
            }
            None => {
                self.combinations
                    .iter_mut()
                    .filter(|each| each.matches(key))
                    .for_each(|each| each.count -= 1);
                self.combinations.retain(|shape| shape.count > 0);
            }
        }
        kinds != self.networks.len() + self.combinations.len()
    }

    /// The attributes that the list needs of a request.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = &Attribute> {
        let ip = (!self.networks.is_empty()).then_some(&Attribute::Ip);
        ip.into_iter().chain(self.combinations.iter().flat_map(|shape| &shape.attributes))
    }

    /// The fingerprint that a key is stored under.
    pub(crate) fn fingerprint(secret: &Secret, key: &Key) -> Fingerprint {
        match key.network() {
            Some(network) => network_fingerprint(secret, &network),
            None => {
                let digest = secret.digest().short_part(names_hash(key));
                key.parts().iter().fold(digest, |digest, (_, value)| digest.part(value.as_bytes())).finish()
            }
        }
    }

    /// Calls back for each key that a list may have for a request, with its fingerprint and a test of the entry found:
    /// the longest prefix of the address first, then the combinations. An error if nothing is found, but some
    /// combinations were not looked up.
    #[inline]
    pub(crate) fn find<'h, V: IntoIterator<Item = Cow<'h, str>>, R>(
        &self,
        secret: &Secret,
        ip: Option<IpAddr>,
        values: impl Fn(&Attribute) -> V,
        mut look: impl FnMut(Fingerprint, &dyn Fn(&Key) -> bool) -> Option<R>,
    ) -> Result<Option<R>, TooManyCombinations> {
        for (prefix, _) in &self.networks {
            let Some(network) = ip.and_then(|ip| prefix.network(ip)) else { continue };
            let fingerprint = network_fingerprint(secret, &network);
            let found = look(fingerprint, &|key| key.network() == Some(network));
            if found.is_some() {
                return Ok(found);
            }
        }
        let mut too_many = None;
        for shape in &self.combinations {
            let mut columns: Columns<'h> = SmallVec::new();
            for attribute in &shape.attributes {
                columns.push(values(attribute).into_iter().collect());
            }
            let Some(product) = bounded_product(&columns) else {
                too_many.get_or_insert_with(|| TooManyCombinations { first: shape.first_key(&columns) });
                continue;
            };
            let found = (0..product).find_map(|number| {
                let mut rest = number;
                let chosen: SmallVec<[&str; 2]> = columns
                    .iter()
                    .map(|column| {
                        let value = &*column[rest % column.len()];
                        rest /= column.len();
                        value
                    })
                    .collect();
                let digest: Digest<'_> = secret.digest().short_part(shape.names_hash);
                let digest = chosen.iter().fold(digest, |digest, value| digest.part(value.as_bytes()));
                look(digest.finish(), &|key| {
                    shape.matches(key) && key.parts().iter().map(|(_, value)| value).eq(&chosen)
                })
            });
            if found.is_some() {
                return Ok(found);
            }
        }
        too_many.map_or(Ok(None), Err)
    }
}

/// The values of a request for each attribute of a key.
type Columns<'h> = SmallVec<[SmallVec<[Cow<'h, str>; 1]>; 2]>;

/// The number of combinations of the values; `None` if it is over the bound.
#[inline]
fn bounded_product(columns: &Columns<'_>) -> Option<usize> {
    let product = columns.iter().fold(1_usize, |product, column| product.saturating_mul(column.len()));
    let values = || columns.iter().map(|column| column.len()).sum::<usize>();
    (product <= MAX_COMBINATIONS || product <= values()).then_some(product)
}

impl PrefixKind {
    fn of(network: &IpNet) -> PrefixKind {
        PrefixKind { length: network.prefix_len(), is_v4: network.addr().is_ipv4() }
    }

    fn network(self, ip: IpAddr) -> Option<IpNet> {
        (ip.is_ipv4() == self.is_v4)
            .then(|| IpNet::new(ip, self.length).ok())
            .flatten()
            .map(|net| net.trunc())
    }
}

impl Combination {
    #[cold]
    fn first_key(&self, columns: &Columns<'_>) -> Key {
        let firsts = columns.iter().map(|column| column.first().map(|value| value.to_string()));
        let firsts = firsts.map(Option::unwrap_or_default);
        Key::new(self.attributes.iter().cloned().zip(firsts).collect()).unwrap_or_default()
    }

    fn matches(&self, key: &Key) -> bool {
        attributes(key).eq(&self.attributes)
    }
}

fn attributes(key: &Key) -> impl Iterator<Item = &Attribute> {
    key.parts().iter().map(|(attribute, _)| attribute)
}

fn names_hash(key: &Key) -> ShortPart {
    let names: Vec<_> = attributes(key).map(ToString::to_string).collect();
    ShortPart::of_text(&names.join("+"))
}

fn network_fingerprint(secret: &Secret, network: &IpNet) -> Fingerprint {
    let digest = secret.digest().short_part(ShortPart::number(u64::from(network.prefix_len())));
    match network.addr() {
        IpAddr::V4(ip) => digest.part(&ip.octets()).finish(),
        IpAddr::V6(ip) => digest.part(&ip.octets()).finish(),
    }
}
