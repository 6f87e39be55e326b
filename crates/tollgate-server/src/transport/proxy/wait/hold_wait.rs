//! Holds a request until its release time.

use std::sync::atomic::Ordering;

use hyper::header::EXPECT;
use tollgate::Time;
use tollgate::internal::EngineVerdict;

use crate::gate::Gate;
use crate::transport::proxy::exchange::{ConnectionContext, ExchangeError, ProxiedRequest};
use crate::transport::proxy::upstream::forward::ForwardError;
use crate::transport::proxy::wait::budget::BudgetReservation;
use crate::transport::proxy::wait::settlement::UnsettledCharges;

/// How much of a held request's body is read ahead.
const READ_AHEAD_BYTES: usize = 16 << 10;
/// Bound on the read-ahead of all held requests together.
pub const MAX_READ_AHEAD_BYTES: usize = 64 << 20;

impl ConnectionContext {
    /// Returns when the request is released. If the client disconnects meanwhile or the queue is full, all charges are
    /// refunded.
    pub async fn wait_for_release(
        &self,
        request: &mut ProxiedRequest,
        charges: &mut UnsettledCharges,
        verdict: &EngineVerdict,
        decided_at: Time,
    ) -> Result<(), ExchangeError> {
        let queue_is_busy =
            charges.queue().is_some_and(|queue| self.proxy.hold_queues.has_requests_for(queue));
        if verdict.delay.is_zero() && !queue_is_busy {
            charges.finish_wait(None);
            return Ok(());
        }
        let gate = &self.proxy.gate;
        let mut refund_guard = RefundOnDrop { gate, charges, is_complete: false };
        let Some((queue, charge)) = refund_guard.charges.take_held() else { return Ok(()) };
        let (rule, mut charge) = charge.unzip();
        let release_at = decided_at + verdict.delay;
        let max_held = request.route.config.max_held;
        let Some(mut held) = self.proxy.hold_queues.enqueue(gate, queue, release_at, &mut charge, max_held)
        else {
            self.proxy.counts.hold_rejected.fetch_add(1, Ordering::Relaxed);
            charge.into_iter().for_each(|charge| gate.refund(charge));
            return Err(ExchangeError::HoldQueueFull(verdict.delay));
        };
        self.proxy.counts.held.fetch_add(1, Ordering::Relaxed);
        // A part of the body is read ahead: the end of the connection is detected only behind it.
        let mut reservation = BudgetReservation::of(&self.proxy.read_ahead);
        let mut may_read_ahead =
            !request.parts.headers.contains_key(EXPECT) && reservation.grow_to(READ_AHEAD_BYTES);
        let charge = loop {
            tokio::select! {
                charge = held.wait() => break charge,
                more = request.upload.read_ahead(), if may_read_ahead => {
                    may_read_ahead = more.map_err(ForwardError::from)? && request.upload.prefix().len() < READ_AHEAD_BYTES;
                }
            }
        };
        refund_guard.is_complete = true;
        refund_guard.charges.finish_wait(rule.zip(charge));
        Ok(())
    }
}

/// A wait in a hold queue: refunds all charges if dropped early.
struct RefundOnDrop<'a> {
    gate: &'a Gate,
    charges: &'a mut UnsettledCharges,
    is_complete: bool,
}

impl Drop for RefundOnDrop<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            self.charges.refund_all(self.gate);
        }
    }
}
