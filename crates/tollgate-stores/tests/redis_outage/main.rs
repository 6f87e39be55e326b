//! Redis that stops, dies or is replaced under load. These tests measure times: they run one after the other.

#[path = "../central/mod.rs"]
mod central;
#[path = "../conformance/mod.rs"]
mod conformance;
#[path = "../servers/mod.rs"]
mod servers;

mod frozen;
mod replaced;
#[path = "../redis/stores.rs"]
mod stores;

/// Held by the one test that measures.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
