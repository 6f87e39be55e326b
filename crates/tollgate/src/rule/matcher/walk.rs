//! The way from a host to the rules of one pattern, as a sequence of hashed nodes.

use smallvec::SmallVec;

use crate::identity::Attribute;
use crate::rule::index::fold;
use crate::rule::pattern::Segment;
use crate::rule::{Mode, PathCase, Rule};

/// What a fork may continue with.
pub(super) mod below {
    pub(in super::super) const LITERAL: u32 = 1;
    pub(in super::super) const PARAM: u32 = 1 << 1;
    /// A leaf for requests with any path, or none.
    pub(in super::super) const PATHLESS: u32 = 1 << 2;
    /// Leaves of rules for any method, or for one.
    pub(in super::super) const EXACT_ANY: u32 = 1 << 3;
    pub(in super::super) const EXACT_METHOD: u32 = 1 << 4;
    pub(in super::super) const OPEN_ANY: u32 = 1 << 5;
    pub(in super::super) const OPEN_METHOD: u32 = 1 << 6;
    /// Of a leaf: see [`Standing`](super::Standing).
    pub(in super::super) const COMMON: u32 = 1;
    pub(in super::super) const GENERAL: u32 = 1 << 1;
    pub(in super::super) const OWN: u32 = 1 << 2;
}

/// A node is the hash of all that leads to it; the index knows it by [`Node::hash`].
#[derive(Clone, Copy)]
pub(super) struct Node(u64);

impl Node {
    pub(super) const ANY_HOST: Node = Node(0x243f_6a88_85a3_08d3);

    pub(super) fn host(name: &str) -> Node {
        Node(0x1319_8a2e_0370_7344).text(name)
    }

    pub(super) fn hosts_below(domain: &str) -> Node {
        Node(0xa409_3822_299f_31d0).text(domain)
    }

    #[inline]
    pub(super) fn literal(self, segment: &str) -> Node {
        self.text(segment)
    }

    pub(super) fn param(self) -> Node {
        self.mark(1)
    }

    pub(super) fn pathless(self) -> Node {
        self.mark(2)
    }

    pub(super) fn exact(self, method: Option<&str>) -> Node {
        self.mark(3).text(method.unwrap_or_default())
    }

    pub(super) fn open_ended(self, method: Option<&str>) -> Node {
        self.mark(4).text(method.unwrap_or_default())
    }

    pub(super) fn common(self) -> Node {
        self.mark(5)
    }

    pub(super) fn general(self) -> Node {
        self.mark(6)
    }

    #[inline]
    pub(super) fn own(self, uid: &str) -> Node {
        self.mark(7).text(uid)
    }

    #[inline]
    pub(super) fn hash(self) -> u32 {
        let hash = (self.0 ^ self.0 >> 32) as u32;
        #[cfg(test)]
        let hash = hash & HASH_MASK.get();
        hash
    }

    /// What is looked up comes from clients, but what is put in from the operator only: the hash needs no secret.
    #[inline]
    fn text(self, text: &str) -> Node {
        let mut state = fold(self.0, text.len() as u64);
        let (words, rest) = text.as_bytes().as_chunks::<8>();
        for word in words {
            state = fold(state, u64::from_le_bytes(*word));
        }
        let last = rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Node(fold(state, last))
    }

    #[inline]
    fn mark(self, mark: u64) -> Node {
        Node(fold(!self.0, mark))
    }
}

#[cfg(test)]
thread_local! {
    /// With fewer bits hashes collide, as those of a million rules may.
    pub(in crate::rule) static HASH_MASK: std::cell::Cell<u32> = const { std::cell::Cell::new(u32::MAX) };
}

/// How a rule relates to others with the same pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing<'r> {
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

impl<'r> Standing<'r> {
    pub(super) fn of(rule: &'r Rule) -> Standing<'r> {
        match &rule.uid {
            Some(uid) if rule.mode == Mode::Shadow => Standing::Beside { uid },
            Some(uid) => Standing::Own { uid },
            None if rule.key == [Attribute::User] => Standing::General,
            None => Standing::Common,
        }
    }
}

/// The nodes of a rule: the root of its host, one for each segment of its path, and the leaf of its pattern. Behind the
/// leaf is a list.
pub(super) struct Walk {
    /// Each with what the node above must say of it; [`Walk::below`] has it.
    nodes: SmallVec<[(u32, u32); 8]>,
    pub(super) leaf: Node,
    /// The list, and what the leaf must say of it.
    pub(super) list: u32,
    in_leaf: u32,
}

impl Walk {
    pub(super) fn of(rule: &Rule, case: PathCase) -> Walk {
        let pattern = &rule.pattern;
        let mut node = match pattern.host.as_ref().map(|host| (host, host.below())) {
            None => Node::ANY_HOST,
            Some((_, Some(domain))) => Node::hosts_below(domain),
            Some((host, None)) => Node::host(host.as_str()),
        };
        let mut nodes = SmallVec::new();
        nodes.push((node.hash(), 0));
        for segment in pattern.segments() {
            let (next, flag) = match segment {
                Segment::Literal(text) => (node.literal(&case.fold(text)), below::LITERAL),
                Segment::Param => (node.param(), below::PARAM),
            };
            node = next;
            nodes.push((node.hash(), flag));
        }
        let method = rule.method.name();
        let (leaf, flag) = match (pattern.path(), pattern.is_open_ended(), method) {
            (None, ..) => (node.pathless(), below::PATHLESS),
            (_, false, None) => (node.exact(None), below::EXACT_ANY),
            (_, false, Some(_)) => (node.exact(method), below::EXACT_METHOD),
            (_, true, None) => (node.open_ended(None), below::OPEN_ANY),
            (_, true, Some(_)) => (node.open_ended(method), below::OPEN_METHOD),
        };
        nodes.push((leaf.hash(), flag));
        let (list, in_leaf) = match Standing::of(rule) {
            Standing::Common => (leaf.common(), below::COMMON),
            Standing::General => (leaf.general(), below::GENERAL),
            Standing::Own { uid } | Standing::Beside { uid } => (leaf.own(uid), below::OWN),
        };
        Walk { nodes, leaf, list: list.hash(), in_leaf }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn hash(&self, at: usize) -> u32 {
        self.nodes[at].0
    }

    /// With what the walk goes on after a node.
    pub(super) fn below(&self, at: usize) -> u32 {
        self.nodes.get(at + 1).map_or(self.in_leaf, |(_, flag)| *flag)
    }

    /// The first node with this hash.
    pub(super) fn position(&self, hash: u32) -> Option<usize> {
        self.nodes.iter().position(|(known, _)| *known == hash)
    }
}
