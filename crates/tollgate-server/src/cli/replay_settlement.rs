//! Settles a replayed request at once by the status of its response, as the proxy does when the response ends.

use std::sync::Arc;

use tollgate::Time;
use tollgate::internal::settlement::{Settle, UnsettledCharges};
use tollgate::internal::store::ChargeReceipt;
use tollgate::internal::{EngineCore, EngineVerdict};

/// Refunds what does not count after `status`; without one everything counts. Permits are released.
pub fn settle(engine: &EngineCore, verdict: &mut EngineVerdict, now: Time, status: Option<u16>) {
    if !UnsettledCharges::any_unsettled(verdict) {
        return;
    }
    let counters = Arc::new(EngineAt { engine, now });
    let mut charges = UnsettledCharges::take_from(verdict);
    let held = charges.take_held().and_then(|(_, own)| own);
    charges.finish_wait(held);
    if let Some(status) = status {
        charges.settle(&*counters, status, |_| None);
    }
    drop(charges.permits(&counters));
}

/// The engine at the time of a request.
struct EngineAt<'e> {
    engine: &'e EngineCore,
    now: Time,
}

impl Settle for EngineAt<'_> {
    fn settle(&self, receipt: ChargeReceipt, real_cost: u64) {
        self.engine.settle(receipt, real_cost, self.now);
    }
}
