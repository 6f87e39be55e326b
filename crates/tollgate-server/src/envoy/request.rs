//! A request of the rate limit service, independent of its encoding.

use std::borrow::Cow;

use smallvec::SmallVec;
use thiserror::Error;
use tollgate::internal::time::Unit;

use crate::check_bounds::{MAX_COST, MAX_VALUE_BYTES};

const MAX_DESCRIPTORS: usize = 100;
const MAX_ENTRIES: usize = 64;
/// A limit of more than a billion a second is not supported, and not reached.
const MAX_REQUESTS: u32 = 1_000_000_000;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RateLimitRequest<'a> {
    pub domain: Cow<'a, str>,
    pub descriptors: SmallVec<[Descriptor<'a>; 2]>,
    /// The cost of descriptors that have none of their own; 0 counts as 1.
    pub hits_addend: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Descriptor<'a> {
    pub entries: SmallVec<[Entry<'a>; 3]>,
    /// A limit that the caller brings along.
    pub limit: Option<LimitOverride>,
    /// Its own cost; 0 charges nothing.
    pub hits_addend: Option<u64>,
    /// Whether its cost is given back instead of charged.
    pub is_refund: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Entry<'a> {
    pub key: Cow<'a, str>,
    pub value: Cow<'a, str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LimitOverride {
    pub requests_per_unit: u32,
    pub unit: LimitUnit,
}

/// The units of Envoy, with their numbers in its messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LimitUnit {
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

impl LimitUnit {
    pub const ALL: [LimitUnit; 7] = [
        LimitUnit::Second,
        LimitUnit::Minute,
        LimitUnit::Hour,
        LimitUnit::Day,
        LimitUnit::Month,
        LimitUnit::Year,
        LimitUnit::Week,
    ];

    pub fn from_number(number: u32) -> Option<LimitUnit> {
        Self::ALL.into_iter().find(|unit| *unit as u32 == number)
    }

    /// By its name, in any case.
    pub fn parse(name: &str) -> Option<LimitUnit> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// A number per unit as a rule has it.
    pub fn rate(self, requests: u32) -> String {
        format!("{}/{}", requests.min(MAX_REQUESTS), self.name().to_ascii_lowercase())
    }

    pub fn of(unit: Unit) -> LimitUnit {
        match unit {
            Unit::Second => LimitUnit::Second,
            Unit::Minute => LimitUnit::Minute,
            Unit::Hour => LimitUnit::Hour,
            Unit::Day => LimitUnit::Day,
            Unit::Week => LimitUnit::Week,
            Unit::Month => LimitUnit::Month,
            Unit::Year => LimitUnit::Year,
        }
    }

    /// Its name in the JSON form of messages.
    pub const fn name(self) -> &'static str {
        match self {
            LimitUnit::Second => "SECOND",
            LimitUnit::Minute => "MINUTE",
            LimitUnit::Hour => "HOUR",
            LimitUnit::Day => "DAY",
            LimitUnit::Month => "MONTH",
            LimitUnit::Year => "YEAR",
            LimitUnit::Week => "WEEK",
        }
    }
}

/// Why a request cannot be decided.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RequestError {
    #[error("rate limit domain must not be empty")]
    NoDomain,
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    #[error("{count} descriptors in one request: at most {MAX_DESCRIPTORS}")]
    ManyDescriptors { count: usize },
    #[error("descriptors[{descriptor}] has no entries")]
    NoEntries { descriptor: usize },
    #[error("descriptors[{descriptor}] has {count} entries: at most {MAX_ENTRIES}")]
    ManyEntries { descriptor: usize, count: usize },
    #[error("descriptors[{descriptor}].entries[{entry}] has no key")]
    NoKey { descriptor: usize, entry: usize },
    #[error("the key of descriptors[{descriptor}].entries[{entry}] is longer than {MAX_VALUE_BYTES} bytes")]
    LongKey { descriptor: usize, entry: usize },
    #[error("domain is longer than {MAX_VALUE_BYTES} bytes")]
    LongDomain,
}

impl RateLimitRequest<'_> {
    /// What a descriptor costs; `None` if nothing is to be charged. More than any limit has is one above that: the value
    /// may come from a client, so it is denied, and no error, after which Envoy may let the request pass.
    pub fn cost_of(&self, descriptor: &Descriptor<'_>) -> Option<u64> {
        let cost = match descriptor.hits_addend {
            Some(0) => return None,
            Some(own) => own,
            None => u64::from(self.hits_addend.max(1)),
        };
        Some(cost.min(MAX_COST + 1))
    }

    /// Checks what the caller's configuration determines. Values of entries come from the clients of the caller, which
    /// may let a request pass after an error: the message bounds their length.
    pub fn validate(&self) -> Result<(), RequestError> {
        if self.domain.is_empty() {
            return Err(RequestError::NoDomain);
        }
        if self.domain.len() > MAX_VALUE_BYTES {
            return Err(RequestError::LongDomain);
        }
        match self.descriptors.len() {
            0 => return Err(RequestError::NoDescriptors),
            count if count > MAX_DESCRIPTORS => return Err(RequestError::ManyDescriptors { count }),
            _ => {}
        }
        self.descriptors.iter().enumerate().try_for_each(|(n, descriptor)| descriptor.validate(n))
    }
}

impl Descriptor<'_> {
    fn validate(&self, descriptor: usize) -> Result<(), RequestError> {
        match self.entries.len() {
            0 => return Err(RequestError::NoEntries { descriptor }),
            count if count > MAX_ENTRIES => return Err(RequestError::ManyEntries { descriptor, count }),
            _ => {}
        }
        for (entry, Entry { key, .. }) in self.entries.iter().enumerate() {
            if key.is_empty() {
                return Err(RequestError::NoKey { descriptor, entry });
            }
            if key.len() > MAX_VALUE_BYTES {
                return Err(RequestError::LongKey { descriptor, entry });
            }
        }
        Ok(())
    }
}
