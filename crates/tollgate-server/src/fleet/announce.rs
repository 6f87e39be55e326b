//! Announces this node in the rules database.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tollgate_stores::rules::{AnnouncedNode, DbError};

use super::Fleet;
use crate::connection::{Shutdown, shutdown_requested};
use crate::gate::Gate;
use crate::rules_follower::RulesFollower;

const INTERVAL: Duration = Duration::from_secs(10);
/// How long a row stays after its node was seen last.
const KEEP: Duration = Duration::from_secs(86_400);
/// How long a stop waits for the database.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Announces this node, if it has an address, until the shutdown; then removes its row.
pub async fn announce(gate: Arc<Gate>, mut shutdown: Shutdown) {
    let (Some(fleet), Some(follower)) = (gate.fleet.get(), gate.rules_follower.get()) else { return };
    let Some(address) = fleet.advertise() else { return };
    loop {
        let announced = announce_once(&gate, follower, address).await;
        record(fleet, address, announced);
        tokio::select! {
            () = sleep(INTERVAL) => {}
            () = shutdown_requested(&mut shutdown) => break,
        }
    }
    let forget = async { follower.db()?.forget_node(address.to_owned(), gate.engine.node()).await };
    if let Err(error) = timeout(STOP_TIMEOUT, forget).await.unwrap_or(Ok(())) {
        tracing::warn!("this node is still listed in the rules database: {error}");
    }
}

async fn announce_once(gate: &Gate, follower: &RulesFollower, address: &str) -> Result<(), DbError> {
    let now = gate.now();
    let node = AnnouncedNode {
        id: gate.engine.node(),
        address: address.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        generation: gate.engine.policy().generation(),
        rules_version: follower.status().version.map(|version| version.to_string()),
        seen: now,
    };
    follower.db()?.announce_node(node, now - KEEP).await
}

/// Logs a change.
fn record(fleet: &Fleet, address: &str, announced: Result<(), DbError>) {
    let error = announced.err().map(|error| format!("this node cannot announce itself: {error}"));
    let mut known = fleet.known();
    match (&error, &known.announce_error) {
        (Some(error), before) if before.as_ref() != Some(error) => tracing::error!("{error}"),
        (None, Some(_)) => tracing::info!("other nodes find this one at {address} again"),
        _ => {}
    }
    known.announce_error = error;
}
