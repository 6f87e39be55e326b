//! Settings of a layer, checked when it is built.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use http::Response;
use serde_json::json;
use thiserror::Error;
use tollgate::internal::hold::HoldQueues;
use tollgate::internal::identity::address::TrustedProxies;
use tollgate::internal::identity::forwarded::ForwardingHeader;
#[cfg(feature = "_store")]
use tollgate::internal::policy::KeyVisibility;
#[cfg(feature = "tickets")]
use tollgate::internal::ticket::{KeyScope, Tickets};
use tollgate::internal::{core_of, layer_settings_of, snapshot_of};
use tollgate::{Clock, Engine, EngineBuilder, EngineError, HeaderStyle, Hit, Policy, RulesError};

use crate::layer::RateLimitLayer;
use crate::limiter::{Identify, LimiterSettings, MapDenial, OwnSettings, RateLimiter};
use crate::needs::{NeedsInForce, RequestNeeds};
use crate::request::IncomingRequest;
#[cfg(feature = "_store")]
use crate::shared_counters::{SharedCounters, StoreOptions, StoreSecret};
use crate::unsupported::{RequestSources, check_policy};

/// Requests that may be held at once, unless set otherwise.
const DEFAULT_MAX_HELD: usize = 10_000;

/// Settings of a [`RateLimitLayer`]. Rules or a limit are required, the rest is optional.
#[derive(Default)]
#[must_use]
pub struct RateLimitBuilder {
    policy: Option<Result<Policy, RulesError>>,
    engine: EngineBuilder,
    trusted: Option<Vec<String>>,
    forwarding_header: Option<ForwardingHeader>,
    headers: Option<HeaderStyle>,
    identify: Option<Box<Identify>>,
    map_denial: Option<Box<MapDenial>>,
    max_held: Option<usize>,
    #[cfg(feature = "tickets")]
    ticket_key: Option<TicketKey>,
    #[cfg(feature = "_store")]
    store: Option<StoreOptions>,
}

/// Why a layer cannot be made, or rules are rejected.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LayerError {
    /// The engine rejects the rules, or their limits do not fit the memory.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// There is neither a limit nor rules.
    #[error("nothing to limit by: set a limit or rules")]
    NoRules,
    /// A rule has a setting that the layer or the store does not support.
    #[error("rule {rule}: {reason}")]
    Unsupported {
        /// The rule's id.
        rule: String,
        /// The setting, and what to use instead.
        reason: String,
    },
    /// A key of the allow list or of the bans can never be that of a request.
    #[error("{list}: {key}: {reason}")]
    UnsupportedKey {
        /// `allow` or `bans`.
        list: &'static str,
        /// The key, as it is written.
        key: String,
        /// Why, and what to use instead.
        reason: String,
    },
    /// New rules come with a setting that differs from the one in force, which is fixed for the lifetime of a layer.
    #[error("{0} differs from the setting in force: it is fixed when the layer is built")]
    FixedSetting(&'static str),
    /// A trusted proxy is not an address or a network.
    #[error("{0}")]
    TrustedProxies(String),
    /// The key of tickets cannot be read, or is too short.
    #[error("ticket key: {0}")]
    TicketKey(String),
    /// The store's address is not valid, or it cannot be opened.
    #[error("store: {0}")]
    Store(String),
}

impl From<RulesError> for LayerError {
    fn from(error: RulesError) -> LayerError {
        LayerError::Engine(error.into())
    }
}

impl RateLimitBuilder {
    /// One limit for each client address, such as `100/m`.
    pub fn limit(self, rate: &str) -> Self {
        self.limit_by("ip", rate)
    }

    /// One limit for each value of an attribute, such as `user` or `header:x-api-key`. Requests without one share one
    /// counter.
    pub fn limit_by(self, attribute: &str, rate: &str) -> Self {
        let rule = json!({"id": "default", "key": [attribute], "limit": rate, "missing_key": "shared"});
        self.rules(&json!({ "rules": [rule] }).to_string())
    }

    /// Rules from YAML or JSON, as in the server's file. Its `trusted_proxies`, `trusted_header` and `headers` are
    /// followed, too, unless they are set here.
    pub fn rules(mut self, text: &str) -> Self {
        self.policy = Some(Policy::from_yaml(text));
        self
    }

    /// Rules that were read before.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(Ok(policy));
        self
    }

    /// Proxies and load balancers in front, by address or network. Only they may name the client's address: without
    /// this, forwarding headers are ignored.
    pub fn trusted_proxies<T: Into<String>>(mut self, networks: impl IntoIterator<Item = T>) -> Self {
        self.trusted = Some(networks.into_iter().map(Into::into).collect());
        self
    }

    /// The header that trusted proxies write: `X-Forwarded-For` by default.
    pub fn forwarding_header(mut self, header: ForwardingHeader) -> Self {
        self.forwarding_header = Some(header);
        self
    }

    /// The headers of responses.
    pub fn headers(mut self, style: HeaderStyle) -> Self {
        self.headers = Some(style);
        self
    }

    /// Adds identities that the layer cannot see: a user from an extension, a plan, a cost.
    ///
    /// ```
    /// use tollgate_tower::{Hit, RateLimitLayer, IncomingRequest};
    ///
    /// #[derive(Clone)]
    /// struct Account { id: String, plan: String }
    ///
    /// fn identify<'r>(request: IncomingRequest<'r>, hit: Hit<'r>) -> Hit<'r> {
    ///     match request.extension::<Account>() {
    ///         Some(account) => hit.user(&account.id).attribute("plan", &account.plan),
    ///         None => hit,
    ///     }
    /// }
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .rules("rules: [{id: api, key: user, limits_by: {attr: plan, free: [10/m], pro: [100/m]}}]")
    ///     .identify(identify)
    ///     .build()?;
    /// # Ok::<(), tollgate_tower::LayerError>(())
    /// ```
    pub fn identify(
        mut self,
        identify: impl for<'r> Fn(IncomingRequest<'r>, Hit<'r>) -> Hit<'r> + Send + Sync + 'static,
    ) -> Self {
        self.identify = Some(Box::new(identify));
        self
    }

    /// Changes the response to a denied request: it gets the one that would be sent.
    pub fn map_denial(
        mut self,
        map: impl Fn(Response<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.map_denial = Some(Box::new(map));
        self
    }

    /// Seals a ticket into each denial, which `tollgate explain` reads on every node whose `receipt_key_file` contains the
    /// same secret of at least 32 bytes. Without a key denials have no ticket.
    ///
    /// The ticket is `instance` of problem details and in the footer of a page; a gRPC status and a body of a rule have
    /// it in the header `tollgate-ticket`.
    #[cfg(feature = "tickets")]
    pub fn ticket_key(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.ticket_key = Some(TicketKey::Secret(secret.into()));
        self
    }

    /// Like [`ticket_key`](Self::ticket_key), with the secret in a file. It is read when the layer is built.
    #[cfg(feature = "tickets")]
    pub fn ticket_key_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.ticket_key = Some(TicketKey::File(path.into()));
        self
    }

    /// How many requests may be held at once by rules with `on_exceed: hold`: 10,000 by default. Further ones are
    /// denied.
    pub fn max_held(mut self, requests: usize) -> Self {
        self.max_held = Some(requests);
        self
    }

    /// How much memory counters may take: a gibibyte by default. It is reserved, and committed as keys arrive.
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.engine = self.engine.memory_bytes(bytes);
        self
    }

    /// The time to count by; [`Clock::manual`] is for tests.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.engine = self.engine.clock(clock);
        self
    }

    /// Counts on servers that several processes share, such as `redis://127.0.0.1:6379`; the address is as in the
    /// server's file. The layer is then built inside a tokio runtime, connects in the background, and applies
    /// `on_store_error` of each rule while the store does not answer.
    ///
    /// A Tollgate server with the same store, rules, [`store_keys`](Self::store_keys) and secret shares the counters.
    /// Bans are of each process.
    #[cfg(feature = "_store")]
    pub fn store(mut self, url: &str) -> Self {
        self.store.get_or_insert_default().url = url.to_owned();
        self
    }

    /// Which identities are in plain text in the store's keys: `store_keys` of the server's file. Its value in the
    /// text of the rules is followed unless it is set here. All processes that share counters need the same.
    #[cfg(feature = "_store")]
    pub fn store_keys(mut self, visibility: KeyVisibility) -> Self {
        self.store.get_or_insert_default().keys = Some(visibility);
        self
    }

    /// The key under which identities are hashed in the store's keys: by default emails, API keys, tokens and cookies.
    /// All processes that share counters need the same. Without it they are hashed, but can be guessed. A server takes
    /// its file without the white space around the secret.
    #[cfg(feature = "_store")]
    pub fn store_secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.store.get_or_insert_default().secret = Some(StoreSecret::Bytes(secret.into()));
        self
    }

    /// Like [`store_secret`](Self::store_secret), with the secret in a file: the `store_secret_file` of the server.
    #[cfg(feature = "_store")]
    pub fn store_secret_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.store.get_or_insert_default().secret = Some(StoreSecret::File(path.into()));
        self
    }

    /// How long a decision may wait for the store.
    #[cfg(feature = "_store")]
    pub fn store_deadline(mut self, deadline: std::time::Duration) -> Self {
        self.store.get_or_insert_default().deadline = Some(deadline);
        self
    }

    /// The layer.
    pub fn build(self) -> Result<RateLimitLayer, LayerError> {
        let policy = self.policy.ok_or(LayerError::NoRules)??;
        check_policy(snapshot_of(&policy), RequestSources::of(self.identify.as_deref()))?;
        let file = layer_settings_of(&policy).clone();
        let own = OwnSettings {
            trusted: self.trusted.is_some(),
            forwarding_header: self.forwarding_header.is_some(),
            headers: self.headers.is_some(),
        };
        let trusted = match &self.trusted {
            Some(words) => TrustedProxies::parse(words.iter().map(String::as_str))
                .map_err(|error| LayerError::TrustedProxies(error.to_string()))?,
            None => file.trusted.clone().unwrap_or_default(),
        };
        #[cfg(feature = "_store")]
        let shared = self.store.map(|store| SharedCounters::open(store, &file)).transpose()?;
        #[cfg(feature = "_store")]
        if let Some(shared) = &shared {
            shared.check(snapshot_of(&policy))?;
        }
        let engine: Engine = self.engine.build(policy)?;
        let core = core_of(&engine);
        let needs = RequestNeeds::of_policy(&core.policy(), &core.ban_attributes());
        let settings = LimiterSettings {
            trusted,
            forwarding_header: self.forwarding_header.or(file.trusted_header).unwrap_or_default(),
            headers: self.headers.or(file.headers).unwrap_or_default(),
            own,
            identify: self.identify,
            map_denial: self.map_denial,
            max_held: self.max_held.unwrap_or(DEFAULT_MAX_HELD),
            #[cfg(feature = "tickets")]
            tickets: self.ticket_key.map(TicketKey::open).transpose()?,
        };
        Ok(RateLimitLayer::new(RateLimiter {
            engine,
            needs: NeedsInForce::new(needs),
            settings,
            hold_queues: Arc::<HoldQueues>::default(),
            #[cfg(feature = "_store")]
            shared,
            has_warned: AtomicBool::new(false),
        }))
    }
}

/// Where the secret of tickets is.
#[cfg(feature = "tickets")]
enum TicketKey {
    Secret(Vec<u8>),
    File(std::path::PathBuf),
}

#[cfg(feature = "tickets")]
impl TicketKey {
    fn open(self) -> Result<Tickets, LayerError> {
        let (secret, place) = match self {
            TicketKey::Secret(secret) => (secret, String::new()),
            TicketKey::File(path) => {
                let problem =
                    |why| LayerError::TicketKey(format!("{}: cannot be read: {why}", path.display()));
                (std::fs::read(&path).map_err(problem)?, format!("{}: ", path.display()))
            }
        };
        let secret = tollgate::internal::shared_secret(&secret)
            .map_err(|why| LayerError::TicketKey(format!("{place}the secret {why}")))?;
        Ok(Tickets::new(secret, KeyScope::Fleet))
    }
}
