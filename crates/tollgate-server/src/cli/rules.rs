//! `tollgate rules`: shows and changes rules of the file and of the database.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::Value;

use crate::cli::listing::Listing;
use crate::cli::session::Session;
use crate::cli::{AdminArgs, Exit, audit, out, value_diff, yaml};
use crate::client::percent_encode;

mod apply;
mod check;
mod ramp;
mod scenario;

use apply::{Deletions, GuardedApply};

/// Fields that responses add to a rule.
const RESPONSE_ONLY_FIELDS: [&str; 4] = ["version", "source", "left_out", "ramp_percent"];

#[derive(Subcommand)]
pub enum RulesCommand {
    /// List the rules in force: those of the configuration file, then those of the database
    #[command(after_help = "Examples:
  tollgate rules ls
  tollgate rules ls --source database --prefix login --limit 20")]
    #[command(alias = "list")]
    Ls(LsArgs),
    /// Show one rule as YAML, and where it comes from
    #[command(after_help = "Example:
  tollgate rules show login")]
    Show {
        /// The id of the rule
        id: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Check a file of rules or a whole configuration, and print all problems
    #[command(after_help = "Example:
  tollgate rules check tollgate.yaml

No server is contacted. Exits 0 if the file is valid, 3 if not.")]
    Check {
        /// The configuration, or a list of rules; `-` reads it from stdin
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run requests with expected decisions against rules, on a virtual clock
    #[command(after_help = "Examples:
  tollgate rules test login.test.yaml
  tollgate rules test login.test.yaml -c new.yaml --junit results.xml

The file names a configuration (`config:`) or has `rules:`, and tests of steps:

  tests:
    - name: the sixth login within a minute is denied
      steps:
        - { send: { method: POST, path: /login, email: ann@example.com }, times: 5, expect: allowed }
        - { send: { method: POST, path: /login, email: ann@example.com }, expect: { allowed: false, rule: login } }
        - { wait: 12s }
        - { send: { method: POST, path: /login, email: ann@example.com }, expect: allowed }

`send` has the fields of /v1/check, `expect` those of its answer. No server is contacted. Exits 0 if all tests
pass, 1 if one fails, 3 if the file or the configuration is invalid.")]
    Test(scenario::TestArgs),
    /// Write the rules of a file to the database: all of them, or none if one is invalid
    #[command(
        visible_alias = "import",
        after_help = "Examples:
  tollgate rules apply rules.yaml --dry-run
  tollgate rules apply rules.yaml
  tollgate rules apply rules.yaml --guard 'denied<1%' --for 10m
  tollgate rules export | tollgate rules apply - --admin http://127.0.0.1:7071

The file is a list of rules, or has one under `rules:`. Rules that it does not name stay unchanged, unless
--replace is given; if that would delete more than a tenth of the rules, it asks first, and without a terminal it
needs --yes. The file is checked locally first: exits 3 if a rule is invalid, and nothing is sent.

With --guard the server enforces what changes for 1, 5, 25, 50 and 100 % of the keys, each for a fifth of --for, and
reverts all of it as soon as the guard is violated. The command shows the progress; the ramp goes on without it.
Exits 1 if it was rolled back."
    )]
    Apply {
        #[command(flatten)]
        file: FileArgs,
        /// Only print what would change
        #[arg(long, conflicts_with = "yes")]
        dry_run: bool,
        /// Delete rules without asking, however many
        #[arg(long)]
        yes: bool,
        /// Enforce the changes step by step while this holds: denied<1%, clients<100, or both with a comma
        #[arg(long, value_name = "CONDITION", requires = "duration", value_parser = ramp::parse_guard)]
        guard: Option<String>,
        /// How long the steps take in all, such as 10m
        #[arg(long = "for", value_name = "DURATION", id = "duration", requires = "guard")]
        duration: Option<String>,
        /// Start the ramp and return at once
        #[arg(long, requires = "guard")]
        detach: bool,
    },
    /// Show, stop or finish the ramp of a guarded apply
    #[command(subcommand)]
    Ramp(ramp::RampCommand),
    /// Show what `apply` would change: exits 0 if nothing, 1 if something
    #[command(after_help = "Examples:
  tollgate rules diff rules.yaml
  tollgate rules diff rules.yaml --replace

`+` is a rule that would be created, `~` one that would be changed, `-` one that would be deleted.")]
    Diff(FileArgs),
    /// Print rules as YAML that `apply` accepts
    #[command(after_help = "Example:
  tollgate rules export > rules.yaml
  tollgate rules apply rules.yaml --replace")]
    Export {
        /// Which rules: those of the database, of the configuration file, or all
        #[arg(long, default_value = "database", value_parser = ["database", "file", "all"])]
        source: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Delete a rule of the database, and print the deleted rule
    #[command(after_help = "Example:
  tollgate rules rm login

`tollgate rules history login` still lists it, and `tollgate rules rollback` restores it.")]
    Rm {
        /// The id of the rule
        id: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Show who changed rules when, and what they changed; the newest change first
    #[command(after_help = "Examples:
  tollgate rules history
  tollgate rules history login --limit 5")]
    History {
        /// Only the changes of this rule
        id: Option<String>,
        #[command(flatten)]
        page: audit::PageArgs,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Revert a change, by its version; an import is one change
    #[command(after_help = "Examples:
  tollgate rules history login      # shows versions such as 0-17
  tollgate rules rollback 0-17
  tollgate rules rollback 0-17 --only

Changes that were made together, as by `apply`, are reverted together, or with --only just the one that has this
version. The rules must still be as the change left them: if one was changed again since, nothing is reverted.")]
    Rollback(audit::RollbackArgs),
}

#[derive(Args)]
pub struct LsArgs {
    /// Only rules of the database, or of the configuration file
    #[arg(long, value_parser = ["database", "file"])]
    source: Option<String>,
    /// Only rules whose ids start with this prefix
    #[arg(long, value_name = "ID")]
    prefix: Option<String>,
    /// Maximum number of rules
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Args)]
pub struct FileArgs {
    /// A list of rules in YAML or JSON; `-` reads it from stdin
    file: PathBuf,
    /// Delete the rules of the database that the file does not name
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

pub fn run(command: &RulesCommand) -> Exit {
    let done = match command {
        RulesCommand::Ls(args) => list(args),
        RulesCommand::Show { id, admin } => show(id, admin),
        RulesCommand::Check { file, json } => Err(check::run(file, *json)),
        RulesCommand::Test(args) => Err(scenario::run(args)),
        RulesCommand::Apply { file, dry_run: true, .. } => apply::dry_run(file),
        RulesCommand::Apply { file, yes, guard, duration, detach, .. } => {
            let deletions = if *yes { Deletions::Confirmed } else { Deletions::ToConfirm };
            let guard = guard.as_deref().zip(duration.as_deref());
            apply::apply(
                file,
                deletions,
                guard.map(|(guard, duration)| GuardedApply { guard, duration, detach: *detach }),
            )
        }
        RulesCommand::Ramp(command) => ramp::run(command),
        RulesCommand::Diff(file) => apply::diff(file),
        RulesCommand::Export { source, admin } => export(source, admin),
        RulesCommand::Rm { id, admin } => remove(id, admin),
        RulesCommand::History { id, page, admin } => audit::rule_history(id.as_deref(), page, admin),
        RulesCommand::Rollback(args) => audit::rollback(args),
    };
    done.err().unwrap_or(Exit::Success)
}

fn list(args: &LsArgs) -> Result<(), Exit> {
    let mut listing = Listing::new("/v1/rules", "rules", "no rules");
    listing.query.extend(args.source.iter().map(|source| format!("source={source}")));
    listing.query.extend(args.prefix.iter().map(|prefix| format!("prefix={}", percent_encode(prefix))));
    listing.limit = args.limit;
    let head = &["ID", "MATCH", "KEY", "LIMITS", "ALGORITHM", "MODE", "SOURCE"];
    listing.print_table(&args.admin, head, |rule| {
        let text = |name: &str| out::text_field(rule, name);
        let pattern = [text("host"), text("match"), text("url")].join(" ");
        let pattern = if pattern.trim().is_empty() { "every request" } else { pattern.trim() };
        let key = words(&rule["key"], "+");
        let key = if rule["uid"].is_null() { key } else { format!("user:{}", text("uid")) };
        let limits = match &rule["limits_by"]["attr"] {
            Value::String(attribute) => format!("by {attribute}"),
            _ => words(&rule["limits"], ", "),
        };
        let mode = if rule["left_out"].is_null() { mode(rule) } else { "left out".to_owned() };
        vec![text("id"), pattern.to_owned(), key, limits, text("algorithm"), mode, text("source")]
    })
}

/// What a denial by the rule does, and to which part of its keys.
fn mode(rule: &Value) -> String {
    let percent = rule["enforce_percent"].as_u64().map(|percent| format!(" {percent}%")).unwrap_or_default();
    let action = rule["on_exceed"].as_str().filter(|action| *action != "reject");
    let action = action.map(|action| format!(", {action}")).unwrap_or_default();
    let ramp = rule["ramp_percent"].as_u64().map(|percent| format!(", ramp {percent}%")).unwrap_or_default();
    format!("{}{percent}{action}{ramp}", out::text_field(rule, "mode"))
}

/// A string, or a list of strings on one line.
fn words(value: &Value, between: &str) -> String {
    match value {
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(between),
        _ => value.as_str().unwrap_or_default().to_owned(),
    }
}

fn show(id: &str, admin: &AdminArgs) -> Result<(), Exit> {
    let mut session = Session::open(admin)?;
    let rule = session.get(&format!("/v1/rules/{}", percent_encode(id)))?;
    if admin.json {
        out::pretty(&rule);
        return Ok(());
    }
    let is_stored = rule["source"] == "database";
    let left_out = rule["left_out"]
        .as_str()
        .map(|why| format!("# not in force on this node: {}", out::escape_control(why)));
    let written =
        if is_stored { session.get(&format!("/v1/rules/{}?as=written", percent_encode(id)))? } else { rule };
    let from = if is_stored { origin(&mut session, id) } else { "from the configuration file".to_owned() };
    out::line(format!("# {from}"));
    left_out.iter().for_each(out::line);
    print_rule(written.get("rule").unwrap_or(&written));
    Ok(())
}

/// The last change of a rule of the database.
fn origin(session: &mut Session, id: &str) -> String {
    let log = session.get(&format!("/v1/audit?limit=1&item=rule:{}", percent_encode(id)));
    let change = log.map(|mut log| log["changes"][0].take()).unwrap_or_default();
    format!("from the database, {}", audit::change_stamp(&change))
}

/// Prints a rule as in a file, without its version and source.
fn print_rule(rule: &Value) {
    let mut map = rule.as_object().cloned().unwrap_or_default();
    map.retain(|name, _| !RESPONSE_ONLY_FIELDS.contains(&name.as_str()));
    yaml::item(&map).iter().for_each(out::line);
}

fn export(source: &str, admin: &AdminArgs) -> Result<(), Exit> {
    let mut session = Session::open(admin)?;
    if !admin.json {
        return session.download(&format!("/v1/rules/export?source={source}"));
    }
    let mut listing = Listing::new("/v1/rules", "rules", "no rules");
    listing.query.extend((source != "all").then(|| format!("source={source}")));
    listing.print(admin, |_| true, |_| Vec::new())
}

fn remove(id: &str, admin: &AdminArgs) -> Result<(), Exit> {
    let unseen = [&RESPONSE_ONLY_FIELDS[..], &["id"]].concat();
    admin.print(Method::DELETE, &format!("/v1/rules/{}", percent_encode(id)), None, |answer| {
        let mut lines = value_diff::diff_lines(id, &answer["removed"], &Value::Null, &unseen);
        if answer["still_in_force"] == "file" {
            lines.push(format!("rule {id} of the configuration file stays in force"));
        }
        lines.join("\n")
    })
}
