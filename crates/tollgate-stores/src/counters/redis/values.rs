//! CAS access to named values on Redis: one script reads several, another replaces one if it is unchanged.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

use super::call::{Script, Topology, refused};
use super::resp::RedisReply;
use crate::counters::StoreError;
use crate::counters::cas::{CasOutcome, CasStore, CasValue, CasWrite};

/// Upper bound of a TTL: the server rejects times that overflow its integers.
const MAX_TTL_MS: u128 = 1 << 40;

static READ: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("script/read.lua")));
static SWAP: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("script/swap.lua")));

pub(in crate::counters) struct RedisValues<'t> {
    pub(super) topology: &'t Topology,
}

impl CasStore for RedisValues<'_> {
    /// The whole value; `None` if it does not exist. No value is empty.
    type Token = Option<Vec<u8>>;
    const RETRY_BACKOFF: Duration = Duration::from_millis(1);

    async fn load(
        &self,
        _partition: &str,
        names: &[String],
        deadline: Instant,
    ) -> Result<Vec<CasValue<Self::Token>>, StoreError> {
        let (reply, link) = self.topology.run_script(&READ, names, &[], deadline).await?;
        let values = reply.elements().filter(|values| values.len() == names.len());
        let values = values.ok_or_else(|| refused(&link, "the script returned an unexpected value"))?;
        let loaded = values.iter().map(|value| match value {
            RedisReply::Bulk(bytes) => CasValue { bytes: Some(bytes.clone()), token: Some(bytes.clone()) },
            _ => CasValue { bytes: None, token: None },
        });
        Ok(loaded.collect())
    }

    async fn swap(
        &self,
        _partition: &str,
        writes: &[CasWrite<Self::Token>],
        deadline: Instant,
    ) -> Result<CasOutcome, StoreError> {
        let [CasWrite { name, token, bytes, lifetime }] = writes else {
            let reason = "two values cannot be replaced together".to_owned();
            return Err(StoreError::Refused { server: self.server(""), reason });
        };
        let lives_ms = lifetime.as_millis().clamp(1, MAX_TTL_MS).to_string();
        let arguments = [token.as_deref().unwrap_or_default(), bytes, lives_ms.as_bytes()];
        let (reply, link) = self.topology.run_script(&SWAP, &[name], &arguments, deadline).await?;
        match reply.number() {
            Some(1) => Ok(CasOutcome::Applied),
            Some(0) => Ok(CasOutcome::Conflict),
            _ => Err(refused(&link, "the script returned an unexpected value")),
        }
    }

    fn server(&self, _partition: &str) -> String {
        "redis".to_owned()
    }
}
