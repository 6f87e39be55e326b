//! A request as arguments of a command, named as the fields of `/v1/check`.

use clap::Args;
use serde_json::{Map, Value, json};

#[derive(Args)]
pub struct RequestArgs {
    /// The request: [METHOD ]PATH, such as POST /login
    #[arg(value_name = "TARGET", num_args = 0..=2)]
    pub target: Vec<String>,
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
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl RequestArgs {
    /// The body of `/v1/check`, unless the target is not one: no rule would match a path without its slash.
    pub fn to_json(&self) -> Result<Map<String, Value>, String> {
        let mut body = Map::new();
        // `POST /login` may be one argument or two.
        let target = self.target.join(" ");
        let (method, path) = match target.trim().split_once(char::is_whitespace) {
            Some((method, path)) => (Some(method), Some(path.trim_start())),
            None => (None, Some(target.trim()).filter(|path| !path.is_empty())),
        };
        if let Some(path) = path.filter(|path| !path.starts_with('/') && *path != "*") {
            return Err(format!("'{path}' is not a path: write [METHOD] /PATH, such as POST /login"));
        }
        let texts = [
            ("method", method),
            ("path", path),
            ("host", self.host.as_deref()),
            ("ip", self.ip.as_deref()),
            ("user", self.user.as_deref()),
            ("email", self.email.as_deref()),
            ("mac", self.mac.as_deref()),
            ("api_key", self.api_key.as_deref()),
        ];
        body.extend(texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), json!(text?)))));
        let map = |pairs: &[(String, String)]| -> Map<String, Value> {
            pairs.iter().map(|(name, value)| (name.clone(), json!(value))).collect()
        };
        body.insert("headers".to_owned(), map(&self.headers).into());
        body.insert("attributes".to_owned(), map(&self.attributes).into());
        body.insert("cost".to_owned(), self.cost.into());
        Ok(body)
    }
}
