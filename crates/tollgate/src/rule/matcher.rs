//! Finds the rules that match a target: a trie of path segments per host pattern.
//!
//! The work grows with the depth of the path and the number of matches, not with the number of rules:
//! at each segment there is one literal child to look up and one parameter child to follow. A rule that is
//! alone below a segment stands there itself, and is compared as a whole; so a million paths need no
//! million nodes.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::request::target::{Target, segments};
use crate::rule::index::{Hashed, Index, hash};
use crate::rule::pattern::{HostPattern, Segment};
use crate::rule::set::Rules;
use crate::rule::{Rule, RuleInForce, Whereabouts};

mod place;

use place::{Leaf, Place, Standing};

pub(crate) type Matches<'r> = SmallVec<[&'r Arc<RuleInForce>; 4]>;

#[derive(Clone, Default)]
pub(crate) struct Matcher {
    any_host: Trie,
    hosts: Index<Host>,
    /// How many rules are for the hosts below one.
    below_hosts: usize,
}

#[derive(Clone)]
struct Host {
    hash: u32,
    trie: Arc<HostTrie>,
}

#[derive(Clone)]
struct HostTrie {
    host: Arc<HostPattern>,
    trie: Trie,
}

#[derive(Clone, Default)]
struct Trie {
    root: Node,
    /// Rules without a path: they match every request, with a path or without.
    pathless: Place,
}

/// A place in a path that several rules pass.
#[derive(Clone, Default)]
struct Node {
    /// The literal that leads here, if one does.
    segment: Option<Arc<str>>,
    literals: Index<Step>,
    param: Option<Arc<Node>>,
    exact: Option<Arc<Leaf>>,
    open_ended: Option<Arc<Leaf>>,
}

/// Where a literal segment leads.
#[derive(Clone)]
enum Step {
    /// To the only rule below.
    Rule {
        hash: u32,
        number: u32,
        /// The pattern's text, in lines from the rule: it will be compared.
        text: i32,
        whereabouts: Whereabouts,
    },
    Node {
        hash: u32,
        node: Arc<Node>,
    },
}

impl Hashed for Host {
    fn hash(&self) -> u32 {
        self.hash
    }
}

impl Hashed for Step {
    fn hash(&self) -> u32 {
        match self {
            Step::Rule { hash, .. } | Step::Node { hash, .. } => *hash,
        }
    }
}

/// Apart from each other, as a rule for a domain and one for the hosts below it are.
fn host_hash(host: &HostPattern) -> u32 {
    match host {
        HostPattern::Exact(name) => hash(name),
        HostPattern::Below(name) => !hash(name),
    }
}

impl Matcher {
    /// Adds a rule; returns how many of its pattern one request may now meet.
    pub(crate) fn insert(&mut self, rules: &Rules, rule: &Rule, number: u32) -> usize {
        let Some(host) = &rule.pattern.host else { return self.any_host.insert(rules, rule, number) };
        self.below_hosts += usize::from(matches!(**host, HostPattern::Below(_)));
        let hash = host_hash(host);
        if let Some(known) = self.hosts.find_mut(hash, |known| known.trie.host == *host) {
            return Arc::make_mut(&mut known.trie).trie.insert(rules, rule, number);
        }
        let mut trie = Trie::default();
        let count = trie.insert(rules, rule, number);
        self.hosts.insert(Host { hash, trie: Arc::new(HostTrie { host: Arc::clone(host), trie }) });
        count
    }

    pub(crate) fn remove(&mut self, rules: &Rules, rule: &Rule, number: u32) {
        if rule.mode == crate::rule::Mode::Off {
            return; // it was never here
        }
        let Some(host) = &rule.pattern.host else { return self.any_host.remove(rules, rule, number) };
        self.below_hosts -= usize::from(matches!(**host, HostPattern::Below(_)));
        let (hash, is) = (host_hash(host), |known: &Host| known.trie.host == *host);
        if let Some(known) = self.hosts.find_mut(hash, is) {
            let trie = &mut Arc::make_mut(&mut known.trie).trie;
            trie.remove(rules, rule, number);
            if trie.is_empty() {
                self.hosts.remove(hash, is);
            }
        }
    }

    /// All rules that match, in their order.
    pub(crate) fn find<'r, U: AsRef<str>>(
        &self,
        rules: &'r Rules,
        target: &Target<'_>,
        user: impl Fn() -> Option<U>,
    ) -> Matches<'r> {
        let mut matches = Matches::new();
        let mut search =
            Search { rules, method: target.method(), path: target.path(), user, matches: &mut matches };
        search.trie(&self.any_host);
        let host = target.host();
        if !self.hosts.is_empty() && !host.is_empty() {
            for known in self.hosts.find(hash(host)) {
                if matches!(&*known.trie.host, HostPattern::Exact(name) if **name == *host) {
                    search.trie(&known.trie.trie);
                }
            }
            if self.below_hosts > 0 {
                for parent in parents(host) {
                    for known in self.hosts.find(!hash(parent)) {
                        if matches!(&*known.trie.host, HostPattern::Below(name) if **name == *parent) {
                            search.trie(&known.trie.trie);
                        }
                    }
                }
            }
        }
        if matches.len() > 1 {
            matches.sort_unstable_by_key(|rule| rule.order());
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

impl Trie {
    fn insert(&mut self, rules: &Rules, rule: &Rule, number: u32) -> usize {
        match rule.pattern.path() {
            None => self.pathless.insert(rules, rule, number),
            Some(_) => self.root.insert(rules, rule, number, 0),
        }
    }

    fn remove(&mut self, rules: &Rules, rule: &Rule, number: u32) {
        match rule.pattern.path() {
            None => self.pathless.remove(rule, number),
            Some(_) => self.root.remove(rules, rule, number, 0),
        }
    }

    fn is_empty(&self) -> bool {
        self.root.is_empty() && self.pathless.is_empty()
    }
}

impl Node {
    fn insert(&mut self, rules: &Rules, rule: &Rule, number: u32, depth: usize) -> usize {
        let text = match rule.pattern.segments().nth(depth) {
            None => {
                let leaf = self.leaf_mut(rule).get_or_insert_default();
                return Arc::make_mut(leaf).place(rule.pattern.method()).insert(rules, rule, number);
            }
            Some(Segment::Param) => {
                let node = self.param.get_or_insert_default();
                return Arc::make_mut(node).insert(rules, rule, number, depth + 1);
            }
            Some(Segment::Literal(text)) => text,
        };
        let hash = hash(text);
        match self.literals.find_mut(hash, |step| step.is_by(text, rules, depth)) {
            None => {
                let whereabouts = Whereabouts::of(rule);
                let text = whereabouts.lines_to(rule.pattern.text());
                self.literals.insert(Step::Rule { hash, number, text, whereabouts });
                1
            }
            Some(Step::Node { node, .. }) => Arc::make_mut(node).insert(rules, rule, number, depth + 1),
            Some(step) => {
                let mut node = Node { segment: Some(text.into()), ..Node::default() };
                if let Step::Rule { number: other, .. } = *step {
                    node.insert(rules, &rules[other as usize], other, depth + 1);
                }
                let count = node.insert(rules, rule, number, depth + 1);
                *step = Step::Node { hash, node: Arc::new(node) };
                count
            }
        }
    }

    fn remove(&mut self, rules: &Rules, rule: &Rule, number: u32, depth: usize) {
        match rule.pattern.segments().nth(depth) {
            None => {
                let place = self.leaf_mut(rule);
                if let Some(leaf) = place {
                    Arc::make_mut(leaf).remove(rule, number);
                    place.take_if(|leaf| leaf.is_empty());
                }
            }
            Some(Segment::Param) => {
                if let Some(node) = &mut self.param {
                    Arc::make_mut(node).remove(rules, rule, number, depth + 1);
                }
                self.param.take_if(|node| node.is_empty());
            }
            Some(Segment::Literal(text)) => {
                let (hash, is) = (hash(text), |step: &Step| step.is_by(text, rules, depth));
                let emptied = match self.literals.find_mut(hash, is) {
                    Some(Step::Node { node, .. }) => {
                        Arc::make_mut(node).remove(rules, rule, number, depth + 1);
                        node.is_empty()
                    }
                    found => found.is_some(),
                };
                if emptied {
                    self.literals.remove(hash, is);
                }
            }
        }
    }

    fn leaf_mut(&mut self, rule: &Rule) -> &mut Option<Arc<Leaf>> {
        if rule.pattern.is_open_ended() { &mut self.open_ended } else { &mut self.exact }
    }

    fn is_empty(&self) -> bool {
        let leaves = [&self.exact, &self.open_ended];
        self.literals.is_empty() && self.param.is_none() && leaves.iter().all(|leaf| leaf.is_none())
    }
}

impl Step {
    /// Whether this literal leads here, `depth` segments below the root.
    fn is_by(&self, text: &str, rules: &Rules, depth: usize) -> bool {
        match self {
            Step::Node { node, .. } => node.segment.as_deref() == Some(text),
            Step::Rule { number, .. } => {
                let pattern = &rules[*number as usize].pattern;
                pattern.segments().nth(depth) == Some(Segment::Literal(text))
            }
        }
    }
}

struct Search<'s, 'r, F> {
    rules: &'r Rules,
    method: &'s str,
    path: &'s str,
    /// Asked for only where users have rules of their own.
    user: F,
    matches: &'s mut Matches<'r>,
}

impl<U: AsRef<str>, F: Fn() -> Option<U>> Search<'_, '_, F> {
    fn trie(&mut self, trie: &Trie) {
        self.place(&trie.pathless);
        if !self.path.is_empty() {
            self.node(&trie.root, segments(self.path));
        }
    }

    /// A pattern is at most [`Pattern::MAX_SEGMENTS`](crate::rule::Pattern::MAX_SEGMENTS) deep, and so is this
    /// recursion.
    fn node<'p>(&mut self, node: &Node, mut rest: impl Iterator<Item = &'p str> + Clone) {
        node.open_ended.iter().for_each(|leaf| self.leaf(leaf));
        let Some(segment) = rest.next() else {
            return node.exact.iter().for_each(|leaf| self.leaf(leaf));
        };
        if !node.literals.is_empty() {
            for step in node.literals.find(hash(segment)) {
                match step {
                    Step::Rule { number, text, whereabouts, .. } => {
                        whereabouts.fetch();
                        whereabouts.fetch_lines(*text);
                        self.lone(*number);
                    }
                    Step::Node { node, .. } if node.segment.as_deref() == Some(segment) => {
                        self.node(node, rest.clone());
                    }
                    Step::Node { .. } => {}
                }
            }
        }
        if let Some(child) = &node.param {
            self.node(child, rest);
        }
    }

    /// A rule that shares its place with no other.
    fn lone(&mut self, number: u32) {
        let rule = &self.rules[number as usize];
        let own = || match Standing::of(rule) {
            Standing::Common | Standing::General => true,
            Standing::Own { uid } | Standing::Beside { uid } => {
                (self.user)().is_some_and(|user| user.as_ref() == uid)
            }
        };
        if rule.pattern.meets(self.method, self.path) && own() {
            self.matches.push(rule);
        }
    }

    fn leaf(&mut self, leaf: &Leaf) {
        leaf.places(self.method).for_each(|place| self.place(place));
    }

    fn place(&mut self, place: &Place) {
        let mut replaced = false;
        if place.has_own()
            && let Some(user) = (self.user)()
        {
            for rule in place.own(self.rules, user.as_ref()) {
                replaced |= matches!(Standing::of(rule), Standing::Own { .. });
                self.matches.push(rule);
            }
        }
        self.add(place.rules());
        if !replaced {
            self.add(place.replaceable());
        }
    }

    /// Most places have no rules, or one.
    #[inline]
    fn add(&mut self, numbers: &[u32]) {
        for number in numbers {
            self.matches.push(&self.rules[*number as usize]);
        }
    }
}
