//! A permitted call and its result.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::time::Instant;
use tollgate::internal::store::ChargeReceipt;

use super::Inner;
use crate::key_table::KeyState;
use crate::learned::{Readiness, SentCall};

/// A call that is not sent yet: dropped, it is neither counted as sent nor charged.
pub(super) struct UnsentCall {
    inner: Arc<Inner>,
    state: Arc<KeyState>,
    /// Counted as sent, by the limits that are learned.
    call: Option<SentCall>,
    receipt: Option<Box<ChargeReceipt>>,
}

impl UnsentCall {
    /// Counts it as sent, if the server allows a call.
    pub(super) fn reserve(inner: &Arc<Inner>, state: &Arc<KeyState>) -> Result<UnsentCall, Readiness> {
        let call = state.learned().try_send(Instant::now())?;
        Ok(UnsentCall { inner: Arc::clone(inner), state: Arc::clone(state), call: Some(call), receipt: None })
    }

    pub(super) fn charged(mut self, receipt: Option<Box<ChargeReceipt>>) -> UnsentCall {
        self.receipt = receipt;
        self
    }

    /// The charge, of a call that has to wait for the server again.
    pub(super) fn into_charge(mut self) -> BudgetCharge {
        BudgetCharge { inner: Arc::clone(&self.inner), receipt: self.receipt.take() }
    }

    pub(super) fn send(mut self) -> CallPermit {
        CallPermit {
            inner: Arc::clone(&self.inner),
            state: Arc::clone(&self.state),
            receipt: self.receipt.take(),
            call: self.call.take(),
        }
    }
}

impl Drop for UnsentCall {
    fn drop(&mut self) {
        if self.call.take().is_some() {
            self.state.learned().revert();
            self.state.answered.notify_one();
        }
        self.inner.refund(self.receipt.take());
    }
}

/// What a call was charged that may not be sent yet: given back when it is dropped.
pub(super) struct BudgetCharge {
    inner: Arc<Inner>,
    receipt: Option<Box<ChargeReceipt>>,
}

impl BudgetCharge {
    pub(super) fn take(mut self) -> Option<Box<ChargeReceipt>> {
        self.receipt.take()
    }
}

impl Drop for BudgetCharge {
    fn drop(&mut self) {
        self.inner.refund(self.receipt.take());
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
        self.inner.refund(self.receipt.take());
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
