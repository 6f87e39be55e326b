//! One limit, many keys: the library for those who need no rules.
//!
//! ```
//! use tollgate::{Clock, Limiter};
//!
//! let limiter = Limiter::new("5/m".parse()?);
//! let clock = Clock::new();
//! assert!(limiter.check("user:42", &clock).is_allowed());
//! # Ok::<(), tollgate::limit::RateError>(())
//! ```

use std::cell::Cell;

use smallvec::SmallVec;

use crate::algorithm::{Admission, Decision, Quota};
use crate::fingerprint::{Fingerprint, Secret, Short};
use crate::limit::{Limit, Rate};
use crate::store::memory::{Asked, Lone, Place, Spot};
use crate::store::{Charge, MemoryStore};
use crate::time::{Now, Time};

pub struct Limiter {
    store: MemoryStore,
    lone: Lone,
    secret: Secret,
    /// Tells its keys from those of other limiters, where a thread remembers one.
    salt: u128,
}

/// Keys whose places are fetched together.
const BATCH: usize = 16;

/// What a limiter can tell apart: strings, bytes and numbers.
pub trait LimiterKey {
    fn parts(&self) -> KeyParts<'_>;
}

impl Limiter {
    const DEFAULT_BYTES: usize = 1 << 30;

    /// The usual limit, GCRA, in at most a gibibyte.
    pub fn new(rate: Rate) -> Limiter {
        Limiter::with_limit(&Limit::per(rate), Self::DEFAULT_BYTES)
    }

    /// Any limit, in at most `cap_bytes`.
    pub fn with_limit(limit: &Limit, cap_bytes: usize) -> Limiter {
        let (store, secret) = (MemoryStore::new(cap_bytes), Secret::random());
        let (lone, salt) = (store.lone(Quota::new(limit)), u128::from_le_bytes(*secret.bytes()));
        Limiter { store, lone, secret, salt }
    }

    /// Takes one, if it is there.
    #[inline(always)]
    pub fn check<K: LimiterKey + ?Sized>(&self, key: &K, now: impl Now) -> Decision {
        self.check_n(key, 1, now)
    }

    /// Takes `cost`, or nothing.
    #[inline(always)]
    pub fn check_n<K: LimiterKey + ?Sized>(&self, key: &K, cost: u64, now: impl Now) -> Decision {
        let parts = key.parts();
        if let Ok(short) = parts.0
            && LAST_SEEN.replace(short.mixed()) == short.mixed()
        {
            let last = LAST.get();
            let now = now.now();
            if last.name == self.name(short) {
                match self.store.charge_again(last.spot, &self.lone, cost, now) {
                    Asked::Allowed { left } => return Decision { admission: Admission::NOW, left },
                    Asked::Denied => {
                        if let Some(decision) = self.store.charge_spot(last.spot, &self.lone, cost, now) {
                            return decision;
                        }
                    }
                    Asked::Gone => {}
                }
            }
            return self.check_and_remember(short, cost, now);
        }
        self.check_at(parts.fingerprint(&self.secret), cost, now, |_| ())
    }

    /// The same for a short key that this thread has seen a moment ago: clients come in bursts, and the requests
    /// of one connection come to one thread.
    #[inline(never)]
    fn check_and_remember(&self, short: Short, cost: u64, now: Time) -> Decision {
        let (name, fingerprint) = (self.name(short), KeyParts(Ok(short)).fingerprint(&self.secret));
        self.check_at(fingerprint, cost, now, |spot| LAST.set(Last { name, spot }))
    }

    /// No two limiters take each other's keys for their own.
    #[inline(always)]
    fn name(&self, short: Short) -> u128 {
        short.0 ^ self.salt
    }

    #[inline(always)]
    fn check_at(
        &self,
        fingerprint: Fingerprint,
        cost: u64,
        now: impl Now,
        charged: impl FnOnce(Spot),
    ) -> Decision {
        let place = self.store.place(fingerprint);
        // A clock is read while the key's memory is on its way.
        self.store.charge_at(place, &self.lone, cost, now.now(), charged)
    }

    /// Takes one for each key, and gives the answers in their order.
    #[inline]
    pub fn check_batch<K: LimiterKey + ?Sized>(
        &self,
        keys: &[&K],
        now: impl Now,
        mut answer: impl FnMut(Decision),
    ) {
        let now = now.now();
        for keys in keys.chunks(BATCH) {
            let places: SmallVec<[Place<'_>; BATCH]> =
                keys.iter().map(|key| self.store.place(key.parts().fingerprint(&self.secret))).collect();
            for place in places {
                answer(self.store.charge_at(place, &self.lone, 1, now, |_| ()));
            }
        }
    }

    /// What [`check_n`](Self::check_n) would answer; nothing is taken.
    pub fn peek_n<K: LimiterKey + ?Sized>(&self, key: &K, cost: u64, now: impl Now) -> Decision {
        let charge = Charge::enforced(key.parts().fingerprint(&self.secret), *self.lone.quota(), cost);
        self.store.peek(&[charge], now.now()).parts[0].decision
    }

    /// Forgets what a key has used; says whether there was anything.
    pub fn reset<K: LimiterKey + ?Sized>(&self, key: &K) -> bool {
        self.store.reset(key.parts().fingerprint(&self.secret))
    }

    pub fn store(&self) -> &MemoryStore {
        &self.store
    }
}

impl LimiterKey for str {
    #[inline(always)]
    fn parts(&self) -> KeyParts<'_> {
        self.as_bytes().parts()
    }
}

impl LimiterKey for [u8] {
    #[inline(always)]
    fn parts(&self) -> KeyParts<'_> {
        KeyParts(Short::bytes(self).ok_or(self))
    }
}

impl LimiterKey for u64 {
    #[inline(always)]
    fn parts(&self) -> KeyParts<'_> {
        KeyParts(Ok(Short::number(*self)))
    }
}

/// A key as it is hashed: short, or bytes.
#[derive(Clone, Copy)]
pub struct KeyParts<'k>(Result<Short, &'k [u8]>);

impl KeyParts<'_> {
    #[inline(always)]
    fn fingerprint(self, secret: &Secret) -> Fingerprint {
        let digest = secret.digest();
        match self.0 {
            Ok(short) => digest.short(short),
            Err(bytes) => digest.part(bytes),
        }
        .finish()
    }
}

/// The short key that a thread has charged twice in a row, and where.
#[derive(Clone, Copy)]
struct Last {
    name: u128,
    spot: Spot,
}

thread_local! {
    /// Some of the bits of the last short key.
    static LAST_SEEN: Cell<u64> = const { Cell::new(0) };
    static LAST: Cell<Last> = const { Cell::new(Last { name: 0, spot: Spot::NOWHERE }) };
}
