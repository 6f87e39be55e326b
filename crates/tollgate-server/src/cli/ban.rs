//! `tollgate ban add|ls|rm`.

use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};

use crate::cli::{AdminArgs, Exit, out};
use crate::client::escape;

#[derive(Subcommand)]
pub enum BanCommand {
    /// Ban a key, such as ip:203.0.113.9, ip:198.51.100.0/24 or ip:203.0.113.9+user:42
    Add {
        /// What to ban
        key: String,
        /// How long, such as 1h or 7d
        #[arg(long = "for", value_name = "SPAN", conflicts_with = "until", default_value = "1h")]
        span: String,
        /// Until when, such as 2027-01-01T00:00:00Z
        #[arg(long, value_name = "INSTANT")]
        until: Option<String>,
        /// Why, for those who look at the ban later and for the client
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// List the bans in force
    Ls {
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Lift a ban, and say what was lifted
    Rm {
        /// The key as `ban ls` shows it
        key: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

pub fn run(command: &BanCommand) -> Exit {
    let (admin, method, path, body) = match command {
        BanCommand::Add { key, span, until, reason, admin } => {
            let mut body = json!({ "key": key, "reason": reason });
            match until {
                Some(until) => body["until"] = until.as_str().into(),
                None => body["for"] = span.as_str().into(),
            }
            (admin, Method::POST, "/v1/bans".to_owned(), Some(body))
        }
        BanCommand::Ls { admin } => (admin, Method::GET, "/v1/bans".to_owned(), None),
        BanCommand::Rm { key, admin } => (admin, Method::DELETE, format!("/v1/bans/{}", escape(key)), None),
    };
    let answered = match admin.call(method, &path, body) {
        Ok(answered) => answered,
        Err(exit) => return exit,
    };
    if admin.json {
        out::pretty(&answered.body);
        return Exit::Yes;
    }
    match command {
        BanCommand::Add { .. } => out::line(format!("banned {}", described(&answered.body))),
        BanCommand::Rm { .. } => out::line(format!("lifted {}", described(&answered.body["removed"]))),
        BanCommand::Ls { .. } => {
            for ban in answered.body["bans"].as_array().into_iter().flatten() {
                out::line(described(ban));
            }
        }
    }
    Exit::Yes
}

fn described(ban: &Value) -> String {
    let text = |name: &str| ban[name].as_str().unwrap_or_default();
    let until = ban["until"].as_str().unwrap_or("further notice");
    let reason = if text("reason").is_empty() { String::new() } else { format!("  {}", text("reason")) };
    format!("{}  until {until}  {}{reason}", text("key"), text("source"))
}
