//! The contestants, in the order of the columns.

use crate::contestant::{Allowance, Contestant};
use crate::entrant::{Entrant, enter};
use crate::floor::Floor;
use crate::growth::{Growth, grow};
use crate::keys::Key;
use crate::ours::{Ours, OursCached};
use crate::rival::{Gcra, Governor, Limitador, Pingora, Quota, Throttlecrab, Trypema};

pub const OURS: &str = "tollgate";
pub const CACHED: &str = "cached clock";
pub const FLOOR: &str = "floor";
pub const LIMITADOR: &str = "limitador";
pub const GOVERNOR: &str = "governor";
pub const GOVERNOR_AHASH: &str = "gov+ahash";
/// The names of those that estimate, or may overshoot, begin with this.
pub const INEXACT: char = '~';

pub struct Candidate<K> {
    pub name: &'static str,
    /// Takes part with many keys only where there is time.
    pub slow: bool,
    pub enter: fn(&'static str, Allowance, usize) -> Box<dyn Entrant<K>>,
    pub grow: fn(usize) -> Growth,
}

fn fast<K: Key, C: Contestant<K> + Send + 'static>(name: &'static str) -> Candidate<K> {
    Candidate { name, slow: false, enter: enter::<K, C>, grow: grow::<K, C> }
}

fn slow<K: Key, C: Contestant<K> + Send + 'static>(name: &'static str) -> Candidate<K> {
    Candidate { slow: true, ..fast::<K, C>(name) }
}

pub fn strings() -> Vec<Candidate<String>> {
    vec![
        fast::<String, Ours>(OURS),
        fast::<String, OursCached>(CACHED),
        fast::<String, Floor>(FLOOR),
        fast::<String, Governor<String>>(GOVERNOR),
        fast::<String, Governor<String, ahash::RandomState>>(GOVERNOR_AHASH),
        fast::<String, Quota<String>>("quota"),
        fast::<String, Gcra<String>>("gcra"),
        fast::<String, Throttlecrab>("throttlecrab"),
        slow::<String, Limitador>(LIMITADOR),
        slow::<String, Trypema>("~trypema"),
        fast::<String, Pingora>("~pingora"),
    ]
}

/// The others have no keys but strings.
pub fn numbers() -> Vec<Candidate<u64>> {
    vec![
        fast::<u64, Ours>(OURS),
        fast::<u64, OursCached>(CACHED),
        fast::<u64, Floor>(FLOOR),
        fast::<u64, Governor<u64>>(GOVERNOR),
        fast::<u64, Governor<u64, ahash::RandomState>>(GOVERNOR_AHASH),
        fast::<u64, Quota<u64>>("quota"),
        fast::<u64, Gcra<u64>>("gcra"),
        fast::<u64, Pingora>("~pingora"),
    ]
}

pub fn names() -> Vec<&'static str> {
    strings().iter().map(|candidate| candidate.name).collect()
}

pub fn is_rival(name: &str) -> bool {
    ![OURS, CACHED, FLOOR].contains(&name) && names().contains(&name)
}

/// A rival that counts every key exactly.
pub fn is_exact_rival(name: &str) -> bool {
    is_rival(name) && !name.starts_with(INEXACT)
}
