//! Finds the rules that match a target: a trie of path segments per host pattern.
//!
//! The work grows with the depth of the path and the number of matches, not with the number of rules:
//! at each segment there is one literal child to look up and one parameter child to follow.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use smallvec::SmallVec;

use crate::request::target::{Target, segments};
use crate::rule::pattern::{HostPattern, Pattern, Segment};

/// Segments are looked up by strangers but put in by the operator only, so their hash needs no secret.
type SegmentHash = BuildHasherDefault<Fnv>;

/// FNV-1a: as fast as any for a word or two.
#[derive(Clone)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        self.0 =
            bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// Numbers of rules in their set.
pub(crate) type Matches = SmallVec<[u32; 8]>;

#[derive(Default)]
pub(crate) struct Matcher {
    any_host: Trie,
    hosts: HashMap<HostPattern, Trie>,
    below_hosts: bool,
}

#[derive(Default)]
struct Trie {
    root: Node,
    /// Rules without a path: they match every request, with a path or without.
    pathless: Leaf,
}

/// A place in a path. There may be a million of them, most with nothing below or nothing on them.
#[derive(Default)]
struct Node {
    #[expect(clippy::box_collection, reason = "an empty map is six words, a missing one is one")]
    literals: Option<Box<HashMap<Box<str>, Node, SegmentHash>>>,
    param: Option<Box<Node>>,
    exact: Option<Box<Leaf>>,
    open_ended: Option<Box<Leaf>>,
}

/// The rules of one pattern, by method.
#[derive(Default)]
struct Leaf {
    any_method: Place,
    methods: Vec<(Box<str>, Place)>,
}

/// Rules on the same method, host and path: a user's own rules stand in for the general ones.
#[derive(Default)]
struct Place {
    rules: SmallVec<[u32; 4]>,
    /// Rules that a user's own one replaces.
    replaceable: SmallVec<[u32; 4]>,
    #[expect(clippy::box_collection, reason = "an empty map is six words, a missing one is one")]
    by_uid: Option<Box<HashMap<Box<str>, Own>>>,
}

/// The rules of one user.
#[derive(Default)]
struct Own {
    rules: Vec<u32>,
    stand_in: bool,
}

/// How a rule relates to others on the same place.
pub(crate) enum Standing<'r> {
    Common,
    /// Counted by user: a user's own rule replaces it.
    General,
    Own {
        uid: &'r str,
    },
    /// For one user, but in shadow: the general rule still decides.
    Beside {
        uid: &'r str,
    },
}

impl Matcher {
    /// Adds a rule; returns how many of its pattern one request may now meet.
    pub(crate) fn insert(&mut self, pattern: &Pattern, standing: &Standing<'_>, rule: u32) -> usize {
        let trie = match &pattern.host {
            None => &mut self.any_host,
            Some(host) => {
                self.below_hosts |= matches!(host, HostPattern::Below(_));
                self.hosts.entry(host.clone()).or_default()
            }
        };
        let leaf = match &pattern.path {
            None => &mut trie.pathless,
            Some(path) => {
                let node = path.segments.iter().fold(&mut trie.root, Node::child);
                let leaf = if path.open_ended { &mut node.open_ended } else { &mut node.exact };
                leaf.get_or_insert_default()
            }
        };
        let place = leaf.place(pattern.method.as_deref());
        let others = match standing {
            Standing::Common => {
                place.rules.push(rule);
                place.replaceable.len()
            }
            Standing::General => {
                place.replaceable.push(rule);
                place.replaceable.len()
            }
            Standing::Own { uid } | Standing::Beside { uid } => {
                let own = place.by_uid.get_or_insert_default().entry((*uid).into()).or_default();
                own.rules.push(rule);
                own.stand_in |= matches!(standing, Standing::Own { .. });
                own.rules.len()
            }
        };
        place.rules.len() + others
    }

    /// All rules that match, in the order in which they were inserted.
    pub(crate) fn find<U: AsRef<str>>(&self, target: &Target<'_>, user: impl Fn() -> Option<U>) -> Matches {
        let mut matches = Matches::new();
        let mut search = Search { method: target.method(), user, matches: &mut matches };
        search.trie(&self.any_host, target.path());
        let host = target.host();
        if !self.hosts.is_empty() && !host.is_empty() {
            if let Some(trie) = self.hosts.get(&HostPattern::Exact(host.into())) {
                search.trie(trie, target.path());
            }
            if self.below_hosts {
                for parent in parents(host) {
                    if let Some(trie) = self.hosts.get(&HostPattern::Below(parent.into())) {
                        search.trie(trie, target.path());
                    }
                }
            }
        }
        if matches.len() > 1 {
            matches.sort_unstable();
        }
        matches
    }
}

/// The domains above a host, nearest first.
fn parents(host: &str) -> impl Iterator<Item = &str> {
    /// A host name has at most 127 labels.
    const MAX_LABELS: usize = 127;
    host.match_indices('.').take(MAX_LABELS).map(|(dot, _)| &host[dot + 1..])
}

impl Node {
    fn child<'n>(self: &'n mut Node, segment: &Segment) -> &'n mut Node {
        match segment {
            Segment::Literal(text) => self.literals.get_or_insert_default().entry(text.clone()).or_default(),
            Segment::Param(_) => self.param.get_or_insert_default(),
        }
    }
}

impl Leaf {
    fn place(&mut self, method: Option<&str>) -> &mut Place {
        let Some(method) = method else { return &mut self.any_method };
        let at = self.methods.iter().position(|(known, _)| **known == *method).unwrap_or_else(|| {
            self.methods.push((method.into(), Place::default()));
            self.methods.len() - 1
        });
        &mut self.methods[at].1
    }
}

struct Search<'s, F> {
    method: &'s str,
    /// Asked for only where users have rules of their own.
    user: F,
    matches: &'s mut Matches,
}

impl<U: AsRef<str>, F: Fn() -> Option<U>> Search<'_, F> {
    fn trie(&mut self, trie: &Trie, path: &str) {
        self.leaf(&trie.pathless);
        if !path.is_empty() {
            self.node(&trie.root, segments(path));
        }
    }

    /// A pattern is at most [`Pattern::MAX_SEGMENTS`] deep, and so is this recursion.
    fn node<'p>(&mut self, node: &Node, mut rest: impl Iterator<Item = &'p str> + Clone) {
        node.open_ended.iter().for_each(|leaf| self.leaf(leaf));
        let Some(segment) = rest.next() else {
            return node.exact.iter().for_each(|leaf| self.leaf(leaf));
        };
        if let Some(child) = node.literals.as_ref().and_then(|literals| literals.get(segment)) {
            self.node(child, rest.clone());
        }
        if let Some(child) = &node.param {
            self.node(child, rest);
        }
    }

    fn leaf(&mut self, leaf: &Leaf) {
        self.place(&leaf.any_method);
        for (method, place) in &leaf.methods {
            if **method == *self.method {
                self.place(place);
            }
        }
    }

    fn place(&mut self, place: &Place) {
        self.add(&place.rules);
        let own = place.by_uid.as_ref().and_then(|by_uid| by_uid.get((self.user)()?.as_ref()));
        if let Some(own) = own {
            self.add(&own.rules);
        }
        if !own.is_some_and(|own| own.stand_in) {
            self.add(&place.replaceable);
        }
    }

    /// Most places have no rules, or one.
    fn add(&mut self, rules: &[u32]) {
        rules.iter().for_each(|rule| self.matches.push(*rule));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(patterns: &[&str]) -> Matcher {
        let mut matcher = Matcher::default();
        for (n, text) in patterns.iter().enumerate() {
            let (host, pattern) = text.split_once('|').unwrap_or(("", text));
            let mut pattern =
                if pattern.is_empty() { Pattern::default() } else { Pattern::parse(pattern).expect(pattern) };
            pattern.host = (!host.is_empty()).then(|| HostPattern::parse(host).expect(host));
            matcher.insert(&pattern, &Standing::Common, n as u32);
        }
        matcher
    }

    fn nobody() -> Option<&'static str> {
        None
    }

    #[test]
    fn every_matching_rule_is_found() {
        let matcher = matcher(&[
            "/users/{id}",
            "GET /users/42",
            "/users/**",
            "",
            "/**",
            "api.example.com|/users/{id}",
            "*.example.com|",
            "POST /users/42",
            "/users/{id}/orders",
        ]);
        let check = |method, host, path, expected: &[u32]| {
            assert_eq!(matcher.find(&Target::new(method, host, path), nobody).as_slice(), expected, "{path}");
        };
        check("GET", "", "/users/42", &[0, 1, 2, 3, 4]);
        check("GET", "api.example.com", "/users/7", &[0, 2, 3, 4, 5, 6]);
        check("DELETE", "a.b.example.com", "/users", &[2, 3, 4, 6]);
        check("GET", "example.com", "/users/42/orders/1", &[2, 3, 4]);
        check("GET", "", "/users/42/orders", &[2, 3, 4, 8]);
        check("GET", "", "/", &[3, 4]);
        check("", "", "", &[3]);
    }

    #[test]
    fn no_spelling_escapes_its_rule() {
        let matcher = matcher(&["api.example.com|POST /login"]);
        for path in [
            "//login",
            "/./login",
            "/%6Cogin",
            "/%6cogin",
            "/login/",
            "/a/../login",
            "/%2flogin",
            "/login?x=1",
        ] {
            for host in ["api.example.com", "API.Example.com", "api.example.com:8443", "api.example.com."] {
                let target = Target::new("POST", host, path);
                assert_eq!(matcher.find(&target, nobody).as_slice(), [0], "{host} {path}");
            }
        }
        for path in ["/Login", "/logins", "/login/x", "/"] {
            assert!(matcher.find(&Target::new("POST", "api.example.com", path), nobody).is_empty(), "{path}");
        }
    }

    #[test]
    fn a_users_own_rule_stands_in_for_the_general_one() {
        let mut matcher = Matcher::default();
        let search = Pattern::parse("/search").expect("valid");
        matcher.insert(&search, &Standing::General, 0);
        matcher.insert(&search, &Standing::Own { uid: "42" }, 1);
        matcher.insert(&search, &Standing::Common, 2);
        let target = Target::new("GET", "", "/search");
        assert_eq!(matcher.find(&target, || Some("42")).as_slice(), [1, 2]);
        assert_eq!(matcher.find(&target, || Some("7")).as_slice(), [0, 2]);
        assert_eq!(matcher.find(&target, nobody).as_slice(), [0, 2]);
    }
}
