//! What the rules and bans in force need of a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use arc_swap::{ArcSwap, Guard};
use tollgate::FieldSource;
use tollgate::internal::PolicySnapshot;
use tollgate::internal::http::FieldSelection;
use tollgate::internal::identity::{Attribute, Key};

#[derive(Clone)]
pub(crate) struct RequestNeeds {
    fields: FieldSelection,
    parts: u8,
}

/// Parts of a request, as bits.
mod parts {
    /// Method, path and query.
    pub const TARGET: u8 = 1;
    pub const HOST: u8 = 1 << 1;
    pub const IP: u8 = 1 << 2;
    /// Headers.
    pub const FIELDS: u8 = 1 << 3;
}

/// The needs of all policies and bans since the layer was built. They only ever grow.
///
/// They are raised before what needs them comes into force, and read after the policy was: a reader that sees a policy
/// sees its needs.
pub(crate) struct NeedsInForce {
    parts: AtomicU8,
    /// Read only if a header is needed: most rules need none.
    fields: ArcSwap<FieldSelection>,
}

/// The needs at the time of a request.
pub(crate) struct LoadedNeeds {
    parts: u8,
    fields: Option<Guard<Arc<FieldSelection>>>,
}

impl RequestNeeds {
    pub(crate) fn of_policy(policy: &PolicySnapshot, bans: &[Attribute]) -> RequestNeeds {
        let mut needs = RequestNeeds::of_fields(FieldSelection::of_policy(policy, bans));
        if policy.rules().iter().any(|rule| !rule.match_text().is_empty()) {
            needs.parts |= parts::TARGET;
        }
        if policy.names_hosts() {
            needs.parts |= parts::HOST;
        }
        policy.attributes().for_each(|attribute| needs.add(attribute));
        bans.iter().for_each(|attribute| needs.add(attribute));
        needs
    }

    pub(crate) fn of_key(key: &Key) -> RequestNeeds {
        let mut needs = RequestNeeds::of_fields(FieldSelection::of_key(key));
        key.parts().iter().for_each(|(attribute, _)| needs.add(attribute));
        needs
    }

    fn of_fields(fields: FieldSelection) -> RequestNeeds {
        let parts = if fields.headers.is_empty() { 0 } else { parts::FIELDS };
        RequestNeeds { fields, parts }
    }

    fn add(&mut self, attribute: &Attribute) {
        self.parts |= match attribute {
            Attribute::Ip => parts::IP,
            Attribute::Host => parts::HOST,
            Attribute::Method | Attribute::Path | Attribute::Field(FieldSource::Query, _) => parts::TARGET,
            _ => 0,
        };
    }
}

impl NeedsInForce {
    pub(crate) fn new(needs: RequestNeeds) -> NeedsInForce {
        NeedsInForce { parts: AtomicU8::new(needs.parts), fields: ArcSwap::from_pointee(needs.fields) }
    }

    /// To be called before what has these needs comes into force. What is no longer needed is harmless.
    pub(crate) fn raise(&self, more: &RequestNeeds) {
        self.fields.rcu(|fields| fields.union(&more.fields));
        // Release: who sees the bit of the fields sees the fields.
        self.parts.fetch_or(more.parts, Ordering::Release);
    }

    /// To be called after the policy was read.
    #[inline]
    pub(crate) fn load(&self) -> LoadedNeeds {
        let parts = self.parts.load(Ordering::Acquire);
        LoadedNeeds { parts, fields: (parts & parts::FIELDS != 0).then(|| self.fields.load()) }
    }

    /// As [`load`](Self::load), for longer.
    #[cfg(feature = "_store")]
    pub(crate) fn load_full(&self) -> LoadedNeeds {
        let LoadedNeeds { parts, fields } = self.load();
        LoadedNeeds { parts, fields: fields.map(|fields| Guard::from_inner(Guard::into_inner(fields))) }
    }
}

impl LoadedNeeds {
    #[inline]
    pub(crate) fn target(&self) -> bool {
        self.parts & parts::TARGET != 0
    }

    #[inline]
    pub(crate) fn host(&self) -> bool {
        self.parts & parts::HOST != 0
    }

    #[inline]
    pub(crate) fn ip(&self) -> bool {
        self.parts & parts::IP != 0
    }

    /// The headers, if there are any.
    #[inline]
    pub(crate) fn fields(&self) -> Option<&FieldSelection> {
        self.fields.as_deref().map(|fields| &**fields)
    }
}
