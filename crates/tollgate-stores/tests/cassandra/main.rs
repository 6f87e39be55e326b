//! Counters on a real Cassandra.

#[path = "../central/mod.rs"]
mod central;
#[path = "../conformance/mod.rs"]
mod conformance;
#[path = "../servers/mod.rs"]
mod servers;

mod answers;
mod bad_input;
mod crowd;
mod options;
mod outage;
mod relay;
mod rows;
mod stores;

use std::sync::Arc;

use servers::cassandra::Cassandra;
use tokio::sync::{Mutex, MutexGuard};

static TURN: Mutex<()> = Mutex::const_new(());

/// The server that all tests share, one after the other; `None` if there is none on this machine.
async fn turn(what: &str) -> Option<(Arc<Cassandra>, MutexGuard<'static, ()>)> {
    let server = Cassandra::shared(what)?;
    Some((server, TURN.lock().await))
}
