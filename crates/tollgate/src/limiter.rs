//! One limit, many keys: the library without rules.

use std::cell::Cell;

use smallvec::SmallVec;
use thiserror::Error;

use crate::algorithm::{Admission, Decision, Quota};
use crate::api::{Receipt, RulesError};
use crate::fingerprint::{Fingerprint, Secret, ShortPart};
use crate::limit::{Limit, Rate};
use crate::rule::parse;
use crate::store::memory::{CandidateLines, FastPath, FastPathResult, SlotHint, Usage};
use crate::store::{Charge, ChargeReceipt, MemoryStore};
use crate::time::{Clock, Now, Time};

mod wait;

pub use wait::WaitError;
use wait::WaitQueues;

/// One limit for any number of keys, counted in memory.
///
/// ```
/// use tollgate::Limiter;
///
/// let limiter = Limiter::new("5/m")?;
/// assert!(limiter.check("user:42").is_allowed());
/// # Ok::<(), tollgate::LimiterError>(())
/// ```
///
/// Methods that end in `_at` are given the time, for tests and for callers with a clock of their own; the others read the
/// limiter's [`Clock`]. Use one kind for a limiter, not both.
pub struct Limiter {
    store: MemoryStore,
    fast_path: FastPath,
    secret: Secret,
    /// Distinguishes its keys from those of other limiters in the per-thread cache.
    salt: u128,
    clock: Clock,
    queues: WaitQueues,
}

/// Settings of a [`Limiter`], fixed for its lifetime.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Clock, Limiter, Time};
///
/// let clock = Clock::manual(Time::from_secs(1_800_000_000));
/// let limiter = Limiter::builder().memory_bytes(16 << 20).clock(clock).build("1/m")?;
/// assert!(limiter.check("user:42").is_allowed());
/// assert!(!limiter.check("user:42").is_allowed());
/// limiter.clock().advance(Duration::from_secs(60));
/// assert!(limiter.check("user:42").is_allowed());
/// # Ok::<(), tollgate::LimiterError>(())
/// ```
#[derive(Debug, Default)]
pub struct LimiterBuilder {
    memory_bytes: Option<usize>,
    clock: Clock,
}

/// Keys whose cache lines are prefetched together.
const PREFETCH_BATCH: usize = 16;

/// The types of keys: strings, bytes and numbers.
pub trait LimiterKey: sealed::HashedKey {}

/// Why a limiter cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LimiterError {
    /// The limit is not valid.
    #[error(transparent)]
    Limit(#[from] RulesError),
    /// A key at its limit would not fit the memory.
    #[error("{given} bytes of memory are too few for this limit: it needs {needed}")]
    Memory {
        /// What the limiter may use.
        given: usize,
        /// What it needs at least.
        needed: usize,
    },
    /// The system does not grant the memory, or the processor lacks an instruction.
    #[error("the counters cannot be stored: {0}")]
    System(#[from] std::io::Error),
}

impl LimiterBuilder {
    /// How much memory its keys may take: a gibibyte by default. It is reserved, and committed as keys arrive.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    /// The time to count by; [`Clock::manual`] is for tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// A limiter for a rate such as `5/m`, with the default algorithm, GCRA, or for one with the options that a rule has:
    /// `{limit: 100/h, algorithm: sliding-log}`.
    pub fn build(self, limit: &str) -> Result<Limiter, LimiterError> {
        let has_options = limit.contains(':');
        let limit = match has_options {
            true => parse::limit(limit).map_err(RulesError::from)?,
            false => Limit::per(limit.parse::<Rate>().map_err(RulesError::of)?),
        };
        self.build_limit(&limit)
    }

    fn build_limit(self, limit: &Limit) -> Result<Limiter, LimiterError> {
        let given = self.memory_bytes.unwrap_or(Limiter::DEFAULT_MEMORY_BYTES);
        let needed = MemoryStore::min_bytes_for(limit);
        if given < needed {
            return Err(LimiterError::Memory { given, needed });
        }
        let store = MemoryStore::try_new(given)?;
        let secret = Secret::random();
        let fast_path = store.fast_path(Quota::new(limit));
        let salt = u128::from_le_bytes(*secret.bytes());
        let queues = WaitQueues::default();
        Ok(Limiter { store, fast_path, secret, salt, clock: self.clock, queues })
    }
}

impl Limiter {
    const DEFAULT_MEMORY_BYTES: usize = 1 << 30;

    /// Admits a rate such as `5/m` for each key, with the default algorithm, GCRA, in at most a
    /// gibibyte. Memory is reserved, and committed as keys arrive.
    pub fn new(rate: &str) -> Result<Limiter, LimiterError> {
        Limiter::builder().build(rate)
    }

    /// Settings other than the default ones.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    /// Any algorithm, with the options that a rule has, in at most `memory_bytes`.
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// let limiter = Limiter::from_yaml("{limit: 100/h, algorithm: sliding-log}", 64 << 20)?;
    /// assert!(limiter.check("user:42").is_allowed());
    /// # Ok::<(), tollgate::LimiterError>(())
    /// ```
    pub fn from_yaml(text: &str, memory_bytes: usize) -> Result<Limiter, LimiterError> {
        let limit = parse::limit(text).map_err(RulesError::from)?;
        Limiter::builder().memory_bytes(memory_bytes).build_limit(&limit)
    }

    /// Charges one, if it is allowed.
    #[inline(always)]
    pub fn check<K: LimiterKey + ?Sized>(&self, key: &K) -> Decision {
        self.decide(key, 1, &self.clock)
    }

    /// Charges `cost`, or nothing.
    #[inline(always)]
    pub fn check_n<K: LimiterKey + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        self.decide(key, cost, &self.clock)
    }

    /// [`check`](Self::check) at a given time.
    #[inline(always)]
    pub fn check_at<K: LimiterKey + ?Sized>(&self, key: &K, now: Time) -> Decision {
        self.decide(key, 1, now)
    }

    /// [`check_n`](Self::check_n) at a given time.
    #[inline(always)]
    pub fn check_n_at<K: LimiterKey + ?Sized>(&self, key: &K, cost: u64, now: Time) -> Decision {
        self.decide(key, cost, now)
    }

    /// Charges one for each key; passes on the decisions in order. Faster than one call for each.
    #[inline]
    pub fn check_batch<K: LimiterKey + ?Sized>(&self, keys: &[&K], answer: impl FnMut(Decision)) {
        self.check_batch_at(keys, self.clock.now(), answer);
    }

    /// [`check_batch`](Self::check_batch) at a given time.
    #[inline]
    pub fn check_batch_at<K: LimiterKey + ?Sized>(
        &self,
        keys: &[&K],
        now: Time,
        mut answer: impl FnMut(Decision),
    ) {
        for keys in keys.chunks(PREFETCH_BATCH) {
            let candidates: SmallVec<[CandidateLines<'_>; PREFETCH_BATCH]> = keys
                .iter()
                .map(|key| self.store.candidates(key.hash_input().fingerprint(&self.secret)))
                .collect();
            for lines in candidates {
                answer(self.store.charge_fast(lines, &self.fast_path, 1, now, |_| ()));
            }
        }
    }

    /// The decision that [`check`](Self::check) would return; nothing is charged.
    pub fn peek<K: LimiterKey + ?Sized>(&self, key: &K) -> Decision {
        self.peek_n(key, 1)
    }

    /// The decision that [`check_n`](Self::check_n) would return; nothing is charged.
    pub fn peek_n<K: LimiterKey + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        self.peek_n_at(key, cost, self.clock.now())
    }

    /// [`peek_n`](Self::peek_n) at a given time.
    pub fn peek_n_at<K: LimiterKey + ?Sized>(&self, key: &K, cost: u64, now: Time) -> Decision {
        self.store.peek(&[self.charge(key, cost)], now).limits[0].decision
    }

    /// As [`check_n`](Self::check_n), with a receipt for what was charged, if anything was. Slower.
    pub fn check_with_receipt<K: LimiterKey + ?Sized>(
        &self,
        key: &K,
        cost: u64,
    ) -> (Decision, Option<Receipt>) {
        self.check_with_receipt_at(key, cost, self.clock.now())
    }

    /// [`check_with_receipt`](Self::check_with_receipt) at a given time.
    pub fn check_with_receipt_at<K: LimiterKey + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        now: Time,
    ) -> (Decision, Option<Receipt>) {
        let charges = [self.charge(key, cost)];
        let outcome = self.store.charge(&charges, now);
        let receipt = ChargeReceipt::of(&charges, &outcome);
        (outcome.limits[0].decision, receipt.map(|inner| Receipt { inner }))
    }

    /// Gives back what was charged, except what time has given back already.
    pub fn refund(&self, receipt: Receipt) {
        self.refund_at(receipt, self.clock.now());
    }

    /// [`refund`](Self::refund) at a given time.
    pub fn refund_at(&self, receipt: Receipt, now: Time) {
        self.store.refund(receipt.inner, now);
    }

    /// Removes the state of a key; returns whether there was one.
    pub fn reset<K: LimiterKey + ?Sized>(&self, key: &K) -> bool {
        self.store.reset(key.hash_input().fingerprint(&self.secret))
    }

    /// How much memory its keys take.
    pub fn memory_usage(&self) -> Usage {
        self.store.usage()
    }

    /// The time that it counts by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    fn charge<K: LimiterKey + ?Sized>(&self, key: &K, cost: u64) -> Charge {
        Charge::enforced(key.hash_input().fingerprint(&self.secret), *self.fast_path.quota(), cost)
    }

    #[inline(always)]
    fn decide<K: LimiterKey + ?Sized>(&self, key: &K, cost: u64, now: impl Now) -> Decision {
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
            return self.decide_and_remember(short, cost, now);
        }
        self.decide_hashed(parts.fingerprint(&self.secret), cost, now, |_| ())
    }

    /// As above for a short key that this thread has charged before: clients send bursts, and the requests of one
    /// connection are handled by one thread.
    #[inline(never)]
    fn decide_and_remember(&self, short: ShortPart, cost: u64, now: Time) -> Decision {
        let salted_key = self.salted(short);
        let fingerprint = HashInput(Ok(short)).fingerprint(&self.secret);
        self.decide_hashed(fingerprint, cost, now, |slot_hint| LAST.set(LastKey { salted_key, slot_hint }))
    }

    /// Salted, so that two limiters never confuse their keys.
    #[inline(always)]
    fn salted(&self, short: ShortPart) -> u128 {
        short.0 ^ self.salt
    }

    #[inline(always)]
    fn decide_hashed(
        &self,
        fingerprint: Fingerprint,
        cost: u64,
        now: impl Now,
        charged: impl FnOnce(SlotHint),
    ) -> Decision {
        let lines = self.store.candidates(fingerprint);
        // The clock is read while the key's cache lines are being fetched.
        self.store.charge_fast(lines, &self.fast_path, cost, now.now(), charged)
    }
}

/// A limiter for any limit, in at most `memory_bytes`.
pub fn with_limit(limit: &Limit, memory_bytes: usize) -> Result<Limiter, LimiterError> {
    Limiter::builder().memory_bytes(memory_bytes).build_limit(limit)
}

impl LimiterKey for str {}

impl HashedKey for str {
    #[inline(always)]
    fn hash_input(&self) -> HashInput<'_> {
        self.as_bytes().hash_input()
    }
}

impl LimiterKey for [u8] {}

impl HashedKey for [u8] {
    #[inline(always)]
    fn hash_input(&self) -> HashInput<'_> {
        HashInput(ShortPart::bytes(self).ok_or(self))
    }
}

impl LimiterKey for u64 {}

impl HashedKey for u64 {
    #[inline(always)]
    fn hash_input(&self) -> HashInput<'_> {
        HashInput(Ok(ShortPart::number(*self)))
    }
}

mod sealed {
    pub trait HashedKey {
        fn hash_input(&self) -> super::HashInput<'_>;
    }
}

use sealed::HashedKey;

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
