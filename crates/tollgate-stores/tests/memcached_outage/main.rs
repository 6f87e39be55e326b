//! Memcached servers that stand still, die and come back. In a file of its own: deadlines are measured.

#[path = "../central/mod.rs"]
mod central;
#[path = "../conformance/mod.rs"]
mod conformance;
#[path = "../servers/mod.rs"]
mod servers;
#[path = "../memcached/stores.rs"]
mod stores;

mod frozen;

/// One test at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
