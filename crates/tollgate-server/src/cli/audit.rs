//! The log of changes, and reverting a change: `tollgate audit`, `rules history`, `rules rollback`.

use clap::Args;
use serde_json::Value;

use crate::cli::listing::Listing;
use crate::cli::session::Session;
use crate::cli::{AdminArgs, Exit, out, value_diff};
use crate::client::percent_encode;

/// The part of the log to show.
#[derive(Args)]
pub struct PageArgs {
    /// Maximum number of changes
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Only changes before this version
    #[arg(long, value_name = "VERSION")]
    before: Option<String>,
}

#[derive(Args)]
pub struct AuditArgs {
    /// Only the changes of one item: rule:ID, ban:KEY, allow:KEY or setting:enforce
    #[arg(long, value_name = "KIND:NAME")]
    item: Option<String>,
    #[command(flatten)]
    page: PageArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

pub fn run(args: &AuditArgs) -> Exit {
    print(args.item.as_deref(), |_| true, &args.page, &args.admin).err().unwrap_or(Exit::Success)
}

pub fn rule_history(id: Option<&str>, page: &PageArgs, admin: &AdminArgs) -> Result<(), Exit> {
    let item = id.map(|id| format!("rule:{id}"));
    print(item.as_deref(), |change| change["what"] == "rule", page, admin)
}

fn print(
    item: Option<&str>,
    wanted: impl Fn(&Value) -> bool,
    page: &PageArgs,
    admin: &AdminArgs,
) -> Result<(), Exit> {
    let mut listing = Listing::new("/v1/audit", "changes", "no changes");
    listing.cursor = "before";
    listing.limit = Some(page.limit);
    listing.query.extend(item.map(|item| format!("item={}", percent_encode(item))));
    listing.after = page.before.clone();
    listing.print(admin, wanted, |changes| changes.iter().flat_map(described).collect())
}

/// A change: version, author and time, then the difference that it made. A set has the differences of its first
/// changes.
fn described(change: &Value) -> Vec<String> {
    let Some(changes) = change["changes"].as_array() else { return described_one(change) };
    let stamp = Some(change_stamp(change)).filter(|stamp| !stamp.is_empty());
    let head = stamp.into_iter().chain([out::tally(change)]).collect::<Vec<_>>().join(": ");
    let lines = changes.iter().flat_map(difference).map(|line| format!("  {line}"));
    let all: u64 = ["created", "changed", "deleted"].iter().filter_map(|name| change[*name].as_u64()).sum();
    let more = all.saturating_sub(changes.len() as u64);
    let more = (more > 0).then(|| format!("  … and {}", out::pluralize(more, "more change")));
    std::iter::once(head).chain(lines).chain(more).collect()
}

fn described_one(change: &Value) -> Vec<String> {
    let stamp = Some(change_stamp(change)).filter(|stamp| !stamp.is_empty());
    stamp.into_iter().chain(difference(change).into_iter().map(|line| format!("  {line}"))).collect()
}

fn difference(change: &Value) -> Vec<String> {
    let what = change["what"].as_str().unwrap_or_default();
    let unseen = if what == "rule" { "id" } else { "key" };
    let name = out::escape_control(&format!("{what} {}", change["name"].as_str().unwrap_or_default()));
    value_diff::diff_lines(&name, &change["before"], &change["after"], &[unseen])
}

/// `version 0-17, by ann, at 2026-11-15T11:01:51Z`, as far as known.
pub fn change_stamp(change: &Value) -> String {
    let words = [
        ("version", "version"),
        ("set", "part of"),
        ("who", "by"),
        ("at", "at"),
        ("undoes", "reverts"),
        ("note", "because"),
    ];
    let known = words.iter().filter_map(|(name, word)| Some(format!("{word} {}", change[*name].as_str()?)));
    out::escape_control(&known.collect::<Vec<_>>().join(", "))
}

#[derive(Args)]
pub struct RollbackArgs {
    /// The version of the change, as `history` shows it
    version: String,
    /// Only the change that has this version, not those that were made together with it
    #[arg(long)]
    only: bool,
    /// Only print what would change
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Reverts the whole set that a version belongs to, or only this change.
pub fn rollback(args: &RollbackArgs) -> Result<(), Exit> {
    let RollbackArgs { version, only, dry_run, admin } = args;
    let path = format!("/v1/audit/{}/rollback?dry_run={dry_run}&only={only}", percent_encode(version));
    let answered = Session::open(admin)?.call_long(&path)?;
    if admin.json {
        out::pretty(&answered.body);
        return Ok(());
    }
    let changes = answered.body["changes"].as_array().map_or(&[][..], Vec::as_slice);
    match answered.body.get("created") {
        Some(_) => described(&answered.body).iter().for_each(out::line),
        None => changes.iter().flat_map(described_one).for_each(out::line),
    }
    if *dry_run {
        out::message("nothing was written");
    }
    Ok(())
}
