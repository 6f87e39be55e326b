//! The gate's access to the central store.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;
use tollgate::Time;
use tollgate::internal::store::central::{CentralCounter, CentralCounterStore as _, LimitResult};
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
    /// Times of decisions.
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
