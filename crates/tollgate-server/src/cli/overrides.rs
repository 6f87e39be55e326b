//! `tollgate override add|ls|rm`: limits of single keys of a rule.

use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};

use crate::cli::listing::Listing;
use crate::cli::{AdminArgs, Exit, out, yaml};
use crate::client::percent_encode;

#[derive(Subcommand)]
pub enum OverrideCommand {
    /// Give one key of a rule limits of its own
    #[command(after_help = "Example:
  tollgate override add login email:ceo@example.com 50/m 500/h

The rule must be one of the database: those of the configuration file are changed there.")]
    Add {
        /// The id of the rule
        rule: String,
        /// The key, such as email:ceo@example.com; it names attributes of the rule's key
        key: String,
        /// The limits that replace the rule's, such as 50/m
        #[arg(required = true, value_name = "LIMIT")]
        limits: Vec<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// List the keys that have limits of their own
    #[command(after_help = "Example:
  tollgate override ls login")]
    #[command(alias = "list")]
    Ls {
        /// Only those of this rule
        rule: Option<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Apply the rule's own limits to the key again, and print what was removed
    #[command(after_help = "Example:
  tollgate override rm login email:ceo@example.com")]
    Rm {
        /// The id of the rule
        rule: String,
        /// The key as `override ls` shows it
        key: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

pub fn run(command: &OverrideCommand) -> Exit {
    let done = match command {
        OverrideCommand::Add { rule, key, limits, admin } => {
            let body = json!({ "rule": rule, "key": key, "limits": limits });
            admin.print(Method::POST, "/v1/overrides", Some(body), |each| described("set", each))
        }
        OverrideCommand::Ls { rule, admin } => {
            let mut listing = Listing::new("/v1/overrides", "overrides", "no overrides");
            listing.query.extend(rule.iter().map(|rule| format!("rule={}", percent_encode(rule))));
            listing.print_table(admin, &["RULE", "KEY", "LIMITS", "SOURCE"], |each| {
                vec![
                    out::text_field(each, "rule"),
                    out::text_field(each, "key"),
                    limits(each),
                    out::text_field(each, "source"),
                ]
            })
        }
        OverrideCommand::Rm { rule, key, admin } => {
            let path = format!("/v1/overrides?rule={}&key={}", percent_encode(rule), percent_encode(key));
            admin.print(Method::DELETE, &path, None, |answer| described("removed", &answer["removed"]))
        }
    };
    done.err().unwrap_or(Exit::Success)
}

fn described(verb: &str, each: &Value) -> String {
    let key = out::text_field(each, "key");
    let rule = out::text_field(each, "rule");
    out::escape_control(&format!("{verb} {key} of rule {rule}: {}", limits(each)))
}

fn limits(each: &Value) -> String {
    match &each["limits"] {
        Value::Array(all) => all.iter().map(yaml::flow).collect::<Vec<_>>().join(", "),
        one => one.as_str().unwrap_or_default().to_owned(),
    }
}
