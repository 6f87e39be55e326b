//! States stored as one value each, read and replaced by compare-and-swap.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::pool::MemcachedPool;
use super::wire::{MemcachedCommand, MemcachedReply, StoreCondition};
use crate::counters::StoreError;
use crate::counters::transactions::{CasOutcome, CasStore, CasValue, CasWrite};

/// A partition is a single value and has its name.
pub struct MemcachedValues {
    pub pool: Arc<MemcachedPool>,
}

impl CasStore for MemcachedValues {
    type Token = StoreCondition;
    const RETRY_BACKOFF: Duration = Duration::from_micros(300);

    async fn load(
        &self,
        partition: &str,
        names: &[String],
        deadline: Instant,
    ) -> Result<Vec<CasValue<StoreCondition>>, StoreError> {
        let server = self.pool.server(partition);
        let gets = names.iter().map(|name| MemcachedCommand::Get { key: name.clone() }).collect();
        let loaded = server.execute(gets, deadline).await?.into_iter().map(|reply| match reply {
            MemcachedReply::Value { data, unique } => {
                Ok(CasValue { bytes: Some(data), token: StoreCondition::Unchanged(unique) })
            }
            MemcachedReply::Missing => Ok(CasValue { bytes: None, token: StoreCondition::Absent }),
            MemcachedReply::Refused(reason) => Err(server.refused(reason)),
            MemcachedReply::Done | MemcachedReply::Conflict => Err(server.unexpected_reply()),
        });
        loaded.collect()
    }

    async fn swap(
        &self,
        partition: &str,
        writes: &[CasWrite<StoreCondition>],
        deadline: Instant,
    ) -> Result<CasOutcome, StoreError> {
        let server = self.pool.server(partition);
        let [CasWrite { name, token, bytes, lifetime }] = writes else {
            return Err(server.refused("two values cannot be replaced together"));
        };
        let ttl = self.pool.ttl(*lifetime);
        let store = MemcachedCommand::Store { key: name.clone(), data: bytes.clone(), over: *token, ttl };
        match server.execute_one(store, deadline).await? {
            MemcachedReply::Done => Ok(CasOutcome::Applied),
            MemcachedReply::Conflict | MemcachedReply::Missing => Ok(CasOutcome::Conflict),
            MemcachedReply::Refused(reason) => Err(server.refused(reason)),
            MemcachedReply::Value { .. } => Err(server.unexpected_reply()),
        }
    }

    fn server(&self, partition: &str) -> String {
        self.pool.server(partition).name()
    }
}
