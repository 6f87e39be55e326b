//! Plain commands, for those who keep something other than counters on a Redis.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::address::RedisAddress;
use super::call::Topology;
use super::cluster::slot_of;
use super::resp::RedisReply;
use crate::counters::StoreError;

/// Connections of its own, so that what is large does not delay decisions. A clone is the same client.
#[derive(Clone)]
pub struct RedisClient {
    topology: Arc<Topology>,
    /// For each command.
    deadline: Duration,
}

impl RedisClient {
    /// Connects in the background; a server that is down now may come up later. Only certificates that cannot be
    /// read are an error. It must be called inside a tokio runtime.
    pub fn open(address: RedisAddress, deadline: Duration) -> Result<RedisClient, String> {
        Ok(RedisClient { topology: Arc::new(Topology::open(address)?), deadline })
    }

    /// Sends a command to the server that keeps `key`, once; an error says whether it may have run.
    pub async fn command(&self, key: &str, words: &[impl AsRef<[u8]>]) -> Result<RedisReply, StoreError> {
        self.topology.command(slot_of(key), words, Instant::now() + self.deadline).await
    }
}
