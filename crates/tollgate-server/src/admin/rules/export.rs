//! Exports all rules as YAML that an import accepts, one per line, streamed while they are read.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Either;
use hyper::Response;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use tokio::sync::mpsc;
use tollgate_stores::rules::{DbError, ItemKind, PageQuery, StoredItem};

use crate::admin::edit::db_problem;
use crate::admin::request::{self, AdminRequest};
use crate::admin::response::{AdminResponse, ChunkedBody};
use crate::admin::rules::rule_json;
use crate::response::ProblemDetails;
use crate::rules_follower::RulesFollower;

/// Rules per page, and pages buffered for a slow reader.
const PAGE_RULES: usize = 1_000;
const MAX_PENDING_PAGES: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum ExportSource {
    Database,
    File,
    All,
}

/// `?source=database|file|all`
pub async fn export(call: AdminRequest) -> Result<AdminResponse, ProblemDetails> {
    let [source] = call.parameters(["source"])?;
    let sources =
        [("database", ExportSource::Database), ("file", ExportSource::File), ("all", ExportSource::All)];
    let source = request::choice("source", source.as_deref(), sources)?;
    let mut first = String::from("rules:\n");
    if source != ExportSource::Database {
        let policy = call.gate().engine.policy();
        first.extend(policy.listed().iter().map(|rule| line(&rule_json(rule).to_string())));
    }
    let follower = call.gate().rules_follower.get().filter(|_| source != ExportSource::File).cloned();
    // The first page is read before the response begins, so that an error has a status of its own.
    let mut page = Vec::new();
    if let Some(follower) = &follower {
        page = next(follower, String::new()).await.map_err(db_problem)?;
    }
    if page.is_empty() && first.lines().count() == 1 {
        first = "rules: []\n".to_owned();
    }
    let (sender, chunks) = mpsc::channel(MAX_PENDING_PAGES);
    tokio::spawn(async move {
        let sent = sender.send(Ok(first.into())).await;
        if let (Ok(()), Some(follower)) = (sent, follower) {
            send(&follower, page, &sender).await;
        }
    });
    let mut reply = Response::new(Either::Right(ChunkedBody(chunks)));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
    reply.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(reply)
}

/// Sends a page and all that follow it, until the last one or until the client disconnects.
async fn send(
    follower: &Arc<RulesFollower>,
    mut page: Vec<StoredItem>,
    sender: &mpsc::Sender<Result<Bytes, DbError>>,
) {
    while let Some(after) = page.last().map(|last| last.item.name.to_string()) {
        let lines: String = page.iter().map(|stored| line(&stored.text)).collect();
        if sender.send(Ok(lines.into())).await.is_err() {
            return;
        }
        page = match next(follower, after).await {
            Ok(page) => page,
            Err(error) => {
                sender.send(Err(error)).await.ok();
                return;
            }
        };
    }
}

async fn next(follower: &RulesFollower, after: String) -> Result<Vec<StoredItem>, DbError> {
    follower
        .db()?
        .page(PageQuery { kind: ItemKind::Rule, prefix: String::new(), after, limit: PAGE_RULES })
        .await
}

/// A rule as one line: JSON is valid YAML.
fn line(text: &str) -> String {
    format!("- {text}\n")
}
