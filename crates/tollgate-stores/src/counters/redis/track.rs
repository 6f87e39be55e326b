//! Records of tracked keys: one string each, updated by a script in one call.
//!
//! The script does the same as [`TrackRecord::add`]; a test compares them.

use std::sync::LazyLock;

use tokio::time::Instant;
use tollgate::internal::track::Delta;
use tollgate::internal::track::central::SharedTrack;

use super::call::Script;
use super::cluster::slot_of;
use super::resp::RedisReply;
use super::store::RedisStore;
use crate::counters::track::{MAX_WRITERS, TRACK_TIMEOUT, TrackRecord, micros, write_times};
use crate::counters::{CounterId, StoreError};

static ADD: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("script/track.lua")));

impl RedisStore {
    /// Adds a delta to the record of its key. Idempotent: a resent delta counts once.
    pub async fn add_track(&self, delta: &Delta) -> Result<(), StoreError> {
        let name = self.backend.naming.track_name(&delta.counter);
        let arguments = [
            format!("{:016x}", delta.writer),
            delta.sequence.to_string(),
            delta.track.tries.to_string(),
            delta.track.denials.to_string(),
            micros(delta.track.last_seen).to_string(),
            write_times(delta.track.latest.iter()),
            delta.tracking.times().to_string(),
            delta.tracking.keep().as_millis().to_string(),
            MAX_WRITERS.to_string(),
        ];
        let arguments = arguments.each_ref().map(|argument| argument.as_bytes());
        let deadline = Instant::now() + TRACK_TIMEOUT;
        self.backend.topology.run_script(&ADD, &[&name], &arguments, deadline).await.map(drop)
    }

    /// The record of a key; empty if there is none.
    pub async fn read_track(&self, counter: &CounterId, writer: u64) -> Result<SharedTrack, StoreError> {
        let name = self.backend.naming.track_name(counter);
        let deadline = Instant::now() + TRACK_TIMEOUT;
        let reply = self.backend.topology.command(slot_of(&name), &["GET", &name], deadline).await?;
        let record = match &reply {
            RedisReply::Nil => TrackRecord::default(),
            reply => TrackRecord::read(reply.text().unwrap_or_default().as_bytes(), "redis")?,
        };
        Ok(record.into_shared(writer))
    }

    pub async fn forget_track(&self, counter: &CounterId) -> Result<(), StoreError> {
        let name = self.backend.naming.track_name(counter);
        let deadline = Instant::now() + TRACK_TIMEOUT;
        self.backend.topology.command(slot_of(&name), &["DEL", &name], deadline).await.map(drop)
    }
}
