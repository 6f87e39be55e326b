//! The path from a host to the rules of one pattern, as a sequence of hashed nodes.

use smallvec::SmallVec;

use crate::collections::hamt::fold;
use crate::identity::Attribute;
use crate::rule::pattern::Segment;
use crate::rule::{PathCase, Rule, RuleMode};

/// The possible continuations of a fork.
pub(super) mod flags {
    pub(in super::super) const LITERAL: u32 = 1;
    pub(in super::super) const PARAM: u32 = 1 << 1;
    /// A leaf for requests with any path, or none.
    pub(in super::super) const PATHLESS: u32 = 1 << 2;
    /// Leaves of rules for any method, or for one.
    pub(in super::super) const EXACT_ANY: u32 = 1 << 3;
    pub(in super::super) const EXACT_METHOD: u32 = 1 << 4;
    pub(in super::super) const OPEN_ANY: u32 = 1 << 5;
    pub(in super::super) const OPEN_METHOD: u32 = 1 << 6;
    /// Of a leaf: see [`RulePrecedence`](super::RulePrecedence).
    pub(in super::super) const COMMON: u32 = 1;
    pub(in super::super) const PER_USER: u32 = 1 << 1;
    pub(in super::super) const SINGLE_USER: u32 = 1 << 2;
}

/// A node is the hash of its path; the index stores it under [`TrieNode::hash`].
#[derive(Clone, Copy)]
pub(super) struct TrieNode(u64);

/// Distinguishes the nodes after a node that are not literal segments.
#[derive(Clone, Copy)]
enum NodeTag {
    Param = 1,
    /// Leaves; those of an exact or open-ended path are also distinguished by method.
    Pathless,
    Exact,
    OpenEnded,
    /// Lists behind a leaf, by [`RulePrecedence`]; those of single users are also distinguished by user.
    Common,
    PerUser,
    SingleUser,
}

impl TrieNode {
    pub(super) const ANY_HOST: TrieNode = TrieNode(0x243f_6a88_85a3_08d3);

    pub(super) fn host(name: &str) -> TrieNode {
        TrieNode(0x1319_8a2e_0370_7344).text(name)
    }

    pub(super) fn wildcard_host(domain: &str) -> TrieNode {
        TrieNode(0xa409_3822_299f_31d0).text(domain)
    }

    #[inline]
    pub(super) fn literal(self, segment: &str) -> TrieNode {
        self.text(segment)
    }

    pub(super) fn param(self) -> TrieNode {
        self.tagged(NodeTag::Param)
    }

    pub(super) fn pathless(self) -> TrieNode {
        self.tagged(NodeTag::Pathless)
    }

    pub(super) fn exact(self, method: Option<&str>) -> TrieNode {
        self.tagged(NodeTag::Exact).text(method.unwrap_or_default())
    }

    pub(super) fn open_ended(self, method: Option<&str>) -> TrieNode {
        self.tagged(NodeTag::OpenEnded).text(method.unwrap_or_default())
    }

    pub(super) fn common(self) -> TrieNode {
        self.tagged(NodeTag::Common)
    }

    pub(super) fn per_user(self) -> TrieNode {
        self.tagged(NodeTag::PerUser)
    }

    #[inline]
    pub(super) fn single_user(self, uid: &str) -> TrieNode {
        self.tagged(NodeTag::SingleUser).text(uid)
    }

    #[inline]
    pub(super) fn hash(self) -> u32 {
        let hash = (self.0 ^ self.0 >> 32) as u32;
        #[cfg(test)]
        let hash = hash & HASH_MASK.get();
        hash
    }

    /// Lookups come from clients, but only the operator inserts: the hash needs no secret.
    #[inline]
    fn text(self, text: &str) -> TrieNode {
        let mut state = fold(self.0, text.len() as u64);
        let (words, rest) = text.as_bytes().as_chunks::<8>();
        for word in words {
            state = fold(state, u64::from_le_bytes(*word));
        }
        let last = rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        TrieNode(fold(state, last))
    }

    #[inline]
    fn tagged(self, tag: NodeTag) -> TrieNode {
        TrieNode(fold(!self.0, tag as u64))
    }
}

#[cfg(test)]
thread_local! {
    /// Masks hashes in tests, so that they collide as those of a million rules may.
    pub(in crate::rule) static HASH_MASK: std::cell::Cell<u32> = const { std::cell::Cell::new(u32::MAX) };
}

/// How a rule relates to others with the same pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RulePrecedence<'r> {
    Common,
    /// Counted by user: a user's own rule replaces it.
    PerUser,
    SingleUser {
        uid: &'r str,
    },
    /// For one user, but in shadow: the rules by user still decide.
    SingleUserShadow {
        uid: &'r str,
    },
}

impl<'r> RulePrecedence<'r> {
    pub(super) fn of(rule: &'r Rule) -> RulePrecedence<'r> {
        match &rule.uid {
            Some(uid) if rule.mode == RuleMode::Shadow => RulePrecedence::SingleUserShadow { uid },
            Some(uid) => RulePrecedence::SingleUser { uid },
            None if rule.key == [Attribute::User] => RulePrecedence::PerUser,
            None => RulePrecedence::Common,
        }
    }

    /// The user that the rule is for, if it is for one.
    pub(super) fn uid(self) -> Option<&'r str> {
        match self {
            RulePrecedence::Common | RulePrecedence::PerUser => None,
            RulePrecedence::SingleUser { uid } | RulePrecedence::SingleUserShadow { uid } => Some(uid),
        }
    }
}

/// The nodes of a rule: the root of its host, one for each segment of its path, and the leaf of its pattern. The list
/// is behind the leaf.
pub(super) struct TriePath {
    /// Each with the flag that the node before it needs; see [`TriePath::continuation`].
    nodes: SmallVec<[(u32, u32); 8]>,
    pub(super) leaf: TrieNode,
    /// The list, and the flag that the leaf needs for it.
    pub(super) list: u32,
    leaf_flag: u32,
}

impl TriePath {
    pub(super) fn of(rule: &Rule, case: PathCase) -> TriePath {
        let pattern = &rule.pattern;
        let mut node = match pattern.host.as_ref().map(|host| (host, host.wildcard_domain())) {
            None => TrieNode::ANY_HOST,
            Some((_, Some(domain))) => TrieNode::wildcard_host(domain),
            Some((host, None)) => TrieNode::host(host.as_str()),
        };
        let mut nodes = SmallVec::new();
        nodes.push((node.hash(), 0));
        for segment in pattern.segments() {
            let (next, flag) = match segment {
                Segment::Literal(text) => (node.literal(&case.fold(text)), flags::LITERAL),
                Segment::Param => (node.param(), flags::PARAM),
            };
            node = next;
            nodes.push((node.hash(), flag));
        }
        let method = rule.method.name();
        let (leaf, flag) = match (pattern.path(), pattern.is_open_ended(), method) {
            (None, ..) => (node.pathless(), flags::PATHLESS),
            (_, false, None) => (node.exact(None), flags::EXACT_ANY),
            (_, false, Some(_)) => (node.exact(method), flags::EXACT_METHOD),
            (_, true, None) => (node.open_ended(None), flags::OPEN_ANY),
            (_, true, Some(_)) => (node.open_ended(method), flags::OPEN_METHOD),
        };
        nodes.push((leaf.hash(), flag));
        let (list, in_leaf) = match RulePrecedence::of(rule) {
            RulePrecedence::Common => (leaf.common(), flags::COMMON),
            RulePrecedence::PerUser => (leaf.per_user(), flags::PER_USER),
            RulePrecedence::SingleUser { uid } | RulePrecedence::SingleUserShadow { uid } => {
                (leaf.single_user(uid), flags::SINGLE_USER)
            }
        };
        TriePath { nodes, leaf, list: list.hash(), leaf_flag: in_leaf }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn hash(&self, at: usize) -> u32 {
        self.nodes[at].0
    }

    /// The flag of what follows a node: the next node or, after the leaf, the list.
    pub(super) fn continuation(&self, at: usize) -> u32 {
        self.nodes.get(at + 1).map_or(self.leaf_flag, |(_, flag)| *flag)
    }

    /// The first node with this hash.
    pub(super) fn position(&self, hash: u32) -> Option<usize> {
        self.nodes.iter().position(|(known, _)| *known == hash)
    }
}
