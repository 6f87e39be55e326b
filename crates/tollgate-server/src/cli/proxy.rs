//! `tollgate proxy --to URL --limit RATE`: a limit in front of an API, without a file.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};

use crate::assemble;
use crate::cli::serve::{ServeContext, runtime};
use crate::cli::{Exit, out};
use crate::config::Config;
use crate::log;

#[derive(Args)]
pub struct ProxyArgs {
    /// The address of the API, such as http://127.0.0.1:3000; several share the requests
    #[arg(long, value_name = "URL", required = true)]
    to: Vec<String>,
    /// The limit of each client, such as 5/s; if there are several, all of them apply
    #[arg(long, value_name = "RATE", required = true)]
    limit: Vec<String>,
    /// The attribute that identifies a client
    #[arg(long, value_name = "ATTRIBUTE", default_value = "ip")]
    key: Vec<String>,
    /// The burst of a client, if it differs from the number of its rate
    #[arg(long, value_name = "NUMBER")]
    burst: Option<u64>,
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: String,
    /// The address of health, metrics and the admin API
    #[arg(long, value_name = "ADDRESS", default_value = "off")]
    admin: String,
    /// A trusted proxy in front: it may name the client's address
    #[arg(long, value_name = "NETWORK")]
    trusted_proxy: Vec<String>,
}

pub fn run(args: &ProxyArgs) -> Exit {
    log::install();
    let text = file_of(args).to_string();
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(exit) => return exit,
    };
    let _inside = runtime.enter();
    let assembled = Config::parse(&text, Path::new("")).and_then(|mut config| {
        let gate = Arc::new(assemble::gate(&mut config, text, None)?);
        let proxy = assemble::proxy(&gate, &config)?;
        Ok((config, ServeContext { gate, proxy, tokens: None, watched: None, state: None, lock: None }))
    });
    match assembled {
        Ok((config, served)) => served.run(&config, &runtime),
        Err(problems) => {
            // The positions refer to a generated file, so they are not printed.
            for problem in &problems {
                out::message(format!("error: {}: {}", option_of(problem.path()), problem.message()));
            }
            Exit::Usage
        }
    }
}

/// The option that became a setting of the generated file.
fn option_of(setting: &str) -> &str {
    let options = [
        ("upstreams", "--to"),
        ("rules[0].limit", "--limit"),
        ("rules[0].key", "--key"),
        ("rules[0].burst", "--burst"),
        ("listen.admin", "--admin"),
        ("listen", "--listen"),
        ("trusted_proxies", "--trusted-proxy"),
    ];
    options.iter().find(|(name, _)| setting.starts_with(name)).map_or(setting, |(_, option)| option)
}

/// The addresses of a node that decides about requests to its proxy and no others.
pub fn only_proxy(proxy: &str, admin: &str) -> Value {
    json!({ "http": "off", "grpc": "off", "resp": "off", "admin": admin, "proxy": proxy })
}

/// The configuration file that is equivalent to the arguments.
fn file_of(args: &ProxyArgs) -> Value {
    let mut rule = json!({ "id": "limit", "key": args.key, "limits": args.limit });
    if let Some(burst) = args.burst {
        rule["burst"] = burst.into();
    }
    json!({
        "listen": only_proxy(&args.listen, &args.admin),
        "upstreams": args.to,
        "trusted_proxies": args.trusted_proxy,
        "rules": [rule],
    })
}
