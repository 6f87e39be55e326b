//! Servers that freeze, die or are replaced under load. A binary of its own: deadlines are measured, so the tests run one
//! at a time and beside no others.

mod memcached_frozen;
mod redis_frozen;
mod redis_replaced;

/// Held by the test that measures.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
