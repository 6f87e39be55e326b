//! Compare-and-swap access to named values: read several at once, replace each if its token is unchanged.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::StoreError;

/// Attempts before a conflict is final.
pub(crate) const MAX_ATTEMPTS: u32 = 12;

/// A backend with compare-and-swap.
pub(crate) trait CasStore: Send + Sync + Sized {
    /// Identifies the version of a value that was read; a CAS with a stale token fails.
    type Token: Clone + Send + Sync;
    /// Upper bound of the random backoff after a CAS conflict, multiplied by the number of attempts.
    const RETRY_BACKOFF: Duration;
    /// Values of one partition that one swap can write.
    const MAX_WRITES: usize = 1;

    fn load(
        &self,
        partition: &str,
        names: &[String],
        deadline: Instant,
    ) -> impl Future<Output = Result<Vec<CasValue<Self::Token>>, StoreError>> + Send;

    /// Writes all values, or none if one of the tokens is stale.
    fn swap(
        &self,
        partition: &str,
        writes: &[CasWrite<Self::Token>],
        deadline: Instant,
    ) -> impl Future<Output = Result<CasOutcome, StoreError>> + Send;

    /// The server of a partition, for messages.
    fn server(&self, partition: &str) -> String;
}

/// A value as it was read; `bytes` is `None` if it does not exist.
#[derive(Clone, Debug)]
pub(crate) struct CasValue<Token> {
    pub bytes: Option<Vec<u8>>,
    pub token: Token,
}

#[derive(Clone, Debug)]
pub(crate) struct CasWrite<Token> {
    pub name: String,
    pub token: Token,
    pub bytes: Vec<u8>,
    /// Time until the value may be deleted.
    pub lifetime: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CasOutcome {
    Applied,
    /// Another writer changed a value first; nothing was written.
    Conflict,
}

/// Loads one value.
pub(crate) async fn load_one<C: CasStore>(
    store: &C,
    partition: &str,
    name: &str,
    deadline: Instant,
) -> Result<CasValue<C::Token>, StoreError> {
    let loaded = store.load(partition, &[name.to_owned()], deadline).await?;
    let missing = || StoreError::Refused {
        server: store.server(partition),
        reason: "the response lacks a value that was read".to_owned(),
    };
    loaded.into_iter().next().ok_or_else(missing)
}

/// Waits after the given number of conflicts, at random so that writers do not collide again.
pub(crate) async fn back_off<C: CasStore>(conflicts: u32) {
    sleep(C::RETRY_BACKOFF.mul_f64(f64::from(conflicts) * fastrand::f64())).await;
}
