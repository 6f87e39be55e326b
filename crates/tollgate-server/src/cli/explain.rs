//! `tollgate explain`: why a request was denied, by its ticket, or what is decided about a request and why.

use std::io::Read;

use clap::Args;
use hyper::Method;
use serde_json::{Value, json};
use tollgate::Time;
use tollgate::internal::time::calendar::rfc3339;

use crate::cli::out::{escape_control, text_field};
use crate::cli::request_args::RequestArgs;
use crate::cli::{AdminArgs, Exit, out};

/// A denied response on standard input; longer ones are not ours.
const MAX_INPUT_BYTES: u64 = 64 << 10;

#[derive(Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    request: RequestArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

pub fn run(args: &ExplainArgs) -> Exit {
    let body = ticket(&args.request.target).and_then(|ticket| match ticket {
        Some(ticket) => Ok(json!({ "ticket": ticket })),
        None => Ok(json!({ "request": args.request.to_json()? })),
    });
    let body = match body {
        Ok(body) => body,
        Err(message) => {
            out::message(format!("error: {message}"));
            return Exit::Usage;
        }
    };
    let explained = match args.admin.call(Method::POST, "/v1/explain", Some(body)) {
        Ok(answered) => answered.body,
        Err(exit) => return exit,
    };
    if args.admin.json {
        out::pretty(&explained);
    } else {
        lines(&explained).iter().for_each(|line| out::line(escape_control(line)));
    }
    Exit::Success
}

/// A ticket is one argument that is not a path; `-` reads it, or the response that contains it.
fn ticket(target: &[String]) -> Result<Option<String>, String> {
    let [only] = target else { return Ok(None) };
    if only != "-" {
        let is_ticket = !only.starts_with('/') && !only.contains(char::is_whitespace);
        return Ok(is_ticket.then(|| only.clone()));
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().take(MAX_INPUT_BYTES).read_to_string(&mut text);
    read.map_err(|error| format!("standard input cannot be read: {error}"))?;
    let Ok(response) = serde_json::from_str::<Value>(&text) else { return Ok(Some(text)) };
    let found = ["ticket", "instance"].iter().find_map(|name| response[*name].as_str());
    let found = found.ok_or("the response has neither `ticket` nor `instance`: was the request denied?")?;
    Ok(Some(found.to_owned()))
}

fn lines(explained: &Value) -> Vec<String> {
    let ticket = explained.get("ticket");
    let mut lines = vec![match ticket {
        Some(ticket) => ticket_summary(explained, ticket),
        None => request_summary(explained),
    }];
    if explained["enforce"] != "on" {
        lines.push(format!("the panic switch is set to {}", text_field(explained, "enforce")));
    }
    let charge = if ticket.is_some() {
        ["charged", "not charged"]
    } else {
        ["would be charged", "would not be charged"]
    };
    let steps = explained["steps"].as_array().into_iter().flatten();
    lines.extend(steps.flat_map(|step| step_lines(step, charge)));
    if let Some(ticket) = ticket {
        let mark = ticket["key_mark"].as_str().unwrap_or("none");
        lines.push(format!("  decision {} on node {}", text_field(ticket, "id"), text_field(ticket, "node")));
        lines.push(format!("  key mark {mark}"));
    }
    lines
}

fn ticket_summary(explained: &Value, ticket: &Value) -> String {
    let at = ticket["at"].as_f64().unwrap_or_default();
    let at = rfc3339(Time::from_nanos((at * 1e3).round() as u64 * 1_000_000));
    match explained["rule"].as_str() {
        Some(rule) => {
            let used = format!("{} used, cost {}", ticket["used"], ticket["cost"]);
            format!("denied at {at} by rule {rule}: {} ({used})", text_field(ticket, "limit"))
        }
        None => format!("denied at {at}: {}", text_field(explained, "reason")),
    }
}

fn request_summary(explained: &Value) -> String {
    let decision = text_field(explained, "decision");
    match (explained["message"].as_str(), explained["rule"].as_str()) {
        (Some(message), _) => format!("{decision}: {message}"),
        (None, Some(rule)) => format!("{decision}: rule {rule} has the least left"),
        (None, None) => format!("{decision}: {}", text_field(explained, "reason").replace('_', " ")),
    }
}

/// `charge` are the words for a rule that charges the request, and for one that does not.
fn step_lines(step: &Value, charge: [&str; 2]) -> Vec<String> {
    let name = match step["step"].as_str() {
        Some("allow_list") => "allow list".to_owned(),
        Some("rule") => match step["limit"].as_str() {
            Some(limit) => format!("rule {} {limit}", text_field(step, "rule")),
            None => format!("rule {}", text_field(step, "rule")),
        },
        other => other.unwrap_or_default().to_owned(),
    };
    let mut lines = vec![format!("  {name}: {}", text_field(step, "why"))];
    let mut details = Vec::new();
    details.extend(step["key"].as_str().map(|key| format!("key {key}")));
    details.extend(step["source"].as_str().map(str::to_owned));
    if step["step"] == "rule" {
        let [charged, not_charged] = charge;
        details.push(if step["charged"] == true { charged } else { not_charged }.to_owned());
    }
    if step["shadow"] == true {
        details.push("shadow".to_owned());
    }
    if !details.is_empty() {
        lines.push(format!("    {}", details.join(", ")));
    }
    lines
}
