//! `tollgate ban add|ls|rm|import`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use crate::cli::listing::Listing;
use crate::cli::session::Session;
use crate::cli::{AdminArgs, Exit, input_file, out};
use crate::client::percent_encode;

#[derive(Subcommand)]
pub enum BanCommand {
    /// Ban a key, such as ip:203.0.113.9, ip:198.51.100.0/24 or ip:203.0.113.9+user:42
    #[command(after_help = "Examples:
  tollgate ban add ip:203.0.113.9 --for 2h --reason \"password guessing\"
  tollgate ban add user:42 --until 2027-01-01T00:00:00Z")]
    Add {
        /// The key to ban
        key: String,
        /// How long, such as 1h or 7d
        #[arg(long = "for", value_name = "DURATION", conflicts_with = "until", default_value = "1h")]
        duration: String,
        /// Until when, such as 2027-01-01T00:00:00Z
        #[arg(long, value_name = "TIMESTAMP")]
        until: Option<String>,
        /// The reason, shown in lists and to the client
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// List the bans in force
    #[command(after_help = "Example:
  tollgate ban ls --limit 50")]
    #[command(alias = "list")]
    Ls {
        /// Maximum number of bans
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Lift a ban, and print the lifted ban
    #[command(after_help = "Example:
  tollgate ban rm ip:203.0.113.9")]
    Rm {
        /// The key as `ban ls` shows it
        key: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Ban all keys of a file: all of them, or none if a line is invalid
    #[command(after_help = "Example:
  tollgate ban import bans.txt

A line is a key, then a duration or an end (none: the ban is permanent), then the reason:
  ip:203.0.113.9 7d scraping
  ip:198.51.100.0/24 2027-01-01T00:00:00Z botnet

YAML and JSON are accepted too: [{key: ip:203.0.113.9, for: 7d, reason: scraping}].")]
    Import(BanImportArgs),
}

#[derive(Args)]
pub struct BanImportArgs {
    /// The file; `-` reads stdin
    file: PathBuf,
    /// Only print what would change
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

pub fn run(command: &BanCommand) -> Exit {
    let done = match command {
        BanCommand::Add { key, duration, until, reason, admin } => {
            let mut body = json!({ "key": key, "reason": reason });
            match until {
                Some(until) => body["until"] = until.as_str().into(),
                None => body["for"] = duration.as_str().into(),
            }
            let described = |ban: &Value| format!("banned {}{}", described(ban), pending(ban));
            admin.print(Method::POST, "/v1/bans", Some(body), described)
        }
        BanCommand::Ls { limit, admin } => list(*limit, admin),
        BanCommand::Rm { key, admin } => {
            let described =
                |lifted: &Value| format!("lifted {}{}", described(&lifted["removed"]), pending(lifted));
            admin.print(Method::DELETE, &format!("/v1/bans/{}", percent_encode(key)), None, described)
        }
        BanCommand::Import(args) => import(args),
    };
    done.err().unwrap_or(Exit::Success)
}

fn list(limit: Option<u64>, admin: &AdminArgs) -> Result<(), Exit> {
    let mut listing = Listing::new("/v1/bans", "bans", "no bans");
    listing.limit = limit;
    listing.print_table(admin, &["KEY", "UNTIL", "SOURCE", "STRIKES", "REASON"], |ban| {
        let strikes = ban["strikes"].as_u64().filter(|strikes| *strikes > 0);
        let strikes = strikes.map_or_else(String::new, |strikes| strikes.to_string());
        vec![
            out::text_field(ban, "key"),
            until(ban),
            out::text_field(ban, "source"),
            strikes,
            out::text_field(ban, "reason"),
        ]
    })
}

fn import(args: &BanImportArgs) -> Result<(), Exit> {
    let BanImportArgs { file, dry_run, admin } = args;
    let text = input_file::read(file).map_err(|problems| admin.invalid(&problems))?;
    let query = format!("dry_run={dry_run}");
    let answered = Session::open(admin)?.upload("/v1/bans/import", &query, text)?;
    if admin.json {
        out::pretty(&answered.body);
    } else {
        let unwritten = if *dry_run { "; nothing was written" } else { "" };
        out::line(format!("{}{unwritten}", out::tally(&answered.body)));
    }
    Ok(())
}

/// A note where the database cannot be written.
fn pending(answer: &Value) -> &'static str {
    match answer["pending"].as_str() {
        Some(_) => " (on this node only, until the rules database can be written again)",
        None => "",
    }
}

fn until(ban: &Value) -> String {
    ban["until"].as_str().unwrap_or("further notice").to_owned()
}

fn described(ban: &Value) -> String {
    let reason = out::text_field(ban, "reason");
    let reason = if reason.is_empty() { reason } else { format!("  {reason}") };
    out::escape_control(&format!(
        "{}  until {}  {}{reason}",
        out::text_field(ban, "key"),
        until(ban),
        out::text_field(ban, "source")
    ))
}
