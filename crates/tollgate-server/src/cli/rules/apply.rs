//! `tollgate rules apply|diff FILE`: writes the rules of a file to the database.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use crate::cli::input_file::InputFile;
use crate::cli::rules::{FileArgs, ramp};
use crate::cli::session::Session;
use crate::cli::{Exit, input_file, out, value_diff};
use crate::client::percent_encode;

/// Whether the caller has agreed that many rules are deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Deletions {
    Confirmed,
    ToConfirm,
}

/// A file that deletes more than one rule in so many is confirmed first.
const DELETED_SHARE: u64 = 10;

/// The guard of an apply.
pub struct GuardedApply<'a> {
    pub guard: &'a str,
    pub duration: &'a str,
    /// Whether the command returns once the ramp is started.
    pub detach: bool,
}

pub fn apply(args: &FileArgs, deletions: Deletions, guarded: Option<GuardedApply<'_>>) -> Result<(), Exit> {
    let text = read(args)?;
    let mut session = Session::open(&args.admin)?;
    if args.replace && deletions == Deletions::ToConfirm {
        let planned = import(args, &mut session, text.clone(), "dry_run=true")?;
        confirm(&planned)?;
    }
    let query = guarded.as_ref().map_or_else(
        || "dry_run=false".to_owned(),
        |GuardedApply { guard, duration, .. }| {
            format!("guard={}&for={}", percent_encode(guard), percent_encode(duration))
        },
    );
    let done = import(args, &mut session, text, &query)?;
    print_applied(args, &mut session, &done);
    match (guarded, done["ramp"]["change"].as_str()) {
        (Some(GuardedApply { detach: false, .. }), Some(change)) if !args.admin.json => {
            ramp::attend(&mut session, change)
        }
        (Some(_), None) => {
            out::message("nothing has changed, so there is no ramp");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn print_applied(args: &FileArgs, session: &mut Session, done: &Value) {
    if args.admin.json {
        return out::pretty(done);
    }
    let version = done["version"].as_str().map_or_else(String::new, |version| format!(", version {version}"));
    out::line(format!("{}{version}", out::tally(done)));
    let named = named(session, done);
    named.iter().for_each(out::line);
    print_remaining(changes(done), named.len());
}

/// The rules that have changed, each with its sign if the log has it.
fn named(session: &mut Session, done: &Value) -> Vec<String> {
    let ids: Vec<_> = done["changes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let signs = signs(session, done, ids.len()).unwrap_or_default();
    let same = [("created", '+'), ("changed", '~'), ("deleted", '-')];
    let same =
        same.iter().find(|(name, _)| count(done, name) == changes(done)).map_or(' ', |(_, sign)| *sign);
    let line = |id: &&str| format!("  {} {}", signs.get(*id).unwrap_or(&same), out::escape_control(id));
    ids.iter().map(line).collect()
}

/// The signs from the log, if the response names all changes of the import.
fn signs(session: &mut Session, done: &Value, count: usize) -> Option<HashMap<String, char>> {
    if count == 0 || changes(done) != count as u64 {
        return None;
    }
    let last = done["version"].as_str()?;
    // A guarded apply has one change more: the start of its ramp.
    let log = session.get(&format!("/v1/audit?limit={}&change={last}", count + 1)).ok()?;
    let sign = |change: &Value| {
        let sign = value_diff::sign(&change["before"], &change["after"]);
        Some((change["name"].as_str()?.to_owned(), sign))
    };
    log["changes"].as_array()?.iter().map(sign).collect()
}

/// What `apply` would do.
pub fn dry_run(args: &FileArgs) -> Result<(), Exit> {
    let done = import(args, &mut Session::open(&args.admin)?, read(args)?, "dry_run=true")?;
    if args.admin.json {
        out::pretty(&done);
        return Ok(());
    }
    print_diff(&done);
    out::line(format!("{}; nothing was written", out::tally(&done)));
    Ok(())
}

pub fn diff(args: &FileArgs) -> Result<(), Exit> {
    let done = import(args, &mut Session::open(&args.admin)?, read(args)?, "dry_run=true")?;
    if args.admin.json {
        out::pretty(&done);
    } else {
        print_diff(&done);
    }
    if changes(&done) == 0 { Ok(()) } else { Err(Exit::Failure) }
}

/// Asks before a large part of the rules is deleted: a wrong or truncated file would do that.
fn confirm(planned: &Value) -> Result<(), Exit> {
    let deleted = count(planned, "deleted");
    let before = deleted + count(planned, "changed") + count(planned, "unchanged");
    if deleted * DELETED_SHARE <= before {
        return Ok(());
    }
    let effect = format!("this deletes {deleted} of {}", out::pluralize(before, "rule"));
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        out::message(format!("error: {effect}: add --yes if that is intended; nothing was written"));
        return Err(Exit::Failure);
    }
    write!(io::stderr(), "{effect}. Delete them? [y/N] ").ok();
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).ok();
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    out::message("nothing was written");
    Err(Exit::Failure)
}

/// Reads and checks the file.
fn read(args: &FileArgs) -> Result<InputFile, Exit> {
    let checked = input_file::read(&args.file).and_then(|text| Ok((text.check_rules()?, text)));
    let ((_, warnings), text) = checked.map_err(|problems| args.admin.invalid(&problems))?;
    out::warnings(warnings.into_lines());
    Ok(text)
}

fn import(args: &FileArgs, session: &mut Session, text: InputFile, query: &str) -> Result<Value, Exit> {
    let mode = if args.replace { "replace" } else { "merge" };
    let answered = session.upload("/v1/rules/import", &format!("mode={mode}&{query}"), text)?;
    Ok(answered.body)
}

fn count(done: &Value, name: &str) -> u64 {
    done[name].as_u64().unwrap_or(0)
}

fn changes(done: &Value) -> u64 {
    ["created", "changed", "deleted"].iter().map(|name| count(done, name)).sum()
}

fn print_diff(done: &Value) {
    let diff = done["diff"].as_array().map_or(&[][..], Vec::as_slice);
    for change in diff {
        let id = out::escape_control(change["id"].as_str().unwrap_or_default());
        value_diff::diff_lines(&id, &change["before"], &change["after"], &["id"]).iter().for_each(out::line);
    }
    print_remaining(changes(done), diff.len());
}

/// The server names only the first ones.
fn print_remaining(all: u64, shown: usize) {
    let more = all.saturating_sub(shown as u64);
    if more > 0 {
        out::message(format!("… and {}", out::pluralize(more, "more change")));
    }
}
