//! `tollgate allow add|ls|rm`: keys that no rule and no ban applies to.

use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};

use crate::cli::listing::Listing;
use crate::cli::session::Session;
use crate::cli::{AdminArgs, Exit, out};
use crate::client::escape;

#[derive(Subcommand)]
pub enum AllowCommand {
    /// Let a key pass whatever rules and bans say
    #[command(after_help = "Example:
  tollgate allow add ip:10.0.0.0/8 --note \"our own network\"")]
    Add {
        /// Such as ip:10.0.0.0/8 or user:health-check
        key: String,
        /// Why, for those who look at it later
        #[arg(long, default_value = "", hide_default_value = true)]
        note: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// List the keys that always pass
    #[command(after_help = "Example:
  tollgate allow ls")]
    Ls {
        /// At most so many
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Take a key off the list, and say what was taken off
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
            edit(admin, Method::POST, "/v1/allow", Some(body))
        }
        AllowCommand::Ls { limit, admin } => {
            let mut listing = Listing::new("/v1/allow", "allow", "nobody is on the allow list");
            listing.most = *limit;
            listing.print_table(admin, &["KEY", "SOURCE", "NOTE"], |entry| {
                ["key", "source", "note"].map(|name| text(entry, name)).to_vec()
            })
        }
        AllowCommand::Rm { key, admin } => {
            edit(admin, Method::DELETE, &format!("/v1/allow/{}", escape(key)), None)
        }
    };
    done.err().unwrap_or(Exit::Yes)
}

fn edit(admin: &AdminArgs, method: Method, path: &str, body: Option<Value>) -> Result<(), Exit> {
    let answered = Session::open(admin)?.ask(method, path, body)?.body;
    if admin.json {
        out::pretty(&answered);
        return Ok(());
    }
    let (verb, entry) = match answered.get("removed") {
        Some(removed) => ("took off", removed),
        None => ("allowed", &answered),
    };
    let note = text(entry, "note");
    let note = if note.is_empty() { note } else { format!("  {note}") };
    out::line(out::plain(&format!("{verb} {}{note}", text(entry, "key"))));
    Ok(())
}

fn text(entry: &Value, name: &str) -> String {
    entry[name].as_str().unwrap_or_default().to_owned()
}
