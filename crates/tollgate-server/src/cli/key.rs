//! `tollgate key show|reset`.

use clap::Subcommand;
use hyper::Method;
use serde_json::Value;

use crate::cli::{AdminArgs, Exit, out};
use crate::client::percent_encode;

#[derive(Subcommand)]
pub enum KeyCommand {
    /// Show what a key has used of a rule
    #[command(after_help = "Example:
  tollgate key show login email:ann@example.com")]
    Show {
        /// The id of the rule
        rule: String,
        /// Such as email:ann@example.com or ip:203.0.113.9+user:42; none for a rule without a key
        #[arg(default_value = "", hide_default_value = true)]
        key: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Reset what a key has used of a rule
    #[command(after_help = "Example:
  tollgate key reset login email:ann@example.com")]
    Reset {
        /// The id of the rule
        rule: String,
        /// As for `key show`
        #[arg(default_value = "", hide_default_value = true)]
        key: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

pub fn run(command: &KeyCommand) -> Exit {
    let (method, rule, key, admin) = match command {
        KeyCommand::Show { rule, key, admin } => (Method::GET, rule, key, admin),
        KeyCommand::Reset { rule, key, admin } => (Method::DELETE, rule, key, admin),
    };
    let path = format!("/v1/keys?rule={}&key={}", percent_encode(rule), percent_encode(key));
    let answered = match admin.call(method, &path, None) {
        Ok(answered) => answered,
        Err(exit) => return exit,
    };
    if admin.json {
        out::pretty(&answered.body);
        return Exit::Success;
    }
    let report = answered.body.get("reset").unwrap_or(&answered.body);
    for limit in report["limits"].as_array().into_iter().flatten() {
        out::line(match command {
            KeyCommand::Show { .. } => used_counter(limit),
            KeyCommand::Reset { .. } => reset_counter(limit),
        });
    }
    if let Some(tries) = report.get("tries") {
        let last = report["last_seen"].as_str().unwrap_or("never");
        out::line(format!("tries {tries}, denials {}, last seen {last}", report["denials"]));
        if let Some(error) = report["store_error"].as_str() {
            out::message(format!("warning: only what this node has seen: {error}"));
        }
        for at in report["latest"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            out::line(format!("  {at}"));
        }
    }
    Exit::Success
}

fn used_counter(limit: &Value) -> String {
    format!("{}: used {}, {} left{}", counter_name(limit), limit["used"], limit["remaining"], extras(limit))
}

fn reset_counter(limit: &Value) -> String {
    format!("{}: forgot {}{}", counter_name(limit), limit["used"], extras(limit))
}

fn counter_name(limit: &Value) -> String {
    let text = |name: &str| limit[name].as_str().unwrap_or_default();
    format!("{} {}", text("algorithm"), text("limit"))
}

fn extras(limit: &Value) -> String {
    let mut line = String::new();
    for extra in ["previous", "current", "buckets_read"] {
        if let Some(value) = limit.get(extra) {
            line += &format!(", {} {value}", extra.replace('_', " "));
        }
    }
    line
}
