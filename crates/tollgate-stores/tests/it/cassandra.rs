//! Counters on a real Cassandra.

mod answers;
mod bad_input;
mod contention;
mod options;
mod outage;
mod relay;
mod rows;

use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard};
use tollgate_testkit::servers::cassandra::Cassandra;

static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

/// The server that all tests share, one after the other; `None` if there is none on this machine.
async fn exclusive(what: &str) -> Option<(Arc<Cassandra>, MutexGuard<'static, ()>)> {
    let server = Cassandra::shared(what)?;
    Some((server, EXCLUSIVE.lock().await))
}
