//! Tollgate's listeners beside their rivals, with real connections: requests per second at saturation, and the server's
//! processor time per request.
//!
//!     bench/wire/run [--quick] [--strict] [PART…]
//!
//! Every server is pinned to one processor, the load generator to another. Contestants take turns in rounds; medians are
//! printed. `wire-bench serve NAME PORT` is one of the contestants that are part of this program.

use std::process::ExitCode;

mod axum_server;
mod floor;
mod grpc_load;
mod load;
mod part;
mod process;
mod request;
mod score;

use part::{Effort, Part};

/// Of the servers, and of the load generator with everything else.
const SERVER_CPU: usize = 0;
const LOAD_CPU: usize = 1;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [serve, name, port] = args.as_slice()
        && serve == "serve"
    {
        serve_contestant(name, port.parse().expect("a port"));
        return ExitCode::FAILURE;
    }
    let mut effort = Effort::FULL;
    let mut is_strict = false;
    let mut parts = Vec::new();
    for arg in &args {
        match arg.as_str() {
            "--quick" => effort = Effort::QUICK,
            "--strict" => is_strict = true,
            name => match Part::ALL.into_iter().find(|part| part.name() == name) {
                Some(part) => parts.push(part),
                None => {
                    eprintln!(
                        "usage: bench/wire/run [--quick] [--strict] [resp] [pipeline] [http] [grpc] [streams] [strict] [strict-grpc] [proxy]"
                    );
                    return ExitCode::from(2);
                }
            },
        }
    }
    if parts.is_empty() {
        parts = Part::ALL.to_vec();
    }
    if let Err(error) = process::pin(LOAD_CPU) {
        eprintln!("the load generator cannot be pinned to processor {LOAD_CPU}: {error}");
        return ExitCode::FAILURE;
    }
    let missed: usize = parts.iter().map(|part| score::print(*part, &part.run(effort))).sum();
    if is_strict && missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn serve_contestant(name: &str, port: u16) {
    match name {
        "floor-resp" => floor::serve(port, floor::Protocol::Resp),
        "floor-http" => floor::serve(port, floor::Protocol::Http),
        "axum" => axum_server::serve_constant(port),
        "limitador" => axum_server::serve_limitador(port),
        _ => eprintln!("not a contestant: {name}"),
    }
}
