//! The gate's access to the central store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::runtime::Handle;
use tollgate::Time;
use tollgate::internal::store::central::{
    CentralCounter, CentralCounterStore, CentralOutcome, LimitResult, StoreError,
};
use tollgate::internal::store::{Charge, ChargeReceipt, DeniedHits};
use tollgate::internal::time::Period;
use tollgate::internal::{Limit, Rate};
use tollgate_stores::counters::breaker::ServerHealth;
use tollgate_stores::counters::central::{CentralAddress, CentralStore};
use tollgate_stores::counters::name::Naming;
use tollgate_stores::counters::violations::SharedBans;

use crate::fleet_bans::FleetBanSync;
use crate::gate::counters::reserved_counter;
use crate::gate::tracking::TrackWrites;
use crate::metrics::LatencyHistogram;
use crate::receipt::ReceiptError;

pub struct CentralBackend {
    pub store: CentralStore,
    pub name: String,
    address: CentralAddress,
    /// Violations and automatic bans of all nodes.
    pub bans: FleetBanSync,
    /// Runs settlements in the background.
    runtime: Handle,
    settlements: AtomicU64,
    pub track_writes: TrackWrites,
    /// Times of the calls that decide.
    pub latencies: LatencyHistogram,
}

impl CentralBackend {
    /// It must be called inside a runtime.
    pub fn new(store: CentralStore, naming: Naming, name: String, address: CentralAddress) -> CentralBackend {
        CentralBackend {
            bans: FleetBanSync::new(SharedBans::new(store.clone(), naming)),
            store,
            name,
            address,
            runtime: Handle::current(),
            settlements: AtomicU64::new(0),
            track_writes: TrackWrites::default(),
            latencies: LatencyHistogram::default(),
        }
    }

    /// The store, with the calls that decide timed.
    pub fn timed(&self) -> TimedStore<'_> {
        TimedStore(self)
    }

    /// Claims a receipt once for the whole fleet. The claim is a counter with a limit of 1.
    pub async fn claim(&self, id: &str, now: Time) -> Result<(), ReceiptError> {
        let id = reserved_counter("_receipt", "receipt", id);
        let once = Rate::new(1, Period::HOUR).map_err(|_| ReceiptError::StoreUnavailable)?;
        let charge = Charge::central(CentralCounter { id, limit: Limit::per(once) });
        match &self.store.charge(&[charge], now).await.limits[..] {
            [LimitResult::Answered(outcome)] if outcome.decision.is_allowed() => Ok(()),
            [LimitResult::Answered(_)] => Err(ReceiptError::Used),
            _ => Err(ReceiptError::StoreUnavailable),
        }
    }

    /// Whether the store can represent a limit exactly; if not, why.
    pub fn supports(&self, limit: &Limit) -> Result<(), String> {
        self.address.check(limit, DeniedHits::Free)
    }

    /// Corrects the cost of a charge in the background. A charge that cannot be corrected remains.
    pub fn settle(&self, receipt: ChargeReceipt, real_cost: u64, now: Time) {
        self.settlements.fetch_add(1, Ordering::Relaxed);
        self.store.settle_detached(&self.runtime, receipt, real_cost, now);
    }

    /// As [`settle`](Self::settle), but returns once it is done.
    pub async fn settle_and_wait(&self, receipt: ChargeReceipt, real_cost: u64, now: Time) {
        self.settlements.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.store.settle(receipt, real_cost, now).await {
            tracing::debug!(store = self.name, %error, "a charge could not be corrected");
        }
    }

    /// Settlements requested so far.
    pub fn settlements(&self) -> u64 {
        self.settlements.load(Ordering::Relaxed)
    }

    pub fn health(&self) -> Vec<ServerHealth> {
        self.store.health()
    }

    /// Whether a server does not answer, so that its counters protect less than usual.
    pub fn is_impaired(&self) -> bool {
        self.health().iter().any(|server| server.trouble.is_some())
    }
}

/// A central store that records how long its decisions take.
pub struct TimedStore<'c>(&'c CentralBackend);

impl CentralCounterStore for TimedStore<'_> {
    async fn charge(&self, charges: &[Charge], now: Time) -> CentralOutcome {
        self.time(charges, self.0.store.charge(charges, now)).await
    }

    async fn peek(&self, charges: &[Charge], now: Time) -> CentralOutcome {
        self.time(charges, self.0.store.peek(charges, now)).await
    }

    async fn reset(&self, counter: &CentralCounter, now: Time) -> Result<bool, StoreError> {
        self.0.store.reset(counter, now).await
    }
}

impl TimedStore<'_> {
    /// Without charges the store is not called.
    async fn time<T>(&self, charges: &[Charge], call: impl Future<Output = T>) -> T {
        if charges.is_empty() {
            return call.await;
        }
        let started = Instant::now();
        let result = call.await;
        self.0.latencies.record(started.elapsed());
        result
    }
}
