//! One limit, many keys: the library for those who need no rules.
//!
//! ```
//! use tollgate::{Clock, Limiter};
//!
//! let limiter = Limiter::new("5/m".parse()?);
//! let clock = Clock::new();
//! assert!(limiter.check("user:42", clock.now()).is_allowed());
//! # Ok::<(), tollgate::limit::RateError>(())
//! ```

use smallvec::SmallVec;

use crate::algorithm::{Decision, Quota};
use crate::fingerprint::{Fingerprint, Secret};
use crate::limit::{Limit, Rate};
use crate::store::{Charge, MemoryStore};
use crate::time::Time;

pub struct Limiter {
    store: MemoryStore,
    quota: Quota,
    secret: Secret,
}

/// Keys whose places are fetched together.
const BATCH: usize = 16;

/// What a limiter can tell apart.
pub trait LimiterKey {
    fn fingerprint(&self, secret: &Secret) -> Fingerprint;
}

impl Limiter {
    const DEFAULT_BYTES: usize = 1 << 30;

    /// The usual limit, GCRA, in at most a gibibyte.
    pub fn new(rate: Rate) -> Limiter {
        Limiter::with_limit(&Limit::per(rate), Self::DEFAULT_BYTES)
    }

    /// Any limit, in at most `cap_bytes`.
    pub fn with_limit(limit: &Limit, cap_bytes: usize) -> Limiter {
        Limiter { store: MemoryStore::new(cap_bytes), quota: Quota::new(limit), secret: Secret::random() }
    }

    /// Takes one, if it is there.
    pub fn check<K: LimiterKey + ?Sized>(&self, key: &K, now: Time) -> Decision {
        self.check_n(key, 1, now)
    }

    /// Takes `cost`, or nothing.
    pub fn check_n<K: LimiterKey + ?Sized>(&self, key: &K, cost: u64, now: Time) -> Decision {
        self.store.charge_key(key.fingerprint(&self.secret), &self.quota, cost, now)
    }

    /// Takes one for each key; the answers are appended in their order.
    pub fn check_batch<K: LimiterKey + ?Sized>(&self, keys: &[&K], now: Time, answers: &mut Vec<Decision>) {
        for keys in keys.chunks(BATCH) {
            let prints: SmallVec<[Fingerprint; BATCH]> =
                keys.iter().map(|key| key.fingerprint(&self.secret)).collect();
            prints.iter().for_each(|print| self.store.prefetch(*print));
            answers.extend(prints.iter().map(|print| self.store.charge_key(*print, &self.quota, 1, now)));
        }
    }

    /// What [`check_n`](Self::check_n) would answer; nothing is taken.
    pub fn peek_n<K: LimiterKey + ?Sized>(&self, key: &K, cost: u64, now: Time) -> Decision {
        let charge = Charge::enforced(key.fingerprint(&self.secret), self.quota, cost);
        self.store.peek(&[charge], now).parts[0].decision
    }

    /// Forgets what a key has used; says whether there was anything.
    pub fn reset<K: LimiterKey + ?Sized>(&self, key: &K) -> bool {
        self.store.reset(key.fingerprint(&self.secret))
    }

    pub fn store(&self) -> &MemoryStore {
        &self.store
    }
}

impl LimiterKey for str {
    #[inline]
    fn fingerprint(&self, secret: &Secret) -> Fingerprint {
        secret.digest().part(self.as_bytes()).finish()
    }
}

impl LimiterKey for [u8] {
    #[inline]
    fn fingerprint(&self, secret: &Secret) -> Fingerprint {
        secret.digest().part(self).finish()
    }
}

impl LimiterKey for u64 {
    #[inline]
    fn fingerprint(&self, secret: &Secret) -> Fingerprint {
        secret.digest().number(*self).finish()
    }
}
