//! `tollgate allow add|ls|rm`: keys that no rule and no ban applies to.

use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};

use crate::cli::listing::Listing;
use crate::cli::{AdminArgs, Exit, out};
use crate::client::percent_encode;

#[derive(Subcommand)]
pub enum AllowCommand {
    /// Let a key pass regardless of rules and bans
    #[command(after_help = "Example:
  tollgate allow add ip:10.0.0.0/8 --note \"our own network\"")]
    Add {
        /// Such as ip:10.0.0.0/8 or user:health-check
        key: String,
        /// The reason, shown in lists and in the audit log
        #[arg(long, default_value = "", hide_default_value = true)]
        note: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// List the keys that always pass
    #[command(after_help = "Example:
  tollgate allow ls")]
    #[command(alias = "list")]
    Ls {
        /// Maximum number of entries
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Remove a key from the list, and print the removed entry
    #[command(after_help = "Example:
  tollgate allow rm ip:10.0.0.0/8")]
    Rm {
        /// The key as `allow ls` shows it
        key: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

pub fn run(command: &AllowCommand) -> Exit {
    let done = match command {
        AllowCommand::Add { key, note, admin } => {
            let body = json!({ "key": key, "note": note });
            admin.print(Method::POST, "/v1/allow", Some(body), |entry| described("allowed", entry))
        }
        AllowCommand::Ls { limit, admin } => {
            let mut listing = Listing::new("/v1/allow", "allow", "the allow list is empty");
            listing.limit = *limit;
            listing.print_table(admin, &["KEY", "SOURCE", "NOTE"], |entry| {
                ["key", "source", "note"].map(|name| out::text_field(entry, name)).to_vec()
            })
        }
        AllowCommand::Rm { key, admin } => {
            let path = format!("/v1/allow/{}", percent_encode(key));
            admin.print(Method::DELETE, &path, None, |answer| described("removed", &answer["removed"]))
        }
    };
    done.err().unwrap_or(Exit::Success)
}

fn described(verb: &str, entry: &Value) -> String {
    let note = out::text_field(entry, "note");
    let note = if note.is_empty() { note } else { format!("  {note}") };
    out::escape_control(&format!("{verb} {}{note}", out::text_field(entry, "key")))
}
