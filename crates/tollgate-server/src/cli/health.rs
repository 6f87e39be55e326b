//! `tollgate health`: whether a server is ready, as an exit code. The health check of containers.

use clap::Args;
use hyper::Method;

use crate::cli::{AdminArgs, Exit, out};
use crate::client::{self, ClientRequest, ServerClient};

#[derive(Args)]
pub struct HealthArgs {
    #[command(flatten)]
    admin: AdminArgs,
}

pub fn run(args: &HealthArgs) -> Exit {
    let answered = client::block_on(async {
        ServerClient::with_token(&args.admin.admin)?
            .fetch_json(ClientRequest::new(Method::GET, "/readyz"))
            .await
    });
    let answered = match answered {
        Ok(answered) => answered,
        Err(error) => return out::failed(&error),
    };
    let Some(status) = answered.body["status"].as_str().map(out::escape_control) else {
        out::message(format!(
            "error: {} does not answer like the admin address of a Tollgate",
            args.admin.admin
        ));
        return Exit::Failure;
    };
    if args.admin.json {
        out::pretty(&answered.body);
    } else {
        let reason = answered.body["reason"].as_str().map(out::escape_control);
        out::line(reason.map_or(status.clone(), |reason| format!("{status}: {reason}")));
    }
    if answered.status == 200 && status == "ready" { Exit::Success } else { Exit::Failure }
}
