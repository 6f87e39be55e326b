//! `tollgate`: the rate limiter as a server and on the command line.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    tollgate_server::run()
}
