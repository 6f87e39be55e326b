//! Plain commands, for data other than counters.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::address::RedisAddress;
use super::call::Topology;
use super::cluster::slot_of;
use super::resp::RedisReply;
use crate::counters::StoreError;

/// Has its own connections, so that large values do not delay decisions. Clones share them.
#[derive(Clone)]
pub struct RedisClient {
    topology: Arc<Topology>,
    /// Per command.
    deadline: Duration,
}

impl RedisClient {
    /// Connects in the background; a server that is unreachable now may become available later. Fails only if
    /// certificates cannot be read. Must be called inside a tokio runtime.
    pub fn open(address: RedisAddress, deadline: Duration) -> Result<RedisClient, String> {
        Ok(RedisClient { topology: Arc::new(Topology::open(address)?), deadline })
    }

    /// Sends a command to the server that has `key`, once; the error tells whether it may have been executed.
    pub async fn command(&self, key: &str, words: &[impl AsRef<[u8]>]) -> Result<RedisReply, StoreError> {
        self.topology.command(slot_of(key), words, Instant::now() + self.deadline).await
    }
}
