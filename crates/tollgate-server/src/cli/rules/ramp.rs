//! `tollgate rules ramp`: the ramp of a guarded apply.

use std::time::Duration;

use clap::Subcommand;
use hyper::Method;
use serde_json::Value;

use crate::cli::session::{Pause, Session};
use crate::cli::{AdminArgs, Exit, out};
use crate::ramp::RampGuard;

/// How often an attached command asks for the progress.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Rules that a status names.
const MAX_NAMED: usize = 20;

#[derive(Subcommand)]
pub enum RampCommand {
    /// Show the ramp under way, or how the last one ended
    #[command(after_help = "Example:
  tollgate rules ramp status")]
    Status {
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Stop the ramp and revert its apply, in one change
    #[command(after_help = "Example:
  tollgate rules ramp stop")]
    Stop {
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Enforce the rules as written at once, without the remaining steps
    #[command(after_help = "Example:
  tollgate rules ramp finish")]
    Finish {
        #[command(flatten)]
        admin: AdminArgs,
    },
}

pub fn run(command: &RampCommand) -> Result<(), Exit> {
    match command {
        RampCommand::Status { admin } => {
            let answer = Session::open(admin)?.get("/v1/ramp")?;
            print(admin, &answer);
        }
        RampCommand::Stop { admin } => end(admin, Method::DELETE, "/v1/ramp")?,
        RampCommand::Finish { admin } => end(admin, Method::POST, "/v1/ramp/finish")?,
    }
    Ok(())
}

fn end(admin: &AdminArgs, method: Method, path: &str) -> Result<(), Exit> {
    let answered = Session::open(admin)?.call(method, path, None)?;
    print(admin, &answered.body);
    Ok(())
}

fn print(admin: &AdminArgs, answer: &Value) {
    if admin.json {
        return out::pretty(answer);
    }
    let ramp = &answer["ramp"];
    if ramp.is_null() {
        return out::message(
            "there was no ramp: tollgate rules apply FILE --guard 'denied<1%' --for 10m starts one",
        );
    }
    out::line(progress(ramp));
    let text = |name: &str| out::text_field(ramp, name);
    out::line(format!("  change {} by {}, started {}", text("change"), text("who"), text("started")));
    out::line(format!("  guard {}, over {}", text("guard"), text("for")));
    if let Some(next) = ramp["next_step"].as_str() {
        out::line(format!("  next step {next}"));
    }
    let ids: Vec<_> = ramp["rules"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let more = ids.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named = ids.iter().take(MAX_NAMED).map(|id| out::escape_control(id)).collect::<Vec<_>>().join(", ");
    out::line(format!("  rules {named}{more}"));
}

/// `running, 5 % enforced: 0.2 % denied (2 of 1000 decisions), 1 client limited`
fn progress(ramp: &Value) -> String {
    let number = |name: &str| ramp[name].to_string();
    let clients = out::pluralize(ramp["clients"].as_u64().unwrap_or(0), "client");
    let measured = match ramp["decided"].as_u64() {
        Some(0) => "no request was decided by these rules yet".to_owned(),
        _ => format!(
            "{} % denied ({} of {} decisions), {clients} limited",
            number("denied_percent"),
            number("denied"),
            number("decided"),
        ),
    };
    let mut line =
        format!("{}, {} % enforced: {measured}", out::text_field(ramp, "state"), number("percent"));
    if let Some(reason) = ramp["reason"].as_str() {
        line = format!("{}: {}", out::text_field(ramp, "state"), out::escape_control(reason));
    }
    line
}

/// Prints the progress of the ramp of one change until it ends; fails if it was rolled back.
pub fn attend(session: &mut Session, change: &str) -> Result<(), Exit> {
    out::message(
        "the ramp runs in the server and goes on if this command ends: see tollgate rules ramp status",
    );
    let mut last = None;
    loop {
        let answer = session.get("/v1/ramp")?;
        let ramp = &answer["ramp"];
        if ramp["change"] != change {
            out::message("another ramp has replaced this one: see tollgate rules history");
            return Err(Exit::Failure);
        }
        let shown = (ramp["percent"].clone(), ramp["state"].clone(), ramp["denied"].clone());
        if last.replace(shown.clone()) != Some(shown) {
            out::line(progress(ramp));
        }
        match ramp["state"].as_str() {
            Some("running") => {}
            Some("finished") => return Ok(()),
            _ => return Err(Exit::Failure),
        }
        if session.pause(POLL_INTERVAL) == Pause::Interrupted {
            out::message("the ramp goes on in the server: tollgate rules ramp stop reverts it");
            return Ok(());
        }
    }
}

/// Checks a guard before anything is sent.
pub fn parse_guard(text: &str) -> Result<String, String> {
    RampGuard::parse(text).map(|guard| guard.to_string())
}
