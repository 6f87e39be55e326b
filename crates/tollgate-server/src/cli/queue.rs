//! `tollgate queue`: queued requests.

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::Value;

use crate::cli::table::TextTable;
use crate::cli::{AdminArgs, Exit, out};
use crate::client::percent_encode;

/// The most that the server lists.
const MAX_LISTED: u64 = 1_000;

#[derive(Subcommand)]
pub enum QueueCommand {
    /// List requests, the oldest first
    #[command(after_help = "Example:
  tollgate queue ls --state dead --count 1000")]
    #[command(alias = "list")]
    Ls {
        /// Only requests in this state: queued, sending, done or dead
        #[arg(long)]
        state: Option<String>,
        /// At most so many requests
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=MAX_LISTED))]
        count: u64,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Show one request
    #[command(after_help = "Example:
  tollgate queue show ID")]
    Show(OneArgs),
    /// Send a request again, with its attempts reset
    #[command(after_help = "Example:
  tollgate queue retry ID")]
    Retry(OneArgs),
    /// Remove a request
    #[command(after_help = "Example:
  tollgate queue drop ID")]
    Drop(OneArgs),
}

#[derive(Args)]
pub struct OneArgs {
    /// The id of the request
    id: String,
    #[command(flatten)]
    admin: AdminArgs,
}

pub fn run(command: &QueueCommand) -> Exit {
    let done = match command {
        QueueCommand::Ls { state, count, admin } => list(admin, state.as_deref(), *count),
        QueueCommand::Show(args) => one(args, Method::GET, ""),
        QueueCommand::Retry(args) => one(args, Method::POST, "/retry"),
        QueueCommand::Drop(args) => one(args, Method::DELETE, ""),
    };
    done.err().unwrap_or(Exit::Success)
}

fn list(admin: &AdminArgs, state: Option<&str>, count: u64) -> Result<(), Exit> {
    let state_query = state.map_or_else(String::new, |state| format!("&state={}", percent_encode(state)));
    let answered = admin.call(Method::GET, &format!("/v1/queue?count={count}{state_query}"), None)?;
    if admin.json {
        out::pretty(&answered.body);
        return Ok(());
    }
    let items = answered.body["items"].as_array().into_iter().flatten();
    let rows: Vec<_> = items.map(row).collect();
    let mut table =
        TextTable::new(&["ID", "STATE", "REQUEST", "BYTES", "QUEUED", "NEXT TRY", "TRIES", "LAST RESULT"]);
    table.lines(&rows).into_iter().for_each(out::line);
    out::message(summary(&answered.body["counts"], state, rows.len() as u64));
    Ok(())
}

/// How many requests there are by state, and how many of them were not listed.
fn summary(counts: &Value, state: Option<&str>, listed: u64) -> String {
    let each: Vec<_> = counts.as_object().into_iter().flatten().collect();
    let by_state: Vec<_> = each.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let wanted = each.iter().filter(|(name, _)| state.is_none_or(|state| state == name.as_str()));
    let total: u64 = wanted.filter_map(|(_, count)| count.as_u64()).sum();
    let by_state = by_state.join(", ");
    if listed >= total {
        return by_state;
    }
    let more =
        if listed < MAX_LISTED { format!(": --count lists up to {MAX_LISTED}") } else { String::new() };
    format!("{by_state}; the oldest {listed} of {total} are listed{more}")
}

fn row(item: &Value) -> Vec<String> {
    let text = |name: &str| out::text_field(item, name);
    let state = text("state");
    let is_waiting = matches!(state.as_str(), "queued" | "sending");
    let status = item["status"].as_u64().map(|status| status.to_string()).unwrap_or_default();
    let last = [status, text("error")].join(" ");
    vec![
        text("id"),
        state,
        format!("{} {}{}", text("method"), text("host"), text("target")),
        item["body_bytes"].to_string(),
        text("queued_at"),
        if is_waiting { text("next_at") } else { String::new() },
        item["tries"].to_string(),
        last.trim().to_owned(),
    ]
}

fn one(args: &OneArgs, method: Method, action: &str) -> Result<(), Exit> {
    let path = format!("/v1/queue/{}{action}", percent_encode(&args.id));
    let answered = args.admin.call(method.clone(), &path, None)?;
    if args.admin.json || method == Method::GET {
        out::pretty(&answered.body);
    } else {
        out::line(line(&answered.body));
    }
    Ok(())
}

fn line(item: &Value) -> String {
    let text = |name: &str| item[name].as_str().unwrap_or_default();
    let error = item["error"].as_str().map_or_else(String::new, |error| format!("  {error}"));
    format!(
        "{}  {:<7}  {} {}  tries {}{error}",
        text("id"),
        text("state"),
        text("method"),
        text("target"),
        item["tries"]
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_summary_says_what_is_not_listed() {
        let counts = json!({ "queued": 3, "sending": 1, "done": 0, "dead": 1500 });
        let check = |state, listed| summary(&counts, state, listed);
        assert_eq!(check(Some("queued"), 3), "3 queued, 1 sending, 0 done, 1500 dead");
        assert!(check(None, 100).ends_with("; the oldest 100 of 1504 are listed: --count lists up to 1000"));
        assert!(check(Some("dead"), 1_000).ends_with("; the oldest 1000 of 1500 are listed"));
    }
}
