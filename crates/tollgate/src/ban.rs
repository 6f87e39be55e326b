//! The ban list: `{key: until}`, manual or caused by repeated denials; bans expire.
//!
//! A banned key is denied before any rule is matched. The n-th ban of a key lasts `for × 2^(n−1)`, at most `max`; a
//! key without violations for `max` starts over.

use crate::time::Time;

mod bloom_filter;
mod fleet;
mod list;
mod load;
mod offender;
mod offenders;
mod pending_bans;
mod shard;
mod sketch;
mod violations;

pub(crate) use fleet::FleetBanSet;
pub(crate) use list::BanList;
pub use load::BanLoad;
pub use offender::{BanConditions, MAX_RULES, MAX_TIMES, Offender, RuleDenials, Strikes};
pub(crate) use pending_bans::PendingBanQueue;
pub(crate) use violations::ViolationQueue;
pub use violations::{RuleViolations, ViolationCounter, Violations};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ban {
    /// The first timestamp at which the ban no longer holds; [`Time::MAX`] if it never ends.
    pub until: Time,
    pub reason: String,
    pub source: BanSource,
    /// The number of consecutive automatic bans of the key.
    pub strikes: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BanSource {
    /// Written in the configuration file; changes only with the file.
    File,
    Manual,
    Automatic,
}

impl Ban {
    fn strikes(&self) -> Strikes {
        Strikes { count: self.strikes, until: self.until }
    }
}

impl BanSource {
    const ALL: [BanSource; 3] = [BanSource::File, BanSource::Manual, BanSource::Automatic];

    pub const fn name(self) -> &'static str {
        match self {
            BanSource::File => "file",
            BanSource::Manual => "manual",
            BanSource::Automatic => "automatic",
        }
    }

    pub fn parse(name: &str) -> Option<BanSource> {
        BanSource::ALL.into_iter().find(|source| source.name() == name)
    }
}
