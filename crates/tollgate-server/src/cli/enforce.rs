//! `tollgate enforce [on|shadow|off]`: the panic switch of the whole fleet.

use clap::Args;
use hyper::Method;
use serde_json::{Value, json};

use crate::cli::session::Session;
use crate::cli::{AdminArgs, Exit, out};

#[derive(Args)]
pub struct EnforceArgs {
    /// on: rules and bans are enforced; shadow: they are counted but nothing is denied; off: they are not evaluated
    #[arg(value_parser = ["on", "shadow", "off"])]
    state: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

pub fn run(args: &EnforceArgs) -> Exit {
    switch(args).err().unwrap_or(Exit::Success)
}

fn switch(args: &EnforceArgs) -> Result<(), Exit> {
    let mut session = Session::open(&args.admin)?;
    let before = session.get("/v1/enforce")?;
    let Some(state) = &args.state else {
        if args.admin.json {
            out::pretty(&before);
        } else {
            out::line(described(&before));
        }
        return Ok(());
    };
    let after = session.call(Method::PUT, "/v1/enforce", Some(json!({ "enforce": state })))?.body;
    if args.admin.json {
        out::pretty(&after);
    } else {
        let scope = scope(&after);
        out::line(format!("enforce: {} → {}{scope}", text(&before, "enforce"), text(&after, "enforce")));
    }
    Ok(())
}

fn described(now: &Value) -> String {
    let since = match (now["who"].as_str(), now["at"].as_str()) {
        (Some(_), Some(_)) => format!(", since {} by {}", text(now, "at"), text(now, "who")),
        _ => String::new(),
    };
    format!("enforce: {}{}{since}", text(now, "enforce"), scope(now))
}

fn scope(now: &Value) -> &'static str {
    match now["scope"].as_str() {
        _ if now["pending"].is_string() => " (this node only, until the rules database can be written again)",
        Some("node") => " (this node only: it has no rules database)",
        Some("fleet") => " (the whole fleet)",
        _ => "",
    }
}

fn text(now: &Value, name: &str) -> String {
    out::escape_control(now[name].as_str().unwrap_or("?"))
}
