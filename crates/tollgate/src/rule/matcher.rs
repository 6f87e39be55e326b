//! Finds the rules that match a target: a trie of hosts and path segments whose nodes are hashes.
//!
//! A node is absent, or the number of the only rule below it, or a fork: flags for its possible continuations and a
//! count of its rules. All nodes are items of sixteen bytes in one [`Hamt`], found by the hash of their path, so that
//! a million rules on as many hosts and paths need little more than an item each. Rules with the same pattern are in a
//! list behind its leaf.
//!
//! The trie only selects candidates: each is compared with the whole request. Two nodes with the same hash are merged,
//! which may select a rule in vain but never misses one. A rule visits the same nodes when it is inserted and when it
//! is removed, and each fork counts it once per visit; a fork with a count of zero is removed. The flags of a fork are
//! not cleared before that.
//!
//! The work grows with the depth of the path and the number of matches, not with the number of rules: at each segment
//! there is one literal child to look up and one parameter child to follow.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::collections::InlineList;
use crate::collections::hamt::{Hamt, Hashed};
use crate::request::target::{Target, segments};
use crate::rule::pattern::covers;
use crate::rule::set::Rules;
use crate::rule::{PathCase, Rule, RuleInForce, RuleMode};

mod hint;
mod trie_path;

use hint::Hint;
#[cfg(test)]
pub(in crate::rule) use trie_path::HASH_MASK;
use trie_path::{RulePrecedence, TrieNode, TriePath, flags};

pub(crate) type Matches<'r> = InlineList<&'r Arc<RuleInForce>, 8>;

#[derive(Clone, Default)]
pub(crate) struct Matcher {
    /// At most one item per hash.
    nodes: Hamt<TrieEntry>,
    /// The rules of leaves that are forks; several may have the same hash.
    lists: Hamt<TrieEntry>,
    /// The number of rules for a host, and for the subdomains of one.
    hosts: usize,
    wildcard_hosts: usize,
    /// How paths are compared; set before the first insert.
    case: PathCase,
}

/// With up to so many rules each is compared with the request: the trie costs more than a comparison that fails.
const COMPARED_ONE_BY_ONE: usize = 4;
/// Segments whose nodes are prefetched before the first is read.
const PREFETCH_SEGMENTS: usize = 4;

/// A rule's number, or a fork.
#[derive(Clone, Copy)]
struct TrieEntry {
    hash: u32,
    /// With [`TrieEntry::FORK`]: flags and, in the low bits, a count.
    word: u32,
    /// Addresses of the rule and of its path's text, to prefetch both while the number is looked up. They may be
    /// stale. In the fork of a host, `text` is the host's name.
    rule: Hint,
    text: Hint,
}

enum NodeKind {
    Rule(u32),
    Fork { continuations: u32 },
}

impl TrieEntry {
    const FORK: u32 = 1 << 31;
    const COUNT_BITS: u32 = 24;
    const COUNT: u32 = (1 << Self::COUNT_BITS) - 1;

    fn rule(rule: &Arc<RuleInForce>, number: u32) -> TrieEntry {
        let text = Hint::at(rule.pattern.address());
        TrieEntry { hash: 0, word: number, rule: Hint::at(Arc::as_ptr(rule).addr()), text }
    }

    /// The same rule under another hash.
    fn at(self, hash: u32) -> TrieEntry {
        TrieEntry { hash, ..self }
    }

    fn fork(hash: u32) -> TrieEntry {
        TrieEntry { hash, word: Self::FORK, rule: Hint::NONE, text: Hint::NONE }
    }

    #[inline]
    fn kind(self) -> NodeKind {
        match self.word & Self::FORK {
            0 => NodeKind::Rule(self.word),
            _ => NodeKind::Fork { continuations: (self.word & !Self::FORK) >> Self::COUNT_BITS },
        }
    }

    /// For a fork: prefetches the host's name, if it is the fork of a host.
    #[inline]
    fn prefetch_host(&self) {
        if self.text != Hint::NONE {
            self.text.prefetch(std::ptr::from_ref(self).addr());
        }
    }

    /// For a rule: prefetches it and its path.
    #[inline]
    fn prefetch(&self) {
        let nearby = std::ptr::from_ref(self).addr();
        self.rule.prefetch(nearby);
        self.text.prefetch(nearby);
    }

    /// Adds a rule to a fork; `continuation` is the flag of the node that follows on its path.
    fn add_rule(&mut self, continuation: u32) {
        self.word = (self.word | continuation << Self::COUNT_BITS) + 1;
    }

    /// Removes a rule from a fork; returns whether others are left.
    fn remove_rule(&mut self) -> bool {
        self.word -= 1;
        self.word & Self::COUNT > 0
    }
}

impl Hashed for TrieEntry {
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

    /// The bound of the counts: a rule visits a node once, or twice if its hashes collide.
    pub(crate) const MAX_RULES: usize = 1 << (TrieEntry::COUNT_BITS - 1);

    /// Adds a rule; returns how many rules of its pattern one request may now match.
    pub(crate) fn insert(&mut self, rules: &Rules, rule: &Rule, number: u32) -> usize {
        self.hosts += usize::from(rule.pattern.host.is_some());
        self.wildcard_hosts += usize::from(has_wildcard_host(rule));
        let path = TriePath::of(rule, self.case);
        (0..path.len()).for_each(|at| self.nodes.prefetch(path.hash(at)));
        let entry = TrieEntry::rule(&rules[number as usize], number);
        if self.place(rules, &path, entry, 0) { self.max_matches(rules, rule, &path) } else { 1 }
    }

    /// Stores a rule at the first free node of its path from `start` on; returns whether it shares its leaf with others.
    fn place(&mut self, rules: &Rules, path: &TriePath, rule: TrieEntry, start: usize) -> bool {
        for at in start..path.len() {
            let hash = path.hash(at);
            let Some(entry) = self.nodes.find_mut(hash, |_| true) else {
                self.nodes.insert(rule.at(hash));
                return false;
            };
            let NodeKind::Rule(number) = entry.kind() else {
                entry.add_rule(path.continuation(at));
                continue;
            };
            // The rule that is alone here moves down its own path, and the node becomes a fork.
            let occupant = *entry;
            let occupant_path = TriePath::of(&rules[number as usize], self.case);
            let occupied_at = occupant_path.position(hash).expect("a rule is at a node of its own path");
            *entry = TrieEntry::fork(hash);
            if let (0, Some(host)) = (at, &rules[number as usize].pattern.host) {
                entry.text = Hint::at(host.address());
            }
            entry.add_rule(occupant_path.continuation(occupied_at));
            entry.add_rule(path.continuation(at));
            self.place(rules, &occupant_path, occupant, occupied_at + 1);
        }
        self.lists.insert(rule.at(path.list));
        true
    }

    /// How many rules with a rule's pattern one request may match: the common ones, and either those by user or, if
    /// the rule is for one user, the rules of that user.
    fn max_matches(&self, rules: &Rules, rule: &Rule, path: &TriePath) -> usize {
        let common =
            self.count_listed(rules, rule, path.leaf.common(), |other| other == RulePrecedence::Common);
        let of_one_user = match RulePrecedence::of(rule).uid() {
            Some(uid) => {
                self.count_listed(rules, rule, path.leaf.single_user(uid), |other| other.uid() == Some(uid))
            }
            None => {
                self.count_listed(rules, rule, path.leaf.per_user(), |other| other == RulePrecedence::PerUser)
            }
        };
        common + of_one_user
    }

    /// The number of rules in a list that have the pattern of `rule` and a precedence that counts.
    fn count_listed(
        &self,
        rules: &Rules,
        rule: &Rule,
        list: TrieNode,
        counts: impl Fn(RulePrecedence<'_>) -> bool,
    ) -> usize {
        let listed = self.lists.find(list.hash()).map(|entry| &rules[entry.word as usize]);
        listed.filter(|other| counts(RulePrecedence::of(other)) && other.has_pattern_of(rule)).count()
    }

    pub(crate) fn remove(&mut self, rule: &Rule, number: u32) {
        if rule.mode == RuleMode::Off {
            return; // it is not in the trie
        }
        self.hosts -= usize::from(rule.pattern.host.is_some());
        self.wildcard_hosts -= usize::from(has_wildcard_host(rule));
        let path = TriePath::of(rule, self.case);
        for at in 0..path.len() {
            let hash = path.hash(at);
            let Some(entry) = self.nodes.find_mut(hash, |_| true) else { return };
            match entry.kind() {
                NodeKind::Rule(found) => {
                    debug_assert_eq!(found, number, "a rule is found where it was placed");
                    self.nodes.remove(hash, |_| true);
                    return;
                }
                NodeKind::Fork { .. } if entry.remove_rule() => {}
                NodeKind::Fork { .. } => _ = self.nodes.remove(hash, |_| true),
            }
        }
        self.lists.remove(path.list, |entry| entry.word == number);
    }

    /// Writes all rules that match, in their order, into an empty list.
    #[inline(always)]
    pub(crate) fn find<'r, U: AsRef<str>>(
        &self,
        rules: &'r Rules,
        target: &Target<'_>,
        user: impl Fn() -> Option<U>,
        matches: &mut Matches<'r>,
    ) {
        if rules.len() > COMPARED_ONE_BY_ONE || self.case == PathCase::Insensitive {
            return self.search(rules, target, user, matches);
        }
        let mut has_own = false;
        for rule in rules.iter() {
            if rule.mode != RuleMode::Off && rule.matches(target, self.case) && is_for(rule, &user) {
                has_own |= rule.uid.is_some();
                matches.push(rule);
            }
        }
        settle_precedence(matches, has_own);
    }

    /// As above, by the trie.
    #[inline(never)]
    fn search<'r, U: AsRef<str>>(
        &self,
        rules: &'r Rules,
        target: &Target<'_>,
        user: impl Fn() -> Option<U>,
        matches: &mut Matches<'r>,
    ) {
        let folded;
        let target = match self.case {
            PathCase::Sensitive => target,
            PathCase::Insensitive => {
                folded = target.clone().with_lower_path();
                &folded
            }
        };
        let mut search = TrieSearch { matcher: self, rules, target, user, has_own: false, matches };
        let host = target.host();
        if !host.is_empty() && self.hosts > self.wildcard_hosts {
            search.root(TrieNode::host(host));
        }
        if self.wildcard_hosts > 0 {
            parents(host)
                .for_each(|parent| search.node(TrieNode::wildcard_host(parent), || segments(target.path())));
        }
        if self.hosts < rules.len() {
            search.root(TrieNode::ANY_HOST);
        }
        settle_precedence(search.matches, search.has_own);
    }
}

/// Removes what a user's own rule replaces, if there is one, and puts the matches in order.
#[inline(always)]
fn settle_precedence(matches: &mut Matches<'_>, has_own: bool) {
    if has_own && matches.len() > 1 {
        drop_replaced(matches);
    }
    if !matches.is_sorted_by_key(|rule| rule.order()) {
        matches.sort_unstable_by_key(|rule| rule.order());
    }
}

/// Removes the rules by user that a user's own rule replaces.
fn drop_replaced(matches: &mut Matches<'_>) {
    let is_own =
        |rule: &&Arc<RuleInForce>| matches!(RulePrecedence::of(rule), RulePrecedence::SingleUser { .. });
    let own: Vec<_> = matches.iter().copied().filter(is_own).collect();
    if !own.is_empty() {
        let is_replaced = |rule: &Rule| {
            RulePrecedence::of(rule) == RulePrecedence::PerUser
                && own.iter().any(|own| own.has_pattern_of(rule))
        };
        matches.retain(|rule| !is_replaced(rule));
    }
}

#[cfg(test)]
impl Matcher {
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.lists.is_empty() && self.hosts + self.wildcard_hosts == 0
    }
}

fn has_wildcard_host(rule: &Rule) -> bool {
    rule.pattern.host.as_ref().is_some_and(|host| host.wildcard_domain().is_some())
}

/// The domains above a host, nearest first.
fn parents(host: &str) -> impl Iterator<Item = &str> {
    /// A host name has at most 127 labels.
    const MAX_LABELS: usize = 127;
    host.match_indices('.').take(MAX_LABELS).map(|(dot, _)| &host[dot + 1..])
}

/// Whether a rule is for all users, or for the one of a request.
#[inline(always)]
fn is_for<U: AsRef<str>>(rule: &Rule, user: &impl Fn() -> Option<U>) -> bool {
    rule.uid.as_ref().is_none_or(|uid| user().is_some_and(|user| user.as_ref() == &**uid))
}

struct TrieSearch<'s, 't, 'r, F> {
    matcher: &'s Matcher,
    rules: &'r Rules,
    target: &'s Target<'t>,
    /// Called only if there are rules for single users.
    user: F,
    /// Whether a rule for a single user was found.
    has_own: bool,
    matches: &'s mut Matches<'r>,
}

impl<'r, U: AsRef<str>, F: Fn() -> Option<U>> TrieSearch<'_, '_, 'r, F> {
    #[inline(always)]
    fn root(&mut self, root: TrieNode) {
        if self.matcher.nodes.is_large() {
            self.prefetch(root);
        }
        self.node(root, || segments(self.target.path()));
    }

    /// Prefetches the nodes of the first literals together, so that their cache misses overlap; the branches of the
    /// trie's index first.
    fn prefetch(&self, root: TrieNode) {
        let nodes = &self.matcher.nodes;
        let mut hashes = SmallVec::<[u32; 1 + PREFETCH_SEGMENTS]>::new();
        let mut node = root;
        hashes.push(node.hash());
        nodes.prefetch_branch(node.hash());
        for segment in segments(self.target.path()).take(PREFETCH_SEGMENTS) {
            node = node.literal(segment);
            hashes.push(node.hash());
            nodes.prefetch_branch(node.hash());
        }
        hashes.iter().for_each(|hash| nodes.prefetch(*hash));
    }

    #[inline(always)]
    fn node<'p, I: Iterator<Item = &'p str> + Clone>(&mut self, node: TrieNode, rest: impl FnOnce() -> I) {
        let Some(entry) = self.matcher.nodes.get(node.hash()) else { return };
        match entry.kind() {
            NodeKind::Rule(number) => self.single_rule(entry, number),
            NodeKind::Fork { continuations } => {
                entry.prefetch_host();
                self.fork(continuations, node, rest());
            }
        }
    }

    /// The recursion is at most as deep as a pattern: [`Pattern::MAX_SEGMENTS`](crate::rule::Pattern::MAX_SEGMENTS).
    fn fork<'p>(
        &mut self,
        continuations: u32,
        node: TrieNode,
        mut rest: impl Iterator<Item = &'p str> + Clone,
    ) {
        if continuations & flags::PATHLESS != 0 {
            self.leaf(node.pathless());
        }
        if self.target.path().is_empty() {
            return;
        }
        let method = Some(self.target.method());
        // Rules for another method that match this one, too.
        let covering = Some("GET").filter(|own| method != Some(own) && covers(own, self.target.method()));
        if continuations & flags::OPEN_ANY != 0 {
            self.leaf(node.open_ended(None));
        }
        if continuations & flags::OPEN_METHOD != 0 {
            self.leaf(node.open_ended(method));
            covering.into_iter().for_each(|other| self.leaf(node.open_ended(Some(other))));
        }
        let Some(segment) = rest.next() else {
            if continuations & flags::EXACT_ANY != 0 {
                self.leaf(node.exact(None));
            }
            if continuations & flags::EXACT_METHOD != 0 {
                self.leaf(node.exact(method));
                covering.into_iter().for_each(|other| self.leaf(node.exact(Some(other))));
            }
            return;
        };
        if continuations & flags::LITERAL != 0 {
            self.node(node.literal(segment), || rest.clone());
        }
        if continuations & flags::PARAM != 0 {
            self.node(node.param(), || rest);
        }
    }

    /// A rule that shares its pattern with no other.
    #[inline(always)]
    fn single_rule(&mut self, entry: &TrieEntry, number: u32) {
        if self.matcher.nodes.is_large() {
            entry.prefetch();
        }
        let rule = &self.rules[number as usize];
        if rule.matches(self.target, self.matcher.case) && is_for(rule, &self.user) {
            self.add(rule);
        }
    }

    fn leaf(&mut self, leaf: TrieNode) {
        let Some(entry) = self.matcher.nodes.get(leaf.hash()) else { return };
        let continuations = match entry.kind() {
            NodeKind::Rule(number) => return self.single_rule(entry, number),
            NodeKind::Fork { continuations } => continuations,
        };
        if continuations & flags::SINGLE_USER != 0
            && let Some(user) = (self.user)()
        {
            let user = user.as_ref();
            self.list(leaf.single_user(user), |rule| rule.uid.as_deref() == Some(user));
        }
        if continuations & flags::PER_USER != 0 {
            self.list(leaf.per_user(), |rule| RulePrecedence::of(rule) == RulePrecedence::PerUser);
        }
        if continuations & flags::COMMON != 0 {
            self.list(leaf.common(), |rule| RulePrecedence::of(rule) == RulePrecedence::Common);
        }
    }

    /// Adds the rules of a list that match, if they belong there.
    fn list(&mut self, list: TrieNode, belongs: impl Fn(&Rule) -> bool) {
        let is_large = self.matcher.nodes.is_large();
        for entry in self.matcher.lists.find(list.hash()) {
            if is_large {
                entry.prefetch();
            }
            let rule = &self.rules[entry.word as usize];
            if belongs(rule) && rule.matches(self.target, self.matcher.case) {
                self.add(rule);
            }
        }
    }

    /// A rule may be found twice if hashes collide.
    #[inline]
    fn add(&mut self, rule: &'r Arc<RuleInForce>) {
        if !self.matches.iter().any(|known| Arc::ptr_eq(known, rule)) {
            self.has_own |= rule.uid.is_some();
            self.matches.push(rule);
        }
    }
}
