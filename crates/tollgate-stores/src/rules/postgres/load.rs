//! Loads all items from one snapshot, in batches: they are never all in memory.

use std::pin::pin;

use futures_util::StreamExt;
use tokio_postgres::{Client, Row};

use super::connection::PgFailure;
use super::{items, log};
use crate::rules::{StoredItem, Version};

/// Items per batch.
const BATCH: usize = 1_000;

pub(super) async fn load_all(
    client: &Client,
    mut each: impl FnMut(Vec<StoredItem>, u64),
) -> Result<Version, PgFailure> {
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    let version = log::last_version(client).await?;
    let count = "SELECT (SELECT count(*) FROM tollgate.rule) + (SELECT count(*) FROM tollgate.thing)";
    let total = client.query_one(count, &[]).await?.get::<_, i64>(0).unsigned_abs();
    let rules = format!("SELECT {} FROM tollgate.rule", items::RULE_COLUMNS);
    stream(client, &rules, |row| Ok(items::read_rule(row)), |batch| each(batch, total)).await?;
    let others = format!("SELECT {} FROM tollgate.thing", items::ITEM_COLUMNS);
    stream(client, &others, |row| Ok(items::read_item(row)?), |batch| each(batch, total)).await?;
    client.batch_execute("COMMIT").await?;
    Ok(version)
}

async fn stream(
    client: &Client,
    sql: &str,
    read: impl Fn(&Row) -> Result<StoredItem, PgFailure>,
    mut each: impl FnMut(Vec<StoredItem>),
) -> Result<(), PgFailure> {
    let mut rows = pin!(client.query_raw(sql, Vec::<i32>::new()).await?);
    let mut batch = Vec::with_capacity(BATCH);
    while let Some(row) = rows.next().await {
        batch.push(read(&row?)?);
        if batch.len() == BATCH {
            each(std::mem::replace(&mut batch, Vec::with_capacity(BATCH)));
        }
    }
    if !batch.is_empty() {
        each(batch);
    }
    Ok(())
}
