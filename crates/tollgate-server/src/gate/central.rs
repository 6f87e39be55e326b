//! The gate's access to the central store.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::runtime::Handle;
use tollgate::document::Problem;
use tollgate::store::central::{CentralCharge, CentralCounterStore as _, CentralReceipt, CounterId};
use tollgate::store::{CounterKey, DeniedHits, Enforcement, KeyPart, Sensitivity};
use tollgate::time::Period;
use tollgate::{Engine, Hit, Limit, Rate, Time, Verdict};
use tollgate_stores::counters::breaker::ServerHealth;
use tollgate_stores::counters::central::CentralStore;
use tollgate_stores::counters::name::{NameHash, Naming};
use tollgate_stores::counters::violations::SharedBans;

use crate::config::{KeyVisibility, StoreConfig, StoreKeys};
use crate::fleet_bans::FleetBanSync;
use crate::gate::tracking::TrackWrites;
use crate::metrics::LatencyHistogram;
use crate::receipt::ReceiptError;

pub struct CentralBackend {
    pub store: CentralStore,
    pub name: String,
    /// Violations and automatic bans of all nodes.
    pub bans: FleetBanSync,
    /// Runs settlements in the background.
    runtime: Handle,
    settlements: AtomicU64,
    pub track_writes: TrackWrites,
    /// Times of decisions.
    pub latencies: LatencyHistogram,
}

/// Minimum length of the secret that hashes names: the key length of the hash.
const MIN_SECRET_BYTES: usize = 32;

impl CentralBackend {
    /// Connects in the background. It must be called inside a runtime.
    pub fn open(config: &StoreConfig) -> Result<CentralBackend, Problem> {
        let problem = |message: String| Problem::new(None, "counters", message);
        let naming = naming(&config.keys)?;
        let store = CentralStore::open(config.address.clone(), naming.clone(), config.deadline);
        let store = store.map_err(problem)?;
        Ok(CentralBackend {
            bans: FleetBanSync::new(SharedBans::new(store.clone(), naming)),
            store,
            name: config.name.clone(),
            runtime: Handle::current(),
            settlements: AtomicU64::new(0),
            track_writes: TrackWrites::default(),
            latencies: LatencyHistogram::default(),
        })
    }

    pub async fn check(&self, engine: &Engine, hit: &Hit<'_>, now: Time) -> Verdict {
        let started = Instant::now();
        let decided = engine.check_central(hit, now, &self.store).await;
        self.latencies.record(started.elapsed());
        if let Some(receipt) = decided.to_refund {
            self.settle(receipt, 0, now);
        }
        decided.verdict
    }

    /// Claims a receipt once for the whole fleet. The claim is a counter with a limit of 1.
    pub async fn claim(&self, id: &str, now: Time) -> Result<(), ReceiptError> {
        const RULE: &str = "_receipt"; // no rule of a file has this domain
        // No attribute has this name.
        let part = KeyPart { name: "receipt".into(), value: id.into(), sensitivity: Sensitivity::Public };
        let counter =
            CounterId { domain: "_".into(), rule: RULE.into(), key: CounterKey::owned(vec![part], 0) };
        let once = Rate::new(1, Period::HOUR).map_err(|_| ReceiptError::StoreUnavailable)?;
        let limit = Limit::per(once);
        let weight = Enforcement::Enforced;
        let denied = DeniedHits::Free;
        let charge =
            CentralCharge { counter, limit, cost: 1, unit_cost: 1, enforcement: weight, denied_hits: denied };
        match &self.store.charge(&[charge], now).await.limits[..] {
            [Ok(part)] if part.decision.is_allowed() => Ok(()),
            [Ok(_)] => Err(ReceiptError::Used),
            _ => Err(ReceiptError::StoreUnavailable),
        }
    }

    /// Corrects the cost of a charge in the background. A charge that cannot be corrected remains.
    pub fn settle(&self, receipt: CentralReceipt, real_cost: u64, now: Time) {
        let store = self.store.clone();
        let runtime = self.runtime.clone();
        let settled = async move { store.settle(receipt, real_cost, now).await };
        let name = self.name.clone();
        self.settlements.fetch_add(1, Ordering::Relaxed);
        runtime.spawn(async move {
            if let Err(error) = settled.await {
                tracing::debug!(store = name, %error, "a charge could not be corrected");
            }
        });
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

fn naming(keys: &StoreKeys) -> Result<Naming, Problem> {
    let hash = match &keys.secret_file {
        Some(path) => NameHash::keyed(&secret(path)?),
        None => NameHash::Unkeyed,
    };
    Ok(match keys.visibility {
        KeyVisibility::All => Naming::Plain,
        KeyVisibility::Public => Naming::Sensitive(hash),
        KeyVisibility::None => Naming::Hashed(hash),
    })
}

fn secret(path: &Path) -> Result<Vec<u8>, Problem> {
    let problem = |why: String| Problem::new(None, "store_secret_file", format!("{}: {why}", path.display()));
    let secret = fs::read(path).map_err(|error| problem(format!("cannot be read: {error}")))?;
    match secret.trim_ascii() {
        short if short.len() < MIN_SECRET_BYTES => {
            Err(problem(format!("is shorter than {MIN_SECRET_BYTES} bytes")))
        }
        secret => Ok(secret.to_vec()),
    }
}
