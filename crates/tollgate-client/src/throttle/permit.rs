//! A permitted call and its result.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::time::Instant;
use tollgate::internal::store::ChargeReceipt;

use super::Inner;
use crate::key_table::KeyState;
use crate::learned::SentCall;

/// A call that was charged and is not sent yet: dropped, it is not charged.
pub(super) struct UnsentCall {
    inner: Arc<Inner>,
    receipt: Option<Box<ChargeReceipt>>,
}

impl UnsentCall {
    pub(super) fn new(inner: Arc<Inner>, receipt: Option<Box<ChargeReceipt>>) -> UnsentCall {
        UnsentCall { inner, receipt }
    }

    pub(super) fn send(mut self, state: &Arc<KeyState>) -> CallPermit {
        let call = state.learned().send(Instant::now());
        let inner = Arc::clone(&self.inner);
        CallPermit { inner, state: Arc::clone(state), receipt: self.receipt.take(), call: Some(call) }
    }
}

impl Drop for UnsentCall {
    fn drop(&mut self) {
        if let (Some(receipt), Some(budget)) = (self.receipt.take(), &self.inner.budget) {
            budget.refund(*receipt);
        }
    }
}

/// Permission to send one call. Pass the response to [`observe`](Self::observe); a permit that is dropped counts as a
/// call without a response.
#[must_use = "a permit that is dropped counts as a call without a response"]
pub struct CallPermit {
    inner: Arc<Inner>,
    state: Arc<KeyState>,
    receipt: Option<Box<ChargeReceipt>>,
    call: Option<SentCall>,
}

impl CallPermit {
    /// Learns from the response. Returns how long further calls of the key wait if the server has refused this one. The
    /// status of a gRPC response with messages is in its trailers: pass those.
    pub fn observe(mut self, status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
        let call = self.call.take()?;
        self.inner.observe(&self.state, call, status, headers)
    }

    /// Gives the permission back: the call was not sent.
    pub fn cancel(mut self) {
        self.call = None;
        self.state.learned().revert();
        self.state.answered.notify_one();
        if let (Some(receipt), Some(budget)) = (self.receipt.take(), &self.inner.budget) {
            budget.refund(*receipt);
        }
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.state.learned().fail(call, Instant::now());
            self.state.answered.notify_one();
        }
    }
}

impl fmt::Debug for CallPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallPermit").field("call", &self.call).finish_non_exhaustive()
    }
}
