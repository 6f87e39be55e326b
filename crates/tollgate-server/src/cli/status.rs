//! `tollgate status`: what a running node says about itself, as text and as an exit code.

use clap::Args;
use hyper::Method;
use serde_json::{Value, json};

use crate::cli::{AdminArgs, Exit, out};
use crate::client::{self, ClientRequest, ServerClient};

#[derive(Args)]
pub struct StatusArgs {
    #[command(flatten)]
    admin: AdminArgs,
}

pub fn run(args: &StatusArgs) -> Exit {
    let fetched = client::block_on(async {
        let server = ServerClient::with_token(&args.admin.admin)?;
        let ready = server.fetch_json(ClientRequest::new(Method::GET, "/readyz")).await?;
        let health = server.fetch_json(ClientRequest::new(Method::GET, "/healthz")).await?;
        Ok((ready.body, health.body))
    });
    let (ready, health) = match fetched {
        Ok(answers) => answers,
        Err(error) => return out::failed(&error),
    };
    let (Some(readiness), Some(condition)) = (ready["status"].as_str(), health["status"].as_str()) else {
        out::message(format!(
            "error: {} does not answer like the admin address of a Tollgate",
            args.admin.admin
        ));
        return Exit::Failure;
    };
    if args.admin.json {
        out::pretty(&json!({ "ready": ready, "health": health }));
    } else {
        lines(&ready, &health).iter().for_each(|line| out::line(out::escape_control(line)));
    }
    if readiness == "ready" && condition == "ok" { Exit::Success } else { Exit::Failure }
}

fn lines(ready: &Value, health: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let because = |value: &Value| value.as_str().map(|why| format!(": {why}")).unwrap_or_default();
    let mut lines = vec![
        format!("ready       {}{}", text(&ready["status"]), because(&ready["reason"])),
        format!("health      {}{}", text(&health["status"]), because(&health["memory"])),
        format!("enforce     {}", text(&health["enforce"])),
    ];
    if let Some(protection) = health["protection"].as_str() {
        lines.push(format!("protection  {protection}"));
    }
    if let Some(node) = health["node"].as_str() {
        let key = &health["ticket_key"];
        let owner = if key["shared"] == true { "shared by the fleet" } else { "of this node alone" };
        lines.push(format!("node        {node}, seals tickets with key {} ({owner})", text(&key["id"])));
    }
    lines.push(rules(health));
    for left_out in health["rules_db"]["left_out"].as_array().into_iter().flatten() {
        lines.push(format!(
            "left out    a {} of the database{}",
            text(&left_out["what"]),
            because(&left_out["why"])
        ));
    }
    let pending = health["rules_db"]["pending_edits"].as_u64().unwrap_or_default();
    if pending > 0 {
        let edits = out::pluralize(pending, "edit");
        let why = because(&health["rules_db"]["write_trouble"]);
        lines.push(format!("pending     {edits} in force here, not written to the database yet{why}"));
    }
    for server in health["store"].as_array().into_iter().flatten() {
        let up = if server["up"] == true { "up" } else { "down" };
        lines.push(format!("store       {} {up}{}", text(&server["server"]), because(&server["trouble"])));
    }
    for upstream in health["upstreams"].as_array().into_iter().flatten() {
        let up = if upstream["up"] == true { "up" } else { "down" };
        lines.push(format!(
            "upstream    {} {up}{}",
            text(&upstream["server"]),
            because(&upstream["trouble"])
        ));
    }
    for (listener, why) in health["tls"].as_object().into_iter().flatten() {
        lines.push(format!("tls         {listener}: a new certificate was rejected{}", because(why)));
    }
    if health["reload"].is_object() {
        lines.push(format!("reload      rejected{}", because(&health["reload"]["trouble"])));
    }
    let state = &health["state"];
    if state.is_object() {
        let age =
            state["age_ms"].as_u64().map_or("not saved yet".to_owned(), |age| format!("saved {age} ms ago"));
        lines.push(format!("state       {age}{}", because(&state["trouble"])));
    }
    lines
}

/// How many rules are in force, and how the database is followed.
fn rules(health: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let count = health["rules"].as_u64().unwrap_or_default();
    let database = &health["rules_db"];
    if !database.is_object() {
        return format!("rules       {count} in force, all of the file");
    }
    let followed = match database["source"].as_str() {
        Some("database") => "follows the database",
        Some("copy") => "from the local copy of the database",
        _ => "without those of the database",
    };
    let details: Vec<_> = [
        text(&database["name"]),
        database["version"].as_str().map(|version| format!("version {version}")).unwrap_or_default(),
    ]
    .into_iter()
    .filter(|detail| !detail.is_empty())
    .collect();
    let trouble = database["trouble"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
    format!("rules       {count} in force, {followed} ({}){trouble}", details.join(", "))
}
