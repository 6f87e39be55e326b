//! `tollgate check`: queries the decision API for one request.

use clap::Args;
use hyper::Method;
use serde_json::Value;

use crate::cli::request_args::RequestArgs;
use crate::cli::{Exit, out};
use crate::client::{self, ClientRequest, ServerClient};

#[derive(Args)]
pub struct CheckArgs {
    /// The decision API of the server
    #[arg(
        long,
        value_name = "URL",
        env = "TOLLGATE_HTTP",
        hide_env_values = true,
        default_value = "http://127.0.0.1:8080"
    )]
    http: String,
    #[command(flatten)]
    request: RequestArgs,
    /// Only show the decision: nothing is charged
    #[arg(long)]
    peek: bool,
    /// Print the verdict as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &CheckArgs) -> Exit {
    let mut body = match args.request.to_json() {
        Ok(body) => body,
        Err(message) => {
            out::message(format!("error: {message}"));
            return Exit::Usage;
        }
    };
    body.insert("peek".to_owned(), args.peek.into());
    let answered = client::block_on(async {
        let call = ClientRequest::new(Method::POST, "/v1/check").json(Some(body.into()));
        ServerClient::with_token(&args.http)?.fetch_json(call).await
    });
    let answered = match answered {
        Ok(answered) => answered,
        Err(error) => return out::failed(&error),
    };
    let Some(allowed) = answered.body.get("allowed").and_then(Value::as_bool) else {
        return out::refused(&answered, "listen.http");
    };
    if args.json {
        out::line(&answered.body);
    } else {
        out::line(sentence(&answered.body, allowed));
        shadow_lines(&answered.body).iter().for_each(out::line);
    }
    if allowed { Exit::Success } else { Exit::Failure }
}

fn sentence(verdict: &Value, allowed: bool) -> String {
    let text = |name: &str| verdict[name].as_str().unwrap_or_default().to_owned();
    match (allowed, verdict["rule"].is_string()) {
        (true, true) => {
            let delay = verdict["delay_ms"].as_u64().filter(|delay| *delay > 0);
            let wait = delay.map_or_else(String::new, |delay| format!(", after {delay} ms"));
            format!(
                "allowed{wait}: {} left of {} (rule {})",
                verdict["remaining"],
                text("limit"),
                text("rule")
            )
        }
        (true, false) => match text("reason").as_str() {
            "no_rule" => "allowed: no rule applies".to_owned(),
            "allow_list" => "allowed: on the allow list".to_owned(),
            reason => format!("allowed: {reason}"),
        },
        (false, _) => {
            let message = text("message");
            format!("denied: {}", message.strip_prefix("Denied: ").unwrap_or(&message))
        }
    }
}

/// What rules in shadow mode would have done.
fn shadow_lines(verdict: &Value) -> Vec<String> {
    let rules = verdict["rules"].as_array().into_iter().flatten();
    let shadow = rules.filter(|limit| limit["mode"] == "shadow");
    shadow
        .map(|limit| {
            let text = |name: &str| limit[name].as_str().unwrap_or_default().to_owned();
            let outcome = match limit["allowed"].as_bool() {
                Some(true) => format!("would allow it, {} left", limit["remaining"]),
                _ => "would deny it".to_owned(),
            };
            format!("  shadow: rule {} ({}) {outcome}", text("rule"), text("limit"))
        })
        .collect()
}
