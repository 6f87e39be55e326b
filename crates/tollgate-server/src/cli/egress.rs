//! `tollgate egress --to URL --limit RATE`: a local gateway that keeps calls to an API under its limits.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use hyper::header::HeaderName;
use serde_json::{Value, json};
use tollgate::internal::time::{format_duration, parse_duration};
use tollgate_client::Throttle;

use crate::assemble;
use crate::cli::proxy::only_proxy;
use crate::cli::serve::{ServeContext, runtime};
use crate::cli::{Exit, out};
use crate::config::Config;
use crate::log;
use crate::log_rate::LogLimiter;
use crate::transport::proxy::{ApiUrl, Egress, EgressCallers, Proxy};

#[derive(Args)]
pub struct EgressArgs {
    /// The API, such as https://api.example.com/v1; the path of a request is appended to it
    #[arg(long, value_name = "URL", value_parser = ApiUrl::parse)]
    to: ApiUrl,
    /// The limit of the calls, such as 100/m; if there are several, all of them apply
    #[arg(long, value_name = "RATE")]
    limit: Vec<String>,
    /// The calls that may be sent at once; further ones are spread evenly
    #[arg(long, value_name = "NUMBER", requires = "limit")]
    burst: Option<u64>,
    /// The algorithm of the limit, as in a rule; by default no window ever exceeds it
    #[arg(long, value_name = "NAME", requires = "limit")]
    algorithm: Option<String>,
    /// Count by the value of a header, such as header:x-api-key
    #[arg(long, value_name = "header:NAME", value_parser = key_header)]
    key: Option<HeaderName>,
    /// How long a request may wait
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    max_wait: Duration,
    /// The longest wait that a response of the API can cause
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    max_server_wait: Duration,
    /// Do not learn from the responses of the API
    #[arg(long, requires = "limit")]
    ignore_server: bool,
    /// A store in which several gateways share the limit, such as redis://127.0.0.1
    #[arg(long, value_name = "URL", requires = "limit")]
    store: Option<String>,
    /// How long a call may wait for the store before the gateway counts for itself; by default 50ms, with Cassandra
    /// 500ms
    #[arg(long, value_name = "DURATION", requires = "store", value_parser = parse_duration)]
    store_deadline: Option<Duration>,
    /// The CAs that the API's certificate is verified against, as a PEM file; the system's by default
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8001")]
    listen: SocketAddr,
    /// Listen on an address that other machines can reach
    #[arg(long)]
    allow_remote: bool,
    /// The address of health and metrics
    #[arg(long, value_name = "ADDRESS", default_value = "off")]
    admin: String,
}

fn key_header(text: &str) -> Result<HeaderName, String> {
    let name = text.strip_prefix("header:").ok_or("expected header:NAME, such as header:x-api-key")?;
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("'{name}' is not a valid header name"))
}

pub fn run(args: &EgressArgs) -> Exit {
    log::install();
    if !args.listen.ip().to_canonical().is_loopback() && !args.allow_remote {
        out::message(format!(
            "error: other machines could reach {}: listen on a loopback address, or add --allow-remote",
            args.listen
        ));
        return Exit::Usage;
    }
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(exit) => return exit,
    };
    let _inside = runtime.enter();
    match assemble(args) {
        Ok((config, served)) => {
            announce(args);
            served.run(&config, &runtime)
        }
        Err(messages) => {
            messages.iter().for_each(|message| out::message(format!("error: {message}")));
            Exit::Usage
        }
    }
}

fn assemble(args: &EgressArgs) -> Result<(Config, ServeContext), Vec<String>> {
    let throttle = throttle(args).map_err(|message| vec![message])?;
    let text = file_of(args).to_string();
    let assembled = Config::parse(&text, Path::new("")).and_then(|mut config| {
        let gate = Arc::new(assemble::gate(&mut config, text, None)?);
        let settings = config.proxy.clone().expect("the configuration names an upstream");
        let proxy = Proxy::new(Arc::clone(&gate), settings, None)?;
        let proxy = proxy.with_egress(Egress {
            throttle,
            api: args.to.clone(),
            key: args.key.clone(),
            callers: EgressCallers::at(args.listen),
            failures: LogLimiter::default(),
        });
        let proxy = Some(Arc::new(proxy));
        Ok((config, ServeContext { gate, proxy, tokens: None, watched: None, state: None, lock: None }))
    });
    // The positions refer to a generated file, so they are not printed.
    let option = |path: &str| match path {
        "listen.admin" => "--admin".to_owned(),
        "listen" | "listen.proxy" => "--listen".to_owned(),
        "proxy.upstream_tls" | "proxy.upstream_tls.ca" => "--ca".to_owned(),
        path => path.to_owned(),
    };
    assembled.map_err(|problems| {
        problems
            .into_iter()
            .map(|problem| format!("{}: {}", option(problem.path()), problem.message()))
            .collect()
    })
}

fn throttle(args: &EgressArgs) -> Result<Throttle, String> {
    let mut builder = Throttle::builder().max_wait(args.max_wait).max_server_wait(args.max_server_wait);
    for limit in &args.limit {
        builder = builder.limit(limit);
    }
    if let Some(burst) = args.burst {
        builder = builder.burst(burst);
    }
    if let Some(algorithm) = &args.algorithm {
        builder = builder.algorithm(algorithm);
    }
    if args.ignore_server {
        builder = builder.ignore_server();
    }
    if let Some(store) = &args.store {
        builder = builder.store(store);
    }
    if let Some(deadline) = args.store_deadline {
        builder = builder.store_deadline(deadline);
    }
    builder.build().map_err(|error| {
        let message = error.to_string();
        // `limits[1]` is the second --limit.
        match message.strip_prefix("limits[").and_then(|rest| rest.split_once("]: ")) {
            Some((_, rest)) => format!("--limit: {rest}"),
            None => message,
        }
    })
}

/// Responses of a remote API may take long; a caller on this machine may be slow.
fn file_of(args: &EgressArgs) -> Value {
    let mut proxy = json!({
        "host": "upstream",
        "connect_timeout": "10s",
        "response_timeout": "5m",
        "idle_timeout": "5m",
        "min_body_rate": "off",
    });
    if let Some(ca) = &args.ca {
        proxy["upstream_tls"] = json!({ "ca": ca });
    }
    json!({
        "listen": only_proxy(&args.listen.to_string(), &args.admin),
        "upstreams": [args.to.address.to_string()],
        "strip_headers": [],
        "headers": "none",
        "proxy": proxy,
        "rules": [],
    })
}

fn announce(args: &EgressArgs) {
    let max_wait = format_duration(args.max_wait);
    let limits = match args.limit.is_empty() {
        true => "as the API states".to_owned(),
        false => args.limit.join(" and "),
    };
    tracing::info!("calls go to {}: {limits}; they wait up to {max_wait}", args.to);
    if !args.listen.ip().to_canonical().is_loopback() {
        tracing::warn!("other machines can call {} through {} and use up its limits", args.to, args.listen);
    }
}
