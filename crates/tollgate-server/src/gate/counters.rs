//! Where the counters of a node are. The rest of a request's path does not distinguish memory from a central store.

use tollgate::Time;
use tollgate::internal::engine::{CounterCreation, DecisionContext, InspectError, InspectMode, KeyReport};
use tollgate::internal::identity::Key;
use tollgate::internal::store::central::CounterId;
use tollgate::internal::store::{CounterKey, KeyPart, Sensitivity};
use tollgate::internal::{EngineCore, EngineVerdict};

use crate::gate::CentralBackend;

#[derive(Clone, Copy)]
pub(super) enum CounterLocation<'g> {
    Memory(&'g EngineCore),
    Central(&'g EngineCore, &'g CentralBackend),
}

impl CounterLocation<'_> {
    #[inline]
    pub(super) async fn decide(self, context: &DecisionContext<'_, '_>) -> EngineVerdict {
        match self {
            CounterLocation::Memory(engine) => engine.decide_in(context),
            CounterLocation::Central(engine, central) => central.decide(engine, context).await,
        }
    }

    pub(super) async fn inspect(
        self,
        rule: &str,
        key: Key,
        now: Time,
        mode: InspectMode,
    ) -> Result<KeyReport, InspectError> {
        match self {
            CounterLocation::Memory(engine) => engine.inspect(rule, key, now, mode),
            CounterLocation::Central(engine, central) => {
                engine.inspect_central(rule, key, now, mode, &central.store).await
            }
        }
    }
}

impl CentralBackend {
    /// Decides, and refunds the charges of a request that was denied after all.
    async fn decide(&self, engine: &EngineCore, context: &DecisionContext<'_, '_>) -> EngineVerdict {
        // The counters in memory are those of node shares.
        let context = DecisionContext { creation: CounterCreation::Always, ..*context };
        // Boxed: an idle connection has room for the future of a request.
        let decided = Box::pin(engine.decide_central_in(&context, &self.timed())).await;
        if let Some(receipt) = decided.to_refund {
            self.settle(receipt, 0, context.now);
        }
        decided.verdict
    }
}

/// The id of a counter that no rule has: rules have neither such a domain nor such an attribute.
pub(super) fn reserved_counter(rule: &str, attribute: impl Into<Box<str>>, value: &str) -> CounterId {
    let sensitivity = Sensitivity::Public;
    let part = KeyPart { name: attribute.into(), value: value.into(), sensitivity };
    CounterId { domain: "_".into(), rule: rule.into(), key: CounterKey::owned(vec![part], 0) }
}
