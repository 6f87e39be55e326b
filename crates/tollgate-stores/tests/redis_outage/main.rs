//! Redis that stops, dies or is replaced under load. These tests measure times: they run one after the other.

#[path = "../redis/hits.rs"]
mod hits;
#[path = "../servers/mod.rs"]
mod servers;

mod frozen;
mod load;
mod replaced;

/// Held by the one test that measures.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
