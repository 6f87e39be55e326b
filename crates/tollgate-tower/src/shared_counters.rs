//! Counters on servers that several processes share.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
use tokio::runtime::Handle;
use tollgate::Time;
use tollgate::internal::engine::DecisionMode;
use tollgate::internal::policy::{KeyVisibility, LayerSettings};
use tollgate::internal::settlement::Settle;
use tollgate::internal::store::{ChargeReceipt, DeniedHits};
use tollgate::internal::{EngineVerdict, PolicySnapshot, hit};
use tollgate_stores::counters::central::{CentralAddress, CentralStore};
use tollgate_stores::counters::name::{NameHash, Naming, read_secret};

use crate::builder::LayerError;
use crate::limiter::RateLimiter;
use crate::request::IncomingRequest;

pub(crate) struct SharedCounters {
    store: CentralStore,
    address: CentralAddress,
    /// Runs settlements in the background.
    runtime: Handle,
    in_force: StoreInForce,
}

/// The settings that new rules may come with, too; `None` if the builder has set them, so that those of a text are not
/// followed.
struct StoreInForce {
    keys: Option<KeyVisibility>,
    deadline: Option<Duration>,
    has_secret: bool,
}

/// Settings of a store.
#[derive(Default)]
pub(crate) struct StoreOptions {
    pub(crate) url: String,
    /// The key of the hash of identities, which all processes share.
    pub(crate) secret: Option<StoreSecret>,
    /// Which identities are in plain text in the store's keys.
    pub(crate) keys: Option<KeyVisibility>,
    pub(crate) deadline: Option<Duration>,
}

/// Where the key of the hash is.
pub(crate) enum StoreSecret {
    Bytes(Vec<u8>),
    File(PathBuf),
}

impl StoreSecret {
    fn hash(self) -> Result<NameHash, LayerError> {
        let secret = match self {
            StoreSecret::Bytes(secret) => secret,
            StoreSecret::File(path) => {
                read_secret(&path).map_err(|why| LayerError::Store(format!("secret: {why}")))?
            }
        };
        Ok(NameHash::keyed(&secret))
    }
}

/// How counters are named. A server with the same store uses the same names only if these settings are the same.
fn naming(
    keys: Option<KeyVisibility>,
    secret: Option<StoreSecret>,
    file: &LayerSettings,
) -> Result<Naming, LayerError> {
    if let (None, Some(name)) = (&secret, &file.store_secret_file) {
        let why = format!(
            "the store_secret_file of the rules, {name}, is not read: name it by `store_secret_file`"
        );
        return Err(LayerError::Store(why));
    }
    let hash = secret.map_or(Ok(NameHash::Unkeyed), StoreSecret::hash)?;
    Ok(Naming::new(keys.or(file.store_keys).unwrap_or_default(), hash))
}

impl SharedCounters {
    /// Connects in the background.
    pub(crate) fn open(options: StoreOptions, file: &LayerSettings) -> Result<SharedCounters, LayerError> {
        let runtime = Handle::try_current()
            .map_err(|_| LayerError::Store("it must be opened inside a tokio runtime".to_owned()))?;
        let address: CentralAddress =
            options.url.parse().map_err(|error| LayerError::Store(format!("{error}")))?;
        let of_file = file.store_deadline.unwrap_or_else(|| address.default_deadline());
        let in_force = StoreInForce {
            keys: options.keys.is_none().then(|| file.store_keys.unwrap_or_default()),
            deadline: options.deadline.is_none().then_some(of_file),
            has_secret: options.secret.is_some(),
        };
        let naming = naming(options.keys, options.secret, file)?;
        let deadline = options.deadline.unwrap_or(of_file);
        let store = CentralStore::open(address.clone(), naming, deadline).map_err(LayerError::Store)?;
        Ok(SharedCounters { store, address, runtime, in_force })
    }

    /// Rejects a setting of new rules that differs from the one in force.
    pub(crate) fn check_same(&self, file: &LayerSettings) -> Result<(), LayerError> {
        fn differs<T: PartialEq>(new: Option<T>, in_force: Option<T>) -> bool {
            new.zip(in_force).is_some_and(|(new, in_force)| new != in_force)
        }
        let StoreInForce { keys, deadline, has_secret } = self.in_force;
        let settings = [
            ("store_keys", differs(file.store_keys, keys)),
            ("store_deadline", differs(file.store_deadline, deadline)),
            ("store_secret_file", file.store_secret_file.is_some() && !has_secret),
        ];
        match settings.iter().find(|(_, differs)| *differs) {
            Some((name, _)) => Err(LayerError::FixedSetting(name)),
            None => Ok(()),
        }
    }

    /// Whether the store can hold the counters of all rules.
    pub(crate) fn check(&self, policy: &PolicySnapshot) -> Result<(), LayerError> {
        for rule in policy.rules().iter() {
            let denied = if rule.count_denied { DeniedHits::Counted } else { DeniedHits::Free };
            for each in rule.all_limits() {
                self.address.check(&each.limit, denied).map_err(|why| LayerError::Unsupported {
                    rule: rule.id.to_string(),
                    reason: format!("limit {}: {why}", each.limit),
                })?;
            }
        }
        Ok(())
    }

    /// Corrects the cost of a charge in the background. A charge that cannot be corrected remains.
    pub(crate) fn settle(&self, receipt: ChargeReceipt, real_cost: u64, now: Time) {
        self.store.settle_detached(&self.runtime, receipt, real_cost, now);
    }
}

/// The decision about a request, which is handed back.
pub(crate) struct SharedDecision {
    pub(crate) parts: Parts,
    pub(crate) verdict: EngineVerdict,
    pub(crate) decided_at: Time,
}

/// A call of the store. If it is dropped before the answer, it ends in the background, and its charges are refunded.
pub(crate) struct StoreCall {
    limiter: Arc<RateLimiter>,
    runtime: Handle,
    call: Option<Pin<Box<dyn Future<Output = SharedDecision> + Send>>>,
}

impl StoreCall {
    pub(crate) fn new(limiter: &Arc<RateLimiter>, shared: &SharedCounters, parts: Parts) -> StoreCall {
        let store = shared.store.clone();
        let runtime = shared.runtime.clone();
        let call = decide(Arc::clone(limiter), store, parts);
        StoreCall { limiter: Arc::clone(limiter), runtime, call: Some(Box::pin(call)) }
    }
}

async fn decide(limiter: Arc<RateLimiter>, store: CentralStore, parts: Parts) -> SharedDecision {
    // Before its needs, as in `RateLimiter::check`.
    let policy = limiter.core().policy();
    let needs = limiter.needs.load_full();
    let decided = {
        let mut hit = hit::without_target();
        limiter.write_hit(&mut hit, IncomingRequest::of_parts(&parts), &needs);
        limiter.core().decide_central(&policy, &hit, limiter.now(), DecisionMode::Check, &store).await
    };
    // The store decides during the call. A delay counts from its end, so that no request is released early.
    let decided_at = limiter.now();
    if let Some(receipt) = decided.to_refund {
        limiter.refund(receipt);
    }
    SharedDecision { parts, verdict: decided.verdict, decided_at }
}

impl Future for StoreCall {
    type Output = SharedDecision;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<SharedDecision> {
        let call = self.call.as_mut().expect("a finished call is not polled");
        let decided = std::task::ready!(call.as_mut().poll(context));
        self.call = None;
        Poll::Ready(decided)
    }
}

impl Drop for StoreCall {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let limiter = Arc::clone(&self.limiter);
        self.runtime.spawn(async move {
            if let Some(receipt) = call.await.verdict.take_receipt() {
                limiter.refund(receipt);
            }
        });
    }
}
