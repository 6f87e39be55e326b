//! Current items, one row each. Many are read and written by one statement.

use tokio_postgres::{GenericClient, Row};
use tollgate::Time;

use super::connection::PgFailure;
use crate::rules::plan::CurrentItems;
use crate::rules::row::RuleRow;
use crate::rules::text::expiry;
use crate::rules::{DbError, ItemChange, ItemId, ItemKind, PageQuery, StoredItem, Version};

/// Rows per statement.
pub(super) const CHUNK: usize = 10_000;

pub(super) const RULE_COLUMNS: &str = "id, v, uid, method, url, unit, requests, algorithm, options";
pub(super) const ITEM_COLUMNS: &str = "kind, name, v, body";

pub(super) async fn find(
    client: &impl GenericClient,
    items: impl IntoIterator<Item = &ItemId>,
) -> Result<CurrentItems, PgFailure> {
    let (rules, others): (Vec<&ItemId>, Vec<&ItemId>) =
        items.into_iter().partition(|item| item.kind == ItemKind::Rule);
    let mut current = CurrentItems::new();
    for chunk in rules.chunks(CHUNK) {
        let sql = format!("SELECT {RULE_COLUMNS} FROM tollgate.rule WHERE id = ANY($1)");
        let rows = client.query(&sql, &[&names(chunk)]).await?;
        current.extend(rows.iter().map(read_rule).map(|stored| (stored.item.clone(), stored)));
    }
    for chunk in others.chunks(CHUNK) {
        let sql = format!(
            "SELECT {ITEM_COLUMNS} FROM tollgate.thing JOIN unnest($1::smallint[], $2::text[]) AS wanted (kind, name)
             USING (kind, name)"
        );
        for row in client.query(&sql, &[&kinds(chunk), &names(chunk)]).await? {
            let stored = read_item(&row)?;
            current.insert(stored.item.clone(), stored);
        }
    }
    Ok(current)
}

pub(super) async fn page(
    client: &impl GenericClient,
    page: &PageQuery,
) -> Result<Vec<StoredItem>, PgFailure> {
    let PageQuery { kind, after, limit, .. } = page;
    let (from, to) = page.range();
    let limit = i64::try_from(*limit).unwrap_or(i64::MAX);
    if *kind == ItemKind::Rule {
        let sql = format!(
            "SELECT {RULE_COLUMNS} FROM tollgate.rule WHERE id > $1 AND id >= $2 AND id < $3 ORDER BY id LIMIT $4"
        );
        let rows = client.query(&sql, &[after, &from, &to, &limit]).await?;
        return Ok(rows.iter().map(read_rule).collect());
    }
    let sql = format!(
        "SELECT {ITEM_COLUMNS} FROM tollgate.thing
         WHERE kind = $5 AND name > $1 AND name >= $2 AND name < $3 ORDER BY name LIMIT $4"
    );
    let rows = client.query(&sql, &[after, &from, &to, &limit, &(*kind as i16)]).await?;
    Ok(rows.iter().map(read_item).collect::<Result<_, _>>()?)
}

fn names<'i>(items: &[&'i ItemId]) -> Vec<&'i str> {
    items.iter().map(|item| &*item.name).collect()
}

fn kinds(items: &[&ItemId]) -> Vec<i16> {
    items.iter().map(|item| item.kind as i16).collect()
}

pub(super) fn read_rule(row: &Row) -> StoredItem {
    let rule = RuleRow {
        id: row.get(0),
        uid: row.get(2),
        method: row.get(3),
        url: row.get(4),
        unit: row.get(5),
        requests: row.get(6),
        algorithm: row.get(7),
        options: row.get(8),
    };
    StoredItem {
        item: ItemId::rule(&rule.id),
        version: Version::from_packed(row.get(1)),
        text: rule.to_json(),
    }
}

pub(super) fn read_item(row: &Row) -> Result<StoredItem, DbError> {
    let item = item(row.get(0), row.get(1))?;
    Ok(StoredItem { item, version: Version::from_packed(row.get(2)), text: row.get(3) })
}

pub(super) fn item(code: i16, name: String) -> Result<ItemId, DbError> {
    let kind = ItemKind::from_code(code).ok_or_else(|| DbError::Corrupt(format!("item kind {code}")))?;
    Ok(ItemId::new(kind, name))
}

pub(super) async fn put(client: &impl GenericClient, changes: &[ItemChange]) -> Result<(), PgFailure> {
    for chunk in changes.chunks(CHUNK) {
        let (rules, others): (Vec<&ItemChange>, Vec<&ItemChange>) =
            chunk.iter().partition(|change| change.item.kind == ItemKind::Rule);
        put_rules(client, &rules).await?;
        put_items(client, &others).await?;
    }
    Ok(())
}

async fn put_rules(client: &impl GenericClient, changes: &[&ItemChange]) -> Result<(), PgFailure> {
    let items: Vec<&ItemId> = changes.iter().map(|change| &change.item).collect();
    client.execute("DELETE FROM tollgate.rule WHERE id = ANY($1)", &[&names(&items)]).await?;
    let mut versions = Vec::new();
    let mut rows = Vec::new();
    for change in changes {
        let Some(text) = &change.text else { continue };
        versions.push(change.version.packed());
        rows.push(RuleRow::from_json(text)?);
    }
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let requests: Vec<Option<i64>> = rows.iter().map(|row| row.requests).collect();
    let column = |of: fn(&RuleRow) -> &Option<String>| -> Vec<Option<&str>> {
        rows.iter().map(|row| of(row).as_deref()).collect()
    };
    let sql = format!(
        "INSERT INTO tollgate.rule ({RULE_COLUMNS}) SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[],
            $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::text[])"
    );
    let uid = column(|row| &row.uid);
    let method = column(|row| &row.method);
    let url = column(|row| &row.url);
    let unit = column(|row| &row.unit);
    let algorithm = column(|row| &row.algorithm);
    let options = column(|row| &row.options);
    client
        .execute(&sql, &[&ids, &versions, &uid, &method, &url, &unit, &requests, &algorithm, &options])
        .await?;
    Ok(())
}

async fn put_items(client: &impl GenericClient, changes: &[&ItemChange]) -> Result<(), PgFailure> {
    if changes.is_empty() {
        return Ok(());
    }
    let items: Vec<&ItemId> = changes.iter().map(|change| &change.item).collect();
    let sql = "DELETE FROM tollgate.thing USING unnest($1::smallint[], $2::text[]) AS gone (kind, name)
        WHERE thing.kind = gone.kind AND thing.name = gone.name";
    client.execute(sql, &[&kinds(&items), &names(&items)]).await?;
    let live: Vec<_> = changes.iter().filter_map(|change| Some((*change, change.text.as_deref()?))).collect();
    let items: Vec<&ItemId> = live.iter().map(|(change, _)| &change.item).collect();
    let versions: Vec<i64> = live.iter().map(|(change, _)| change.version.packed()).collect();
    let untils = live.iter().map(|(change, text)| expiry(change.item.kind, text));
    let untils = untils.collect::<Result<Vec<Option<i64>>, _>>()?;
    let texts: Vec<&str> = live.iter().map(|(_, text)| *text).collect();
    let sql = "INSERT INTO tollgate.thing (kind, name, v, until, body)
        SELECT * FROM unnest($1::smallint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[])";
    client.execute(sql, &[&kinds(&items), &names(&items), &versions, &untils, &texts]).await?;
    Ok(())
}

pub(super) async fn remove_expired(
    client: &impl GenericClient,
    now: Time,
    batch: usize,
) -> Result<usize, tokio_postgres::Error> {
    let sql = "DELETE FROM tollgate.thing WHERE (kind, name) IN (
        SELECT kind, name FROM tollgate.thing WHERE until <= $1 ORDER BY until LIMIT $2)";
    let now = i64::try_from(now.nanos()).unwrap_or(i64::MAX);
    let batch = i64::try_from(batch).unwrap_or(i64::MAX);
    Ok(client.execute(sql, &[&now, &batch]).await? as usize)
}
