//! Counters on memcached: one server, or several that share the keys.
//!
//! Windows of the clock are numbers that the server adds to, in one round trip; everything else is one
//! value a counter, replaced by compare-and-swap. The nodes' clocks decide. Memcached forgets at will, when
//! it is full or restarted: then its counters begin anew.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Time;
use tollgate::limit::{Limit, Shape, WindowStart};
use tollgate::store::DeniedHits;

use self::fleet::Fleet;
use self::server::Login;
use self::tiers::TierSums;
use self::values::Values;
use self::windows::{Kind, Windows};
use super::breaker::ServerHealth;
use super::cells::{Keeper, Moment, Work};
use super::demand::{Intent, Ran};
use super::name::Naming;
use super::place::{Place, PlaceError};
use super::request::{self, Charged};
use super::{CentralCharge, CentralOutcome, CentralReceipt, CentralReceiptItem, Counter, StoreError, state};

mod buckets;
mod closed;
mod fleet;
mod ring;
mod server;
mod tiers;
mod values;
mod windows;
mod wire;

/// How a store is used, beside its address.
#[derive(Clone, Debug)]
pub struct MemcachedSettings {
    pub naming: Naming,
    /// An answer comes within this.
    pub deadline: Duration,
    /// How much longer than they are needed counters are kept.
    pub slack: Duration,
}

impl Default for MemcachedSettings {
    fn default() -> Self {
        let (deadline, slack) = (Duration::from_millis(50), Duration::from_secs(1));
        MemcachedSettings { naming: Naming::Plain, deadline, slack }
    }
}

/// Counters on memcached.
#[derive(Clone)]
pub struct Memcached {
    inner: Arc<Inner>,
    deadline: Duration,
}

impl Memcached {
    const DEFAULT_PORT: u16 = 11211;
    /// Values are kept below the server's default bound, with room for its own part of them.
    const MAX_STATE_BYTES: u64 = 1_000_000;
    /// Buckets that one decision may read.
    const MAX_BUCKETS_READ: u64 = 1024;
    /// Sums of a few of these fit 64 bits.
    const MAX_COUNT: u64 = 1 << 53;
    /// Forgetting a tiered window may take many round trips.
    const RESET_DEADLINE: Duration = Duration::from_secs(10);

    /// `memcached://a,b:11212` or `memcached://user:password@a`. Connects in the background; must be
    /// called on a runtime.
    pub fn connect(url: &str, settings: MemcachedSettings) -> Result<Memcached, PlaceError> {
        let place = Place::parse(url, "memcached", Self::DEFAULT_PORT)?;
        if let Some(extra) = place.path.as_deref().or(place.options.first().map(|(name, _)| name.as_str())) {
            return Err(PlaceError::Extra { extra: extra.to_owned() });
        }
        let login = place.user.map(|(user, password)| Login { user, password });
        let MemcachedSettings { naming, deadline, slack } = settings;
        // The server's clock ticks once a second.
        let slack = slack.max(Duration::from_secs(1));
        let fleet = Arc::new(Fleet::connect(&place.servers, login.as_ref(), naming, slack));
        let inner = Inner {
            values: Keeper::new(Values { fleet: fleet.clone() }),
            windows: Windows { fleet: fleet.clone(), closed: Default::default() },
            tiers: TierSums { fleet: fleet.clone() },
            fleet,
        };
        Ok(Memcached { inner: Arc::new(inner), deadline })
    }

    /// Why the store cannot keep such a limit, if it cannot.
    pub fn refusal(limit: &Limit, denied: DeniedHits) -> Option<String> {
        let (count, bytes) = (limit.rate().count(), state::max_bytes(limit));
        match Method::of(limit) {
            Method::Window(_) | Method::Tiers if count > Self::MAX_COUNT => Some(format!(
                "{limit} is more than memcached can add up: at most {} in a window",
                Self::MAX_COUNT
            )),
            Method::Tiers if denied == DeniedHits::Counted => Some(
                "a tiered window on memcached cannot count denied hits: its oldest seconds would have to be \
                 found and taken out; write algorithm: sliding-counter, or count_denied: false"
                    .to_owned(),
            ),
            Method::Tiers if buckets_read(limit) > Self::MAX_BUCKETS_READ => Some(format!(
                "a tiered window of {} with these levels reads {} buckets a decision, and memcached at most {}: \
                 add a coarser level",
                limit.rate().period(),
                buckets_read(limit),
                Self::MAX_BUCKETS_READ
            )),
            Method::Value if bytes > Self::MAX_STATE_BYTES => Some(format!(
                "the state of a {} of {limit} takes up to {bytes} bytes, and a value on memcached at most {}: \
                 write algorithm: sliding-counter, or a coarser resolution",
                limit.shape().name(),
                Self::MAX_STATE_BYTES
            )),
            _ => None,
        }
    }

    /// Decides all charges of one request and takes all or none.
    pub async fn charge(&self, charges: &[CentralCharge], now: Time) -> CentralOutcome {
        request::charge(&self.inner, charges, Moment::new(now, self.deadline)).await
    }

    /// Decides as [`charge`](Self::charge) would, and changes nothing.
    pub async fn peek(&self, charges: &[CentralCharge], now: Time) -> CentralOutcome {
        request::peek(&self.inner, charges, Moment::new(now, self.deadline)).await
    }

    /// Corrects the hit's cost after the fact: the difference is given back, or owed.
    pub async fn settle(&self, receipt: CentralReceipt, real_cost: u64, now: Time) -> Result<(), StoreError> {
        request::settle(&self.inner, receipt, real_cost, Moment::new(now, self.deadline)).await
    }

    /// Forgets a counter; says whether it was there.
    pub async fn reset(&self, counter: &Counter, limit: &Limit, now: Time) -> Result<bool, StoreError> {
        self.inner.reset(counter, limit, Moment::new(now, Self::RESET_DEADLINE)).await
    }

    pub fn health(&self) -> Vec<ServerHealth> {
        self.inner.fleet.health()
    }

    /// Charges that were given up because others were faster each time.
    pub fn contended(&self) -> u64 {
        self.inner.values.contended()
    }
}

struct Inner {
    fleet: Arc<Fleet>,
    windows: Windows,
    tiers: TierSums,
    values: Arc<Keeper<Values>>,
}

/// How a limit is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Method {
    Window(Kind),
    Tiers,
    Value,
}

impl Method {
    fn of(limit: &Limit) -> Method {
        match limit.shape() {
            Shape::FixedWindow { start: WindowStart::Aligned } => Method::Window(Kind::Fixed),
            Shape::SlidingCounter => Method::Window(Kind::Sliding),
            Shape::TieredWindow { .. } => Method::Tiers,
            _ => Method::Value,
        }
    }
}

/// The most buckets that one decision reads.
fn buckets_read(limit: &Limit) -> u64 {
    let Shape::TieredWindow { levels } = limit.shape() else { return 0 };
    let units: Vec<_> = levels.units().iter().map(|unit| unit.secs()).collect();
    let edges: u64 = units.windows(2).map(|pair| 2 * (pair[1] / pair[0])).sum();
    let coarsest = units.last().copied().unwrap_or(1);
    edges.min(limit.rate().period().secs() / units[0]) + limit.rate().period().secs() / coarsest
}

impl Inner {
    async fn reset(&self, counter: &Counter, limit: &Limit, moment: Moment) -> Result<bool, StoreError> {
        match Method::of(limit) {
            Method::Window(kind) => self.windows.reset(kind, counter, limit, moment).await,
            Method::Tiers => self.tiers.reset(counter, limit, moment).await,
            Method::Value => {
                let name = self.fleet.name(counter, limit);
                let server = self.fleet.server(&name);
                let reply = server.ask_one(wire::Command::Delete { key: name }, moment.deadline).await?;
                Ok(reply == wire::Reply::Done)
            }
        }
    }
}

impl Charged for Inner {
    /// Every counter is a place of its own.
    fn place(&self, charge: &CentralCharge) -> String {
        self.fleet.name(&charge.counter, &charge.limit)
    }

    async fn run(
        self: &Arc<Self>,
        charges: Vec<CentralCharge>,
        intent: Intent,
        moment: Moment,
    ) -> Vec<Result<Ran, StoreError>> {
        let mut results = Vec::with_capacity(charges.len());
        for charge in charges {
            results.push(self.run_one(charge, intent, moment).await);
        }
        results
    }

    async fn settle_item(
        self: &Arc<Self>,
        item: &CentralReceiptItem,
        real_cost: u64,
        moment: Moment,
    ) -> Result<(), StoreError> {
        match Method::of(&item.limit) {
            Method::Window(kind) => self.windows.settle(kind, item, real_cost, moment).await,
            Method::Tiers => self.tiers.settle(item, real_cost, moment).await,
            Method::Value => {
                let name = self.fleet.name(&item.counter, &item.limit);
                let work = Work::Settle { item: item.clone(), name: name.clone(), real_cost };
                self.values.run(name, work, moment).await.map(|_| ())
            }
        }
    }
}

impl Inner {
    async fn run_one(
        &self,
        charge: CentralCharge,
        intent: Intent,
        moment: Moment,
    ) -> Result<Ran, StoreError> {
        match Method::of(&charge.limit) {
            Method::Window(kind) => self.windows.run(kind, &charge, intent, moment).await,
            Method::Tiers => self.tiers.run(&charge, intent, moment).await,
            Method::Value => {
                let name = self.fleet.name(&charge.counter, &charge.limit);
                let work = Work::Charge { charges: vec![charge], names: vec![name.clone()], intent };
                let ran = self.values.run(name.clone(), work, moment).await?;
                ran.into_iter().next().ok_or_else(|| self.fleet.server(&name).out_of_step())
            }
        }
    }
}
