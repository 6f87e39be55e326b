//! `tollgate check`: queries the decision API for one request.

use clap::Args;
use hyper::Method;
use serde_json::{Map, Value, json};

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
    /// The request: [METHOD ]PATH, such as POST /login
    #[arg(value_name = "TARGET", num_args = 0..=2)]
    target: Vec<String>,
    /// The requested host
    #[arg(long)]
    host: Option<String>,
    /// The client's address
    #[arg(long)]
    ip: Option<String>,
    /// The id of the user
    #[arg(long)]
    user: Option<String>,
    /// The user's email address
    #[arg(long)]
    email: Option<String>,
    /// The client's MAC address
    #[arg(long)]
    mac: Option<String>,
    /// The client's API key
    #[arg(long)]
    api_key: Option<String>,
    /// A header of the request
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = pair)]
    headers: Vec<(String, String)>,
    /// A custom attribute
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = pair)]
    attributes: Vec<(String, String)>,
    /// The cost of the request
    #[arg(long, default_value_t = 1)]
    cost: u64,
    /// Only show the decision: nothing is charged
    #[arg(long)]
    peek: bool,
    /// Print the verdict as JSON
    #[arg(long)]
    json: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub fn run(args: &CheckArgs) -> Exit {
    let answered = client::block_on(async {
        let call = ClientRequest::new(Method::POST, "/v1/check").json(Some(check_body(args)));
        ServerClient::with_token(&args.http)?.fetch_json(call).await
    });
    let answered = match answered {
        Ok(answered) => answered,
        Err(error) => return out::failed(&error),
    };
    let Some(allowed) = answered.body.get("allowed").and_then(Value::as_bool) else {
        return out::refused(&answered);
    };
    if args.json {
        out::line(&answered.body);
    } else {
        out::line(sentence(&answered.body, allowed));
    }
    if allowed { Exit::Success } else { Exit::Failure }
}

fn check_body(args: &CheckArgs) -> Value {
    let mut body = Map::new();
    // `POST /login` may be one argument or two.
    let target = args.target.join(" ");
    let (method, path) = match target.trim().split_once(char::is_whitespace) {
        Some((method, path)) => (Some(method), Some(path.trim_start())),
        None => (None, Some(target.trim()).filter(|path| !path.is_empty())),
    };
    let texts = [
        ("method", method),
        ("path", path),
        ("host", args.host.as_deref()),
        ("ip", args.ip.as_deref()),
        ("user", args.user.as_deref()),
        ("email", args.email.as_deref()),
        ("mac", args.mac.as_deref()),
        ("api_key", args.api_key.as_deref()),
    ];
    body.extend(texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), json!(text?)))));
    let map = |pairs: &[(String, String)]| -> Map<String, Value> {
        pairs.iter().map(|(name, value)| (name.clone(), json!(value))).collect()
    };
    body.insert("headers".to_owned(), map(&args.headers).into());
    body.insert("attributes".to_owned(), map(&args.attributes).into());
    body.insert("cost".to_owned(), args.cost.into());
    body.insert("peek".to_owned(), args.peek.into());
    body.into()
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
