//! `tollgate top`: a live view of what a node decides, on the terminal.

use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;
use hyper::Method;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tollgate::Clock;

use crate::cli::session::ADMIN_LISTENER;
use crate::cli::{AdminArgs, Exit, out};
use crate::client::{self, ClientError, ClientRequest, ClientResponse, ServerClient, percent_encode};

mod frame;
mod screen;

use screen::Screen;

/// How often the view is renewed.
const INTERVAL: Duration = Duration::from_secs(1);
/// Seconds over which the rates of the summary are averaged.
const RATE_SECONDS: u64 = 10;
/// The latest seconds, which not all nodes of a fleet have completed.
const INCOMPLETE_SECONDS: u64 = 3;
/// Rows of keys where there is no terminal.
const ROWS: usize = 20;

#[derive(Args)]
pub struct TopArgs {
    /// Which keys: most denied, most allowed, or near their limit
    #[arg(long, default_value = "denied", value_parser = ["denied", "allowed", "near"])]
    outcome: String,
    /// The time over which keys are counted
    #[arg(long, default_value = "1m", value_parser = ["1m", "5m", "1h"])]
    window: String,
    /// Only keys of this rule
    #[arg(long, value_name = "ID")]
    rule: Option<String>,
    /// This node, or all nodes that share its rules database
    #[arg(long, default_value = "node", value_parser = ["node", "fleet"])]
    scope: String,
    /// Print one view, and exit; also done if the output is not a terminal
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

pub fn run(args: &TopArgs) -> Exit {
    let is_live = !args.once && (args.admin.json || io::stdout().is_terminal());
    let server = match ServerClient::with_token(&args.admin.admin) {
        Ok(server) => server,
        Err(error) => return out::failed(&error),
    };
    client::block_on(async {
        match is_live {
            true => live(&server, args).await,
            false => once(&server, args).await,
        }
    })
}

async fn once(server: &ServerClient, args: &TopArgs) -> Exit {
    match fetch(server, args).await {
        Ok(view) if args.admin.json => out::pretty(&view),
        Ok(view) => frame::lines(&view, ROWS).iter().for_each(out::line),
        Err(failure) => return failure.print(),
    }
    Exit::Success
}

/// Renews the view until a signal. An unreachable server is shown, and polled again.
async fn live(server: &ServerClient, args: &TopArgs) -> Exit {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        out::message("error: signals cannot be handled");
        return Exit::Failure;
    };
    let mut screen = None;
    let mut every = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            _ = every.tick() => {}
            _ = interrupt.recv() => return Exit::Success,
            _ = terminate.recv() => return Exit::Success,
        }
        let fetched = tokio::select! {
            fetched = fetch(server, args) => fetched,
            _ = interrupt.recv() => return Exit::Success,
            _ = terminate.recv() => return Exit::Success,
        };
        let shown = match (fetched, &mut screen) {
            (Ok(view), _) if args.admin.json => out::try_line(&view),
            (Ok(view), screen) => {
                screen.get_or_insert_with(Screen::open).show(|rows| frame::lines(&view, rows))
            }
            // The first answer tells whether there is anything to show.
            (Err(failure), None) => return failure.print(),
            (Err(failure), Some(screen)) => screen.show_trouble(&failure.to_string()),
        };
        if shown.is_err() {
            return Exit::Success; // a closed pipe
        }
    }
}

/// Why there is no view.
enum TopFailure {
    Client(ClientError),
    Refused(ClientResponse),
}

impl TopFailure {
    fn print(&self) -> Exit {
        match self {
            TopFailure::Client(error) => out::failed(error),
            TopFailure::Refused(answered) => out::refused(answered, ADMIN_LISTENER),
        }
    }
}

impl std::fmt::Display for TopFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TopFailure::Client(error) => error.fmt(f),
            TopFailure::Refused(answered) => out::text_field(&answered.body, "detail").fmt(f),
        }
    }
}

async fn get(server: &ServerClient, path: &str) -> Result<Value, TopFailure> {
    let answered = server.fetch_json(ClientRequest::new(Method::GET, path)).await;
    match answered.map_err(TopFailure::Client)? {
        answered if answered.status < 300 => Ok(answered.body),
        refused => Err(TopFailure::Refused(refused)),
    }
}

/// Everything that a view shows.
async fn fetch(server: &ServerClient, args: &TopArgs) -> Result<Value, TopFailure> {
    let rule = args.rule.as_deref().map(|rule| format!("&rule={}", percent_encode(rule)));
    let rule = rule.unwrap_or_default();
    let scope = args.scope.as_str();
    let now = Clock::new().now().secs();
    let to = if scope == "fleet" { now.saturating_sub(INCOMPLETE_SECONDS) } else { now };
    let from = to.saturating_sub(RATE_SECONDS);
    let top_path = format!("/v1/top?outcome={}&window={}{rule}&scope={scope}", args.outcome, args.window);
    let activity_path = format!("/v1/activity?scope={scope}");
    let series_path = format!("/v1/series?step=second&from={from}&to={}&scope={scope}", to.saturating_sub(1));
    // At the same time: each waits for the slowest node.
    let (top, activity, series, health) = tokio::try_join!(
        get(server, &top_path),
        get(server, &activity_path),
        get(server, &series_path),
        get(server, "/healthz"),
    )?;
    let sum = |name: &str| -> f64 {
        let points = series["points"].as_array().into_iter().flatten();
        points.filter_map(|point| point[name].as_f64()).sum()
    };
    let rate = |name: &str| sum(name) / RATE_SECONDS as f64;
    Ok(json!({
        "at": now,
        "scope": scope,
        "status": health["status"],
        "enforce": health["enforce"],
        "per_second": {
            "allowed": rate("allowed"),
            "denied": rate("denied"),
            "banned": rate("banned"),
            "shadow_denied": rate("shadow_denied"),
        },
        "rules": activity["rules"],
        "outcome": top["outcome"],
        "window": top["window"],
        "keys": top["keys"],
        "nodes": common_nodes(&[&top["nodes"], &activity["nodes"], &series["nodes"]]),
    }))
}

/// The nodes that are in all parts of a view, and those that are missing in any.
fn common_nodes(parts: &[&Value]) -> Value {
    let list = |part: &Value, name: &str| part[name].as_array().cloned().unwrap_or_default();
    let mut missing: Vec<Value> = Vec::new();
    for node in parts.iter().flat_map(|part| list(part, "missing")) {
        if missing.iter().all(|known| known["address"] != node["address"]) {
            missing.push(node);
        }
    }
    let mut answered = parts.first().map(|part| list(part, "answered")).unwrap_or_default();
    answered.retain(|node| parts.iter().all(|part| list(part, "answered").contains(node)));
    json!({ "answered": answered, "missing": missing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_counts_as_answering_if_it_is_in_every_part() {
        let all = json!({ "answered": ["a", "b"], "missing": [] });
        let some = json!({ "answered": ["a"], "missing": [{ "node": "b", "address": "http://b", "why": "no answer" }] });
        assert_eq!(common_nodes(&[&all, &all]), all);
        assert_eq!(common_nodes(&[&all, &some, &some]), some);
    }
}
