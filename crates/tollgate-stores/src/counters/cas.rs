//! Values under names, read together and replaced one by one if they are as they were seen.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::StoreError;

/// Where values are kept.
pub(crate) trait CasStore: Send + Sync + Sized {
    /// What tells a value that was read from what stands there later.
    type Token: Clone + Send + Sync;
    /// After a lost race the next try waits for up to this, times the number of tries.
    const RETRY_BACKOFF: Duration;
    /// Values of one lane that can be written together.
    const MAX_WRITES: usize = 1;

    fn load(
        &self,
        partition: &str,
        names: &[String],
        deadline: Instant,
    ) -> impl Future<Output = Result<Vec<CasValue<Self::Token>>, StoreError>> + Send;

    /// Writes all values, or none if one of them is not as it was seen.
    fn swap(
        &self,
        partition: &str,
        writes: &[CasWrite<Self::Token>],
        deadline: Instant,
    ) -> impl Future<Output = Result<CasOutcome, StoreError>> + Send;

    /// Who keeps the lane, for messages.
    fn server(&self, partition: &str) -> String;
}

/// A value as it was read; no bytes if it is not there.
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
    /// How long the value is of interest.
    pub lifetime: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CasOutcome {
    Applied,
    /// Somebody was faster.
    Conflict,
}
