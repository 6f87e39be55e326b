//! `tollgate queue`: queued requests.

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::Value;

use crate::cli::table::TextTable;
use crate::cli::{AdminArgs, Exit, out};
use crate::client::percent_encode;

#[derive(Subcommand)]
pub enum QueueCommand {
    /// List requests, the oldest first
    #[command(after_help = "Example:
  tollgate queue ls --state dead")]
    #[command(alias = "list")]
    Ls {
        /// Only requests in this state: queued, sending, done or dead
        #[arg(long)]
        state: Option<String>,
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
        QueueCommand::Ls { state, admin } => list(admin, state.as_deref()),
        QueueCommand::Show(args) => one(args, Method::GET, ""),
        QueueCommand::Retry(args) => one(args, Method::POST, "/retry"),
        QueueCommand::Drop(args) => one(args, Method::DELETE, ""),
    };
    done.err().unwrap_or(Exit::Success)
}

fn list(admin: &AdminArgs, state: Option<&str>) -> Result<(), Exit> {
    let query = state.map_or_else(String::new, |state| format!("?state={}", percent_encode(state)));
    let answered = admin.call(Method::GET, &format!("/v1/queue{query}"), None)?;
    if admin.json {
        out::pretty(&answered.body);
        return Ok(());
    }
    let items = answered.body["items"].as_array().into_iter().flatten();
    let rows: Vec<_> = items.map(row).collect();
    let mut table =
        TextTable::new(&["ID", "STATE", "REQUEST", "BYTES", "QUEUED", "NEXT TRY", "TRIES", "LAST RESULT"]);
    table.lines(&rows).into_iter().for_each(out::line);
    Ok(())
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
