//! States kept as one value each, read and replaced by compare-and-swap.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::fleet::Fleet;
use super::wire::{Command, Over, Reply};
use crate::counters::StoreError;
use crate::counters::cells::{Cells, Loaded, Swap, Write};

/// A lane is a single value, and has its name.
pub struct Values {
    pub fleet: Arc<Fleet>,
}

impl Cells for Values {
    type Seen = Over;
    const PAUSE: Duration = Duration::from_micros(300);

    async fn load(
        &self,
        lane: &str,
        names: &[String],
        deadline: Instant,
    ) -> Result<Vec<Loaded<Over>>, StoreError> {
        let server = self.fleet.server(lane);
        let gets = names.iter().map(|name| Command::Get { key: name.clone() }).collect();
        let loaded = server.ask(gets, deadline).await?.into_iter().map(|reply| match reply {
            Reply::Value { data, unique } => Ok(Loaded { bytes: Some(data), seen: Over::Unchanged(unique) }),
            Reply::Missing => Ok(Loaded { bytes: None, seen: Over::Nothing }),
            Reply::Refused(reason) => Err(server.refused(reason)),
            Reply::Done | Reply::Conflict => Err(server.out_of_step()),
        });
        loaded.collect()
    }

    async fn swap(&self, lane: &str, writes: &[Write<Over>], deadline: Instant) -> Result<Swap, StoreError> {
        let server = self.fleet.server(lane);
        let [Write { name, seen, bytes, lifetime }] = writes else {
            return Err(server.refused("two values cannot be replaced together"));
        };
        let ttl = self.fleet.ttl(*lifetime);
        let store = Command::Store { key: name.clone(), data: bytes.clone(), over: *seen, ttl };
        match server.ask_one(store, deadline).await? {
            Reply::Done => Ok(Swap::Done),
            Reply::Conflict | Reply::Missing => Ok(Swap::Lost),
            Reply::Refused(reason) => Err(server.refused(reason)),
            Reply::Value { .. } => Err(server.out_of_step()),
        }
    }

    fn server(&self, lane: &str) -> String {
        self.fleet.server(lane).name()
    }
}
