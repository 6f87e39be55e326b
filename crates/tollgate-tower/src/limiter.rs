//! The state of a layer: the engine, and how requests become hits.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate::internal::engine::{CounterCreation, DecisionContext, DecisionMode, EngineCore};
use tollgate::internal::hold::HoldQueues;
use tollgate::internal::http::ProxyTrust;
use tollgate::internal::identity::Key;
use tollgate::internal::identity::address::TrustedProxies;
use tollgate::internal::identity::forwarded::ForwardingHeader;
use tollgate::internal::policy::LayerSettings;
use tollgate::internal::settlement::Settle;
use tollgate::internal::store::ChargeReceipt;
use tollgate::internal::{EngineVerdict, core_of, hit, layer_settings_of, snapshot_of};
use tollgate::{Engine, HeaderStyle, Hit, KeyNameError, Policy, Time, Usage};

use crate::builder::LayerError;
use crate::needs::{LoadedNeeds, NeedsInForce, RequestNeeds};
use crate::request::IncomingRequest;
#[cfg(feature = "_store")]
use crate::shared_counters::SharedCounters;
use crate::unsupported::{RequestSources, check_policy, in_key};

/// Adds identities to a hit.
pub(crate) type Identify = dyn for<'r> Fn(IncomingRequest<'r>, Hit<'r>) -> Hit<'r> + Send + Sync;
/// Changes the response to a denied request.
pub(crate) type MapDenial =
    dyn Fn(http::Response<bytes::Bytes>) -> http::Response<bytes::Bytes> + Send + Sync;

/// Decides the requests of one or several [layers](crate::RateLimitLayer): rules, counters and bans.
///
/// A layer shares it with every service that it makes, and [hands it out](crate::RateLimitLayer::limiter) for changes
/// while requests are served.
pub struct RateLimiter {
    pub(crate) engine: Engine,
    pub(crate) needs: NeedsInForce,
    pub(crate) settings: LimiterSettings,
    pub(crate) hold_queues: Arc<HoldQueues>,
    #[cfg(feature = "_store")]
    pub(crate) shared: Option<SharedCounters>,
    pub(crate) has_warned: AtomicBool,
}

/// Settings that are fixed for the lifetime of a limiter.
pub(crate) struct LimiterSettings {
    pub(crate) trusted: TrustedProxies,
    pub(crate) forwarding_header: ForwardingHeader,
    pub(crate) headers: HeaderStyle,
    pub(crate) own: OwnSettings,
    pub(crate) identify: Option<Box<Identify>>,
    pub(crate) map_denial: Option<Box<MapDenial>>,
    pub(crate) max_held: usize,
    #[cfg(feature = "tickets")]
    pub(crate) tickets: Option<tollgate::internal::ticket::Tickets>,
}

/// Which settings the builder was given: they take precedence over those of the rules' text.
pub(crate) struct OwnSettings {
    pub(crate) trusted: bool,
    pub(crate) forwarding_header: bool,
    pub(crate) headers: bool,
}

impl LimiterSettings {
    /// Rejects a setting of new rules that differs from the one in force. A text without it changes nothing.
    fn check_same(&self, file: &LayerSettings) -> Result<(), LayerError> {
        fn differs<T: PartialEq>(is_own: bool, new: Option<&T>, in_force: &T) -> bool {
            !is_own && new.is_some_and(|new| new != in_force)
        }
        let own = &self.own;
        let settings = [
            ("trusted_proxies", differs(own.trusted, file.trusted.as_ref(), &self.trusted)),
            (
                "trusted_header",
                differs(own.forwarding_header, file.trusted_header.as_ref(), &self.forwarding_header),
            ),
            ("headers", differs(own.headers, file.headers.as_ref(), &self.headers)),
        ];
        match settings.iter().find(|(_, differs)| *differs) {
            Some((name, _)) => Err(LayerError::FixedSetting(name)),
            None => Ok(()),
        }
    }

    fn sources(&self) -> RequestSources {
        RequestSources::of(self.identify.as_deref())
    }
}

impl RateLimiter {
    /// Replaces the rules. Keys keep what they have used under rules with the same id. Rules that the layer or the store
    /// does not support are rejected, as are other `trusted_proxies` than those in force, and the rules in force stay.
    pub fn apply(&self, policy: Policy) -> Result<(), LayerError> {
        let snapshot = snapshot_of(&policy);
        check_policy(snapshot, self.settings.sources())?;
        self.settings.check_same(layer_settings_of(&policy))?;
        self.check_store(&policy)?;
        // Before the policy is in force: a rule never lacks what it needs.
        self.needs.raise(&RequestNeeds::of_policy(snapshot, &[]));
        Ok(self.engine.apply(policy)?)
    }

    /// Bans a key such as `ip:203.0.113.9` or `header:x-tenant:acme` for a time. With a shared store, too, a ban is in
    /// force in this process only.
    pub fn ban(&self, key: &str, duration: Duration, reason: &str) -> Result<(), KeyNameError> {
        if let Ok(key) = Key::parse(key) {
            if let Some(reason) = in_key(&self.core().policy(), &key, self.settings.sources()) {
                return Err(KeyNameError::Key(reason));
            }
            self.needs.raise(&RequestNeeds::of_key(&key));
        }
        self.engine.ban(key, duration, reason)
    }

    /// Lifts the ban of a key; returns whether there was one.
    pub fn unban(&self, key: &str) -> Result<bool, KeyNameError> {
        self.engine.unban(key)
    }

    /// How much memory its keys take.
    pub fn memory_usage(&self) -> Usage {
        self.engine.memory_usage()
    }

    /// The number of requests that are held at the moment.
    pub fn held(&self) -> usize {
        self.hold_queues.waiting()
    }

    /// The time that it counts by.
    pub fn clock(&self) -> &tollgate::Clock {
        self.engine.clock()
    }

    pub(crate) fn now(&self) -> Time {
        self.engine.clock().now()
    }

    pub(crate) fn core(&self) -> &EngineCore {
        core_of(&self.engine)
    }

    /// The ticket of a verdict that denies, if the layer has a key to seal it with.
    #[cfg(feature = "tickets")]
    pub(crate) fn ticket(&self, verdict: &EngineVerdict, at: Time) -> Option<String> {
        let tickets = self.settings.tickets.as_ref()?;
        Some(tickets.seal(verdict, self.core().key_mark(verdict), at))
    }

    #[cfg(not(feature = "tickets"))]
    pub(crate) fn ticket(&self, _verdict: &EngineVerdict, _at: Time) -> Option<String> {
        None
    }

    /// Decides with counters in memory. `then` gets the verdict where it is, because it is large, and the time of it.
    #[inline]
    pub(crate) fn check<R>(
        &self,
        head: IncomingRequest<'_>,
        then: impl FnOnce(&mut EngineVerdict, Time) -> R,
    ) -> R {
        // Before its needs are: they are raised before a policy comes into force.
        let policy = self.core().borrow_policy();
        let mut verdict = self.core().new_verdict(&policy);
        let needs = self.needs.load();
        let mut hit = hit::without_target();
        self.write_hit(&mut hit, head, &needs);
        let now = self.now();
        let creation = CounterCreation::WhileInForce;
        let mode = DecisionMode::Check;
        let violations = None;
        let context = DecisionContext { policy: &policy, hit: &hit, now, mode, creation, violations };
        self.core().decide_into(&mut verdict, &context);
        then(&mut verdict, now)
    }

    /// Writes a request into an empty hit, where it is, because it is large.
    #[inline]
    pub(crate) fn write_hit<'r>(
        &'r self,
        hit: &mut Hit<'r>,
        head: IncomingRequest<'r>,
        needs: &'r LoadedNeeds,
    ) {
        let host = if needs.host() { head.host() } else { "" };
        if needs.target() {
            hit::set_target(hit, head.method().as_str(), host, head.path_and_query());
        } else if needs.host() {
            hit::set_target(hit, "", host, "");
        }
        if let Some(peer) = head.peer() {
            let LimiterSettings { trusted, forwarding_header, .. } = &self.settings;
            let trust = ProxyTrust { proxies: trusted, header: *forwarding_header };
            hit::set_address(hit, trust.client(peer, head.headers()));
        }
        if let Some(fields) = needs.fields() {
            fields.write_headers(hit, head.headers());
        }
        if let Some(identify) = &self.settings.identify {
            *hit = identify(head, mem::replace(hit, hit::without_target()));
        }
        if needs.ip() && hit::address(hit).is_none() {
            self.warn_of_missing_address();
        }
    }

    #[cold]
    fn warn_of_missing_address(&self) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "requests have no client address, which rules count by: serve axum by \
                 into_make_service_with_connect_info::<SocketAddr>(), or add the extension PeerAddress"
            );
        }
    }

    #[cfg(feature = "_store")]
    fn check_store(&self, policy: &Policy) -> Result<(), LayerError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        shared.check_same(layer_settings_of(policy))?;
        shared.check(snapshot_of(policy))
    }

    #[cfg(not(feature = "_store"))]
    fn check_store(&self, _: &Policy) -> Result<(), LayerError> {
        Ok(())
    }
}

impl Settle for RateLimiter {
    fn settle(&self, receipt: ChargeReceipt, real_cost: u64) {
        let now = self.now();
        let (here, there) = receipt.split_by_store();
        if let Some(receipt) = here {
            self.core().settle(receipt, real_cost, now);
        }
        #[cfg(feature = "_store")]
        if let (Some(receipt), Some(shared)) = (there, &self.shared) {
            shared.settle(receipt, real_cost, now);
        }
        #[cfg(not(feature = "_store"))]
        debug_assert!(there.is_none(), "charges are in memory");
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("held", &self.held()).finish_non_exhaustive()
    }
}
