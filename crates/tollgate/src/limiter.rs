//! One limit, many keys: the library without rules.
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
use crate::fingerprint::{Fingerprint, Secret, ShortPart};
use crate::limit::{Limit, Rate};
use crate::store::memory::{CandidateLines, FastPath, FastPathResult, SlotHint};
use crate::store::{Charge, MemoryStore};
use crate::time::{Now, Time};

pub struct Limiter {
    store: MemoryStore,
    fast_path: FastPath,
    secret: Secret,
    /// Distinguishes its keys from those of other limiters in the per-thread cache.
    salt: u128,
}

/// Keys whose cache lines are prefetched together.
const PREFETCH_BATCH: usize = 16;

/// The types of keys: strings, bytes and numbers.
pub trait LimiterKey {
    fn hash_input(&self) -> HashInput<'_>;
}

impl Limiter {
    const DEFAULT_BYTES: usize = 1 << 30;

    /// The default algorithm, GCRA, in at most a gibibyte.
    pub fn new(rate: Rate) -> Limiter {
        Limiter::with_limit(&Limit::per(rate), Self::DEFAULT_BYTES)
    }

    /// Any limit, in at most `cap_bytes`.
    pub fn with_limit(limit: &Limit, cap_bytes: usize) -> Limiter {
        let store = MemoryStore::new(cap_bytes);
        let secret = Secret::random();
        let lone = store.fast_path(Quota::new(limit));
        let salt = u128::from_le_bytes(*secret.bytes());
        Limiter { store, fast_path: lone, secret, salt }
    }

    /// Charges one, if it is allowed.
    #[inline(always)]
    pub fn check<K: LimiterKey + ?Sized>(&self, key: &K, now: impl Now) -> Decision {
        self.check_n(key, 1, now)
    }

    /// Charges `cost`, or nothing.
    #[inline(always)]
    pub fn check_n<K: LimiterKey + ?Sized>(&self, key: &K, cost: u64, now: impl Now) -> Decision {
        let parts = key.hash_input();
        if let Ok(short) = parts.0
            && LAST_SEEN.replace(short.fold64()) == short.fold64()
        {
            let last = LAST.get();
            let now = now.now();
            if last.salted_key == self.salted(short) {
                match self.store.charge_hinted_fast(last.slot_hint, &self.fast_path, cost, now) {
                    FastPathResult::Allowed { left } => return Decision { admission: Admission::NOW, left },
                    FastPathResult::Denied => {
                        if let Some(decision) =
                            self.store.charge_hinted(last.slot_hint, &self.fast_path, cost, now)
                        {
                            return decision;
                        }
                    }
                    FastPathResult::Fallback => {}
                }
            }
            return self.check_and_remember(short, cost, now);
        }
        self.check_at(parts.fingerprint(&self.secret), cost, now, |_| ())
    }

    /// As above for a short key that this thread has charged before: clients send bursts, and the requests of one
    /// connection are handled by one thread.
    #[inline(never)]
    fn check_and_remember(&self, short: ShortPart, cost: u64, now: Time) -> Decision {
        let name = self.salted(short);
        let fingerprint = HashInput(Ok(short)).fingerprint(&self.secret);
        self.check_at(fingerprint, cost, now, |spot| LAST.set(LastKey { salted_key: name, slot_hint: spot }))
    }

    /// Salted, so that two limiters never confuse their keys.
    #[inline(always)]
    fn salted(&self, short: ShortPart) -> u128 {
        short.0 ^ self.salt
    }

    #[inline(always)]
    fn check_at(
        &self,
        fingerprint: Fingerprint,
        cost: u64,
        now: impl Now,
        charged: impl FnOnce(SlotHint),
    ) -> Decision {
        let place = self.store.candidates(fingerprint);
        // The clock is read while the key's cache lines are being fetched.
        self.store.charge_fast(place, &self.fast_path, cost, now.now(), charged)
    }

    /// Charges one for each key; returns the decisions in order.
    #[inline]
    pub fn check_batch<K: LimiterKey + ?Sized>(
        &self,
        keys: &[&K],
        now: impl Now,
        mut answer: impl FnMut(Decision),
    ) {
        let now = now.now();
        for keys in keys.chunks(PREFETCH_BATCH) {
            let places: SmallVec<[CandidateLines<'_>; PREFETCH_BATCH]> = keys
                .iter()
                .map(|key| self.store.candidates(key.hash_input().fingerprint(&self.secret)))
                .collect();
            for place in places {
                answer(self.store.charge_fast(place, &self.fast_path, 1, now, |_| ()));
            }
        }
    }

    /// The decision that [`check_n`](Self::check_n) would return; nothing is charged.
    pub fn peek_n<K: LimiterKey + ?Sized>(&self, key: &K, cost: u64, now: impl Now) -> Decision {
        let charge =
            Charge::enforced(key.hash_input().fingerprint(&self.secret), *self.fast_path.quota(), cost);
        self.store.peek(&[charge], now.now()).limits[0].decision
    }

    /// Removes the state of a key; returns whether there was one.
    pub fn reset<K: LimiterKey + ?Sized>(&self, key: &K) -> bool {
        self.store.reset(key.hash_input().fingerprint(&self.secret))
    }

    pub fn store(&self) -> &MemoryStore {
        &self.store
    }
}

impl LimiterKey for str {
    #[inline(always)]
    fn hash_input(&self) -> HashInput<'_> {
        self.as_bytes().hash_input()
    }
}

impl LimiterKey for [u8] {
    #[inline(always)]
    fn hash_input(&self) -> HashInput<'_> {
        HashInput(ShortPart::bytes(self).ok_or(self))
    }
}

impl LimiterKey for u64 {
    #[inline(always)]
    fn hash_input(&self) -> HashInput<'_> {
        HashInput(Ok(ShortPart::number(*self)))
    }
}

/// A key in the form in which it is hashed: short, or bytes.
#[derive(Clone, Copy)]
pub struct HashInput<'k>(Result<ShortPart, &'k [u8]>);

impl HashInput<'_> {
    #[inline(always)]
    fn fingerprint(self, secret: &Secret) -> Fingerprint {
        let digest = secret.digest();
        match self.0 {
            Ok(short) => digest.short_part(short),
            Err(bytes) => digest.part(bytes),
        }
        .finish()
    }
}

/// The short key that a thread has charged twice in a row, and its slot.
#[derive(Clone, Copy)]
struct LastKey {
    salted_key: u128,
    slot_hint: SlotHint,
}

thread_local! {
    /// Some bits of the last short key.
    static LAST_SEEN: Cell<u64> = const { Cell::new(0) };
    static LAST: Cell<LastKey> = const { Cell::new(LastKey { salted_key: 0, slot_hint: SlotHint::NONE }) };
}
