//! `tollgate rules apply|diff FILE`: from a file to the database.

use bytes::Bytes;
use serde_json::Value;

use crate::cli::progress::Progress;
use crate::cli::rules::FileArgs;
use crate::cli::session::Session;
use crate::cli::{Exit, difference, out, text};

/// A longer text is sent only once the server has said that it would take one.
const ASK_FIRST_BYTES: usize = 1 << 20;

pub fn apply(args: &FileArgs) -> Result<(), Exit> {
    let done = import(args, "false")?;
    if args.admin.json {
        out::pretty(&done);
        return Ok(());
    }
    let version = done["version"].as_str().map_or_else(String::new, |version| format!(", version {version}"));
    out::line(format!("{}{version}", out::tally(&done)));
    let named = done["changes"].as_array().map_or(&[][..], Vec::as_slice);
    for id in named.iter().filter_map(Value::as_str) {
        out::line(format!("  {}", out::plain(id)));
    }
    say_more(changes(&done), named.len());
    Ok(())
}

/// What `apply` would do.
pub fn rehearse(args: &FileArgs) -> Result<(), Exit> {
    let done = import(args, "true")?;
    if args.admin.json {
        out::pretty(&done);
        return Ok(());
    }
    print_diff(&done);
    out::line(format!("{}; nothing was written", out::tally(&done)));
    Ok(())
}

pub fn diff(args: &FileArgs) -> Result<(), Exit> {
    let done = import(args, "true")?;
    if args.admin.json {
        out::pretty(&done);
    } else {
        print_diff(&done);
    }
    if changes(&done) == 0 { Ok(()) } else { Err(Exit::No) }
}

fn import(args: &FileArgs, dry_run: &str) -> Result<Value, Exit> {
    let progress = Progress::start("reading");
    let checked = text::read(&args.file, &progress).and_then(|text| {
        text.check_rules(&progress)?;
        Ok(text)
    });
    let text = match checked {
        Ok(text) => text,
        Err(problems) => {
            drop(progress);
            return Err(args.admin.invalid(&problems));
        }
    };
    let mode = if args.replace { "replace" } else { "merge" };
    let mut session = Session::open(&args.admin)?;
    if text.bytes.len() > ASK_FIRST_BYTES {
        let nothing = Bytes::from_static(b"[]");
        session.upload(
            "/v1/rules/import?dry_run=true",
            text.content_type,
            nothing,
            Progress::start("asking"),
        )?;
    }
    let path = format!("/v1/rules/import?mode={mode}&dry_run={dry_run}");
    session.upload(&path, text.content_type, text.bytes, progress).map(|answered| answered.body)
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
        let id = out::plain(change["id"].as_str().unwrap_or_default());
        difference::lines(&id, &change["before"], &change["after"], &["id"]).iter().for_each(out::line);
    }
    say_more(changes(done), diff.len());
}

/// The server names the first ones only.
fn say_more(all: u64, shown: usize) {
    let more = all.saturating_sub(shown as u64);
    if more > 0 {
        out::message(format!("… and {}", out::counted(more, "more change")));
    }
}
