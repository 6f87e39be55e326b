//! The command line: raw arguments in, an exit code out. Data goes to stdout, messages to stderr.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use hyper::Method;
use serde_json::Value;

use crate::client::{self, Answered};

mod ban;
mod check;
mod demo;
mod key;
mod out;
mod proxy;
mod queue;
mod rules;
mod serve;
mod store;

/// What the caller's shell is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Yes, allowed, done.
    Yes = 0,
    /// No, denied, failed.
    No = 1,
    Usage = 2,
    InvalidConfiguration = 3,
    Unreachable = 4,
    Unauthorised = 5,
}

/// A rate limiter: rules, bans and decisions, in front of an API or beside it.
#[derive(Parser)]
#[command(name = "tollgate", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server
    Serve {
        /// The configuration file
        #[arg(short, long, value_name = "FILE", default_value = "tollgate.yaml")]
        config: PathBuf,
    },
    /// Put a limit in front of an API, without a configuration file
    Proxy(proxy::ProxyArgs),
    /// See it work: a small API with limits, and a few requests against it
    Demo {
        /// Exit when the requests have been answered as they should
        #[arg(long)]
        once: bool,
    },
    /// Ask a running server for a decision: exits 0 if allowed, 1 if denied
    Check(check::CheckArgs),
    /// Look at rules
    #[command(subcommand)]
    Rules(rules::RulesCommand),
    /// Ban keys, and lift bans
    #[command(subcommand)]
    Ban(ban::BanCommand),
    /// Look at requests that were put aside, and decide what becomes of them
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    /// Look at what a key has used, and reset it
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Set up the store that counters are kept in
    #[command(subcommand)]
    Store(store::StoreCommand),
}

/// Where the admin API is, and how its answers are shown. A token is read from TOLLGATE_TOKEN.
#[derive(Args)]
struct AdminArgs {
    /// The admin address of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7070")]
    admin: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl AdminArgs {
    /// One call to the admin API; a refusal or a failure is said, and becomes the exit code.
    fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Answered, Exit> {
        let answered = client::block_on(client::call_admin(method, &self.admin, path, body));
        match answered {
            Ok(answered) if answered.status < 300 => Ok(answered),
            Ok(refused) => Err(out::refused(&refused)),
            Err(error) => Err(out::unreachable(&error)),
        }
    }
}

pub fn run() -> ExitCode {
    let exit = match Cli::try_parse() {
        Ok(cli) => dispatch(cli.command),
        Err(error) => {
            error.print().ok();
            if error.use_stderr() { Exit::Usage } else { Exit::Yes }
        }
    };
    ExitCode::from(exit as u8)
}

fn dispatch(command: Command) -> Exit {
    match command {
        Command::Serve { config } => serve::run(&config),
        Command::Proxy(args) => proxy::run(&args),
        Command::Demo { once } => demo::run(once),
        Command::Check(args) => check::run(&args),
        Command::Rules(command) => rules::run(&command),
        Command::Ban(command) => ban::run(&command),
        Command::Queue(command) => queue::run(&command),
        Command::Key(command) => key::run(&command),
        Command::Store(command) => store::run(&command),
    }
}
