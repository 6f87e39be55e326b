//! Values under names, read together and replaced one by one if they are as they were seen.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::StoreError;

/// Where values are kept.
pub(crate) trait Cells: Send + Sync + Sized {
    /// What tells a value that was read from what stands there later.
    type Seen: Clone + Send + Sync;
    /// After a lost race the next try waits for up to this, times the number of tries.
    const PAUSE: Duration;
    /// Values of one lane that can be written together.
    const TOGETHER: usize = 1;

    fn load(
        &self,
        lane: &str,
        names: &[String],
        deadline: Instant,
    ) -> impl Future<Output = Result<Vec<Loaded<Self::Seen>>, StoreError>> + Send;

    /// Writes all values, or none if one of them is not as it was seen.
    fn swap(
        &self,
        lane: &str,
        writes: &[Write<Self::Seen>],
        deadline: Instant,
    ) -> impl Future<Output = Result<Swap, StoreError>> + Send;

    /// Who keeps the lane, for messages.
    fn server(&self, lane: &str) -> String;
}

/// A value as it was read; no bytes if it is not there.
#[derive(Clone, Debug)]
pub(crate) struct Loaded<Seen> {
    pub bytes: Option<Vec<u8>>,
    pub seen: Seen,
}

#[derive(Clone, Debug)]
pub(crate) struct Write<Seen> {
    pub name: String,
    pub seen: Seen,
    pub bytes: Vec<u8>,
    /// How long the value is of interest.
    pub lifetime: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Swap {
    Done,
    /// Somebody was faster.
    Lost,
}
