//! Finds the rules that match a target: a trie of hosts and path segments whose nodes are hashes.
//!
//! A node is absent, or the place of the only rule below it, or a fork that says with what its rules go on and counts
//! them. All nodes are items of sixteen bytes in one [`Index`], found by the hash of what leads to them, so that a
//! million rules on as many hosts and paths need little more than an item each. Rules with the same pattern are listed
//! behind its leaf.
//!
//! The trie only selects candidates: each is compared with the request as a whole. Two nodes with the same hash are one
//! node, which may select a rule in vain and never misses one. A rule passes the same nodes when it is inserted and when
//! it is removed, each fork counting it once per passage; a fork that counts none is removed. What a fork says of its
//! continuations is not taken back before that.
//!
//! The work grows with the depth of the path and the number of matches, not with the number of rules: at each segment
//! there is one literal child to look up and one parameter child to follow.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::near;
use crate::request::target::{Target, segments};
use crate::rule::index::{Hashed, Index};
use crate::rule::pattern::covers;
use crate::rule::set::Rules;
use crate::rule::{Mode, PathCase, Rule, RuleInForce};

mod walk;

#[cfg(test)]
pub(in crate::rule) use walk::HASH_MASK;
use walk::{Node, Standing, Walk, below};

pub(crate) type Matches<'r> = SmallVec<[&'r Arc<RuleInForce>; 4]>;

#[derive(Clone, Default)]
pub(crate) struct Matcher {
    /// One item for each hash.
    nodes: Index<Entry>,
    /// The rules of leaves that are forks; several may have the same hash.
    lists: Index<Entry>,
    /// How many rules are for a host, and for the hosts below one.
    hosts: usize,
    below_hosts: usize,
    /// How paths are compared; chosen before the first rule comes.
    case: PathCase,
}

/// Segments whose nodes are prefetched before the first is read.
const PREFETCHED: usize = 4;

/// A rule's number, or a fork.
#[derive(Clone, Copy)]
struct Entry {
    hash: u32,
    /// With [`Entry::FORK`]: continuations and, in the lower bits, a count.
    word: u32,
    /// Where the rule and the text of its path are in memory, to prefetch both while the number is looked up. They may have
    /// been replaced since. Of the fork of a host `text` is the host's name.
    rule: Hint,
    text: Hint,
}

/// Bits 4 to 35 of an address; the others are those of what is near.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Hint(u32);

impl Hint {
    const NONE: Hint = Hint(0);

    fn at(address: usize) -> Hint {
        Hint((address >> 4) as u32)
    }

    /// `nearby` is less than 2^35 bytes away from what is hinted at, or the hint is useless.
    #[inline]
    fn prefetch(self, nearby: usize) {
        let distance = self.0.wrapping_sub((nearby >> 4) as u32) as i32;
        let address = (nearby & !0xf).wrapping_add_signed(distance as isize * 16);
        // A rule, or a text of usual length: two lines.
        near::fetch(address, near::LINE + 1);
    }
}

enum Found {
    Rule(u32),
    Fork { below: u32 },
}

impl Entry {
    const FORK: u32 = 1 << 31;
    const COUNT_BITS: u32 = 24;
    const COUNT: u32 = (1 << Self::COUNT_BITS) - 1;

    fn rule(rule: &Arc<RuleInForce>, number: u32) -> Entry {
        let text = Hint::at(rule.pattern.address());
        Entry { hash: 0, word: number, rule: Hint::at(Arc::as_ptr(rule).addr()), text }
    }

    /// The same rule at another place.
    fn at(self, hash: u32) -> Entry {
        Entry { hash, ..self }
    }

    fn fork(hash: u32) -> Entry {
        Entry { hash, word: Self::FORK, rule: Hint::NONE, text: Hint::NONE }
    }

    #[inline]
    fn found(self) -> Found {
        match self.word & Self::FORK {
            0 => Found::Rule(self.word),
            _ => Found::Fork { below: (self.word & !Self::FORK) >> Self::COUNT_BITS },
        }
    }

    /// Of a fork: prefetches the host's name, if it is that of a host.
    #[inline]
    fn prefetch_host(&self) {
        if self.text != Hint::NONE {
            self.text.prefetch(std::ptr::from_ref(self).addr());
        }
    }

    /// Of a rule: prefetches it and its path.
    #[inline]
    fn prefetch(&self) {
        let nearby = std::ptr::from_ref(self).addr();
        self.rule.prefetch(nearby);
        self.text.prefetch(nearby);
    }

    /// A fork is passed by one more rule, which goes on with `below`.
    fn pass(&mut self, below: u32) {
        self.word = (self.word | below << Self::COUNT_BITS) + 1;
    }

    /// A fork is passed by one rule less; whether there are others.
    fn leave(&mut self) -> bool {
        self.word -= 1;
        self.word & Self::COUNT > 0
    }
}

impl Hashed for Entry {
    fn hash(&self) -> u32 {
        self.hash
    }
}

impl Matcher {
    pub(crate) fn new(case: PathCase) -> Matcher {
        Matcher { case, ..Matcher::default() }
    }

    /// Whether any rule is for some hosts only.
    pub(crate) fn names_hosts(&self) -> bool {
        self.hosts > 0
    }

    /// More rules could not be counted: a rule passes a node once, and twice only where its hashes collide.
    pub(crate) const MAX_RULES: usize = 1 << (Entry::COUNT_BITS - 1);

    /// Adds a rule; returns how many of its pattern one request may now meet.
    pub(crate) fn insert(&mut self, rules: &Rules, rule: &Rule, number: u32) -> usize {
        self.hosts += usize::from(rule.pattern.host.is_some());
        self.below_hosts += usize::from(is_below(rule));
        let walk = Walk::of(rule, self.case);
        (0..walk.len()).for_each(|at| self.nodes.prefetch(walk.hash(at)));
        let entry = Entry::rule(&rules[number as usize], number);
        if self.put(rules, &walk, entry, 0) { self.met(rules, rule, &walk) } else { 1 }
    }

    /// Puts a rule at the first node from `at` on that is free; whether it shares its leaf with others.
    fn put(&mut self, rules: &Rules, walk: &Walk, rule: Entry, at: usize) -> bool {
        for at in at..walk.len() {
            let hash = walk.hash(at);
            let Some(entry) = self.nodes.find_mut(hash, |_| true) else {
                self.nodes.insert(rule.at(hash));
                return false;
            };
            let Found::Rule(number) = entry.found() else {
                entry.pass(walk.below(at));
                continue;
            };
            let other = *entry;
            // The rule that was alone here goes on from here as well.
            let others = Walk::of(&rules[number as usize], self.case);
            let stands = others.position(hash).expect("a rule is at a node of its own walk");
            *entry = Entry::fork(hash);
            if let (0, Some(host)) = (at, &rules[number as usize].pattern.host) {
                entry.text = Hint::at(host.address());
            }
            entry.pass(others.below(stands));
            entry.pass(walk.below(at));
            self.put(rules, &others, other, stands + 1);
        }
        self.lists.insert(rule.at(walk.list));
        true
    }

    /// How many rules with a rule's pattern one request may meet.
    fn met(&self, rules: &Rules, rule: &Rule, walk: &Walk) -> usize {
        let count = |list: u32, counts: &dyn Fn(Standing<'_>) -> bool| {
            let listed = self.lists.find(list).map(|entry| &rules[entry.word as usize]);
            listed.filter(|other| counts(Standing::of(other)) && other.is_on_pattern_of(rule)).count()
        };
        let common = count(walk.leaf.common().hash(), &|standing| standing == Standing::Common);
        let others = match Standing::of(rule) {
            Standing::Common | Standing::General => {
                count(walk.leaf.general().hash(), &|standing| standing == Standing::General)
            }
            Standing::Own { uid } | Standing::Beside { uid } => count(
                walk.list,
                &|standing| matches!(standing, Standing::Own { uid: own } | Standing::Beside { uid: own } if own == uid),
            ),
        };
        common + others
    }

    pub(crate) fn remove(&mut self, rule: &Rule, number: u32) {
        if rule.mode == Mode::Off {
            return; // it was never here
        }
        self.hosts -= usize::from(rule.pattern.host.is_some());
        self.below_hosts -= usize::from(is_below(rule));
        let walk = Walk::of(rule, self.case);
        for at in 0..walk.len() {
            let hash = walk.hash(at);
            let Some(entry) = self.nodes.find_mut(hash, |_| true) else { return };
            match entry.found() {
                Found::Rule(found) => {
                    debug_assert_eq!(found, number, "a rule is found where it was put");
                    self.nodes.remove(hash, |_| true);
                    return;
                }
                Found::Fork { .. } if entry.leave() => {}
                Found::Fork { .. } => _ = self.nodes.remove(hash, |_| true),
            }
        }
        self.lists.remove(walk.list, |entry| entry.word == number);
    }

    /// All rules that match, in their order.
    pub(crate) fn find<'r, U: AsRef<str>>(
        &self,
        rules: &'r Rules,
        target: &Target<'_>,
        user: impl Fn() -> Option<U>,
    ) -> Matches<'r> {
        let folded;
        let target = match self.case {
            PathCase::Sensitive => target,
            PathCase::Insensitive => {
                folded = target.clone().with_lower_path();
                &folded
            }
        };
        let mut search = Search { matcher: self, rules, target, user, matches: Matches::new() };
        let host = target.host();
        if !host.is_empty() && self.hosts > self.below_hosts {
            search.prefetch(Node::host(host));
            search.root(Node::host(host));
        }
        if self.below_hosts > 0 {
            parents(host).for_each(|parent| search.root(Node::hosts_below(parent)));
        }
        if self.hosts < rules.len() {
            search.prefetch(Node::ANY_HOST);
            search.root(Node::ANY_HOST);
        }
        let mut matches = search.matches;
        if matches.len() > 1 {
            replace_general(&mut matches);
            matches.sort_unstable_by_key(|rule| rule.order());
        }
        matches
    }
}

/// Takes out the general rules for which a user's own rule stands in.
fn replace_general(matches: &mut Matches<'_>) {
    let is_own = |rule: &&Arc<RuleInForce>| matches!(Standing::of(rule), Standing::Own { .. });
    let own: Matches<'_> = matches.iter().copied().filter(is_own).collect();
    if !own.is_empty() {
        let is_replaced = |rule: &Rule| {
            Standing::of(rule) == Standing::General && own.iter().any(|own| own.is_on_pattern_of(rule))
        };
        matches.retain(|rule| !is_replaced(rule));
    }
}

#[cfg(test)]
impl Matcher {
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.lists.is_empty() && self.hosts + self.below_hosts == 0
    }
}

fn is_below(rule: &Rule) -> bool {
    rule.pattern.host.as_ref().is_some_and(|host| host.below().is_some())
}

/// The domains above a host, nearest first.
fn parents(host: &str) -> impl Iterator<Item = &str> {
    /// A host name has at most 127 labels.
    const MAX_LABELS: usize = 127;
    host.match_indices('.').take(MAX_LABELS).map(|(dot, _)| &host[dot + 1..])
}

struct Search<'s, 't, 'r, F> {
    matcher: &'s Matcher,
    rules: &'r Rules,
    target: &'s Target<'t>,
    /// Asked for only where users have rules of their own.
    user: F,
    matches: Matches<'r>,
}

impl<'r, U: AsRef<str>, F: Fn() -> Option<U>> Search<'_, '_, 'r, F> {
    fn root(&mut self, root: Node) {
        self.node(root, segments(self.target.path()));
    }

    /// Prefetches the nodes of the first literals together, so that their cache misses overlap; the forks of the index
    /// come first.
    fn prefetch(&self, root: Node) {
        let nodes = &self.matcher.nodes;
        if !nodes.is_large() {
            return;
        }
        let mut hashes = SmallVec::<[u32; 1 + PREFETCHED]>::new();
        let mut node = root;
        hashes.push(node.hash());
        nodes.prefetch_branch(node.hash());
        for segment in segments(self.target.path()).take(PREFETCHED) {
            node = node.literal(segment);
            hashes.push(node.hash());
            nodes.prefetch_branch(node.hash());
        }
        hashes.iter().for_each(|hash| nodes.prefetch(*hash));
    }

    /// A pattern is at most [`Pattern::MAX_SEGMENTS`](crate::rule::Pattern::MAX_SEGMENTS) deep, and so is this
    /// recursion.
    fn node<'p>(&mut self, node: Node, rest: impl Iterator<Item = &'p str> + Clone) {
        if let Some(entry) = self.matcher.nodes.find(node.hash()).next() {
            self.entry(entry, node, rest);
        }
    }

    fn entry<'p>(&mut self, entry: &Entry, node: Node, mut rest: impl Iterator<Item = &'p str> + Clone) {
        let below = match entry.found() {
            Found::Rule(number) => return self.lone(entry, number),
            Found::Fork { below } => below,
        };
        entry.prefetch_host();
        if below & below::PATHLESS != 0 {
            self.leaf(node.pathless());
        }
        if self.target.path().is_empty() {
            return;
        }
        let method = Some(self.target.method());
        // Rules for another method that are about this one, too.
        let covering = Some("GET").filter(|own| method != Some(own) && covers(own, self.target.method()));
        if below & below::OPEN_ANY != 0 {
            self.leaf(node.open_ended(None));
        }
        if below & below::OPEN_METHOD != 0 {
            self.leaf(node.open_ended(method));
            covering.into_iter().for_each(|other| self.leaf(node.open_ended(Some(other))));
        }
        let Some(segment) = rest.next() else {
            if below & below::EXACT_ANY != 0 {
                self.leaf(node.exact(None));
            }
            if below & below::EXACT_METHOD != 0 {
                self.leaf(node.exact(method));
                covering.into_iter().for_each(|other| self.leaf(node.exact(Some(other))));
            }
            return;
        };
        if below & below::LITERAL != 0 {
            self.node(node.literal(segment), rest.clone());
        }
        if below & below::PARAM != 0 {
            self.node(node.param(), rest);
        }
    }

    /// A rule that shares its pattern with no other.
    fn lone(&mut self, entry: &Entry, number: u32) {
        entry.prefetch();
        let rule = &self.rules[number as usize];
        let is_users = |uid: &str| (self.user)().is_some_and(|user| user.as_ref() == uid);
        if rule.meets(self.target, self.matcher.case) && rule.uid.as_ref().is_none_or(|uid| is_users(uid)) {
            self.add(rule);
        }
    }

    fn leaf(&mut self, leaf: Node) {
        let Some(entry) = self.matcher.nodes.find(leaf.hash()).next() else { return };
        let below = match entry.found() {
            Found::Rule(number) => return self.lone(entry, number),
            Found::Fork { below } => below,
        };
        if below & below::OWN != 0
            && let Some(user) = (self.user)()
        {
            let user = user.as_ref();
            self.list(leaf.own(user), |rule| rule.uid.as_deref() == Some(user));
        }
        if below & below::GENERAL != 0 {
            self.list(leaf.general(), |rule| Standing::of(rule) == Standing::General);
        }
        if below & below::COMMON != 0 {
            self.list(leaf.common(), |rule| Standing::of(rule) == Standing::Common);
        }
    }

    /// Adds the rules of a list that match, if they belong there.
    fn list(&mut self, list: Node, belongs: impl Fn(&Rule) -> bool) {
        for entry in self.matcher.lists.find(list.hash()) {
            entry.prefetch();
            let rule = &self.rules[entry.word as usize];
            if belongs(rule) && rule.meets(self.target, self.matcher.case) {
                self.add(rule);
            }
        }
    }

    /// A rule may be found twice where hashes collide.
    #[inline]
    fn add(&mut self, rule: &'r Arc<RuleInForce>) {
        if !self.matches.iter().any(|known| Arc::ptr_eq(known, rule)) {
            self.matches.push(rule);
        }
    }
}
