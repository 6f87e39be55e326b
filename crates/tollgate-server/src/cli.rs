//! The command line: raw arguments in, an exit code out. Data goes to stdout, messages to stderr.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use hyper::Method;
use serde_json::Value;
use tollgate::internal::document::Problems;

use crate::cli::session::Session;
use crate::client::ClientResponse;

pub mod access_log;
mod allow;
mod audit;
mod ban;
mod bound_socket;
mod check;
mod completions;
mod config_file;
mod demo;
mod doctor;
mod egress;
mod enforce;
mod explain;
mod finding;
mod health;
mod import;
mod init;
mod input_file;
mod key;
mod listing;
mod man;
mod out;
mod overrides;
mod png;
mod progress;
mod proxy;
mod queue;
mod replay_settlement;
mod request_args;
mod rules;
mod serve;
mod session;
pub mod simulate;
mod startup_check;
mod status;
mod store;
pub mod suggest;
#[allow(dead_code)] // the plots of the documentation draw more
mod svg;
mod table;
mod top;
mod value_diff;
mod verify;
mod yaml;

/// Exit codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Yes, allowed, done.
    Success = 0,
    /// No, denied, failed.
    Failure = 1,
    Usage = 2,
    InvalidConfiguration = 3,
    Unreachable = 4,
    Unauthorised = 5,
}

/// A rate limiter: rules, bans and decisions, in front of an API or beside it.
#[derive(Parser)]
#[command(
    name = "tollgate",
    version,
    max_term_width = 100,
    after_help = "Commands that talk to a server send the token in TOLLGATE_TOKEN, or the one in the file that
TOLLGATE_TOKEN_FILE names. Exit codes: 0 yes, 1 no or failed, 2 wrong usage, 3 invalid configuration,
4 no server, 5 not authorised."
)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Run the server
    #[command(after_help = "Example:
  tollgate serve -c tollgate.yaml")]
    Serve {
        /// The configuration file; `-` reads it from stdin, once
        #[arg(short, long, value_name = "FILE", default_value = "tollgate.yaml")]
        config: PathBuf,
    },
    /// Put a limit in front of an API, without a configuration file
    #[command(after_help = "Example:
  tollgate proxy --to http://127.0.0.1:3000 --limit 5/s")]
    Proxy(proxy::ProxyArgs),
    /// Keep one's own calls to an API under its limits: a local gateway to that API
    #[command(after_help = "Example:
  tollgate egress --to https://api.example.com --limit 100/m

Programs then call http://127.0.0.1:8001 instead of https://api.example.com. Requests wait for their turn, at
most --max-wait; later ones are answered with 429 and Retry-After. What the API says about its limits
(RateLimit, X-RateLimit-*, Retry-After) is learned, so --limit may be left out.")]
    Egress(egress::EgressArgs),
    /// Run a small API with limits, and send a few requests to it
    #[command(after_help = "Example:
  tollgate demo --once")]
    Demo {
        /// Exit when the responses are as expected
        #[arg(long)]
        once: bool,
    },
    /// Write a commented configuration file
    #[command(after_help = "Examples:
  tollgate init                    # tollgate.yaml in this folder
  tollgate init /etc/tollgate --state-dir /var/lib/tollgate")]
    Init(init::InitArgs),
    /// Print the limits of another limiter's configuration as rules
    #[command(subcommand)]
    Import(import::ImportCommand),
    /// Check a configuration as the server would open it, and print its schema
    #[command(subcommand)]
    Config(config_file::ConfigCommand),
    /// Look for what keeps a node from working well: ports, limits, permissions, clocks; each with its fix
    #[command(after_help = "Example:
  tollgate doctor -c /etc/tollgate/tollgate.yaml

Run it as the user of the server. Exits 0, 3 if the server would not start, 4 if a store or a database does not
answer.")]
    Doctor(doctor::DoctorArgs),
    /// Query the decision API of a running server: exits 0 if allowed, 1 if denied
    #[command(after_help = "Example:
  tollgate check POST /login --email ann@example.com")]
    Check(check::CheckArgs),
    /// Tell why a request was denied, by its ticket; or what is decided about a request, and why
    #[command(after_help = "Examples:
  tollgate explain AYlj8Q…                             # the `ticket` of /v1/check, or the `instance` of a 429
  curl -s https://api.example.com/ | tollgate explain -
  tollgate explain POST /login --email ann@example.com

Nothing is charged. A ticket is explained by any node with the receipt_key_file of the node that denied the request;
without one, by that node. Exits 0, 1 if the ticket is not valid.")]
    #[command(mut_arg("target", |target| target
        .value_name("TICKET|TARGET")
        .help("A ticket, - to read it or the response from standard input, or a request: [METHOD ]PATH")))]
    Explain(explain::ExplainArgs),
    /// Replay an access log under a configuration: what would be denied, and to whom
    #[command(after_help = "Examples:
  tollgate simulate access.log -c new.yaml
  tollgate simulate access.log -c new.yaml --compare tollgate.yaml --max-denied 1%
  zcat access.log.gz | tollgate simulate - -c new.yaml --json
  tollgate simulate --live -c new.yaml

Reads the common and combined formats, the JSON of Caddy, Traefik and nginx, and CSV with a header line. Without
--live no server is contacted. Exits 0, 1 if --max-denied is exceeded, 2 if the log cannot be read, 3 if a configuration is invalid.")]
    Simulate(simulate::SimulateArgs),
    /// Show the limits that an access log or live requests suggest, and the clients that each would catch
    #[command(after_help = "Examples:
  tollgate suggest access.log
  tollgate suggest access.log --by user --window 1h --match 'POST /login'
  tollgate suggest --live --by ip --window 1m

A limit spares a client if the client's requests never exceeded it. Reads the same logs as `tollgate simulate`.")]
    Suggest(suggest::SuggestArgs),
    /// Recompute from a decision log that no limit was ever exceeded
    #[command(after_help = "Example:
  tollgate verify decisions.ndjson -c tollgate.yaml

The log is written with `decision_log: { to: decisions.ndjson, sample: all }`. Each algorithm is checked by its
definition, not by the code that decides. Several logs of a node may be given together; keys of different nodes
are checked separately. Exits 0, 1 if a limit was exceeded or the log does not prove that none was, 2 if a log cannot
be read, 3 if the configuration is invalid.")]
    Verify(verify::VerifyArgs),
    /// Show and change rules
    #[command(subcommand)]
    Rules(rules::RulesCommand),
    /// Ban keys, and lift bans
    #[command(subcommand)]
    Ban(ban::BanCommand),
    /// Manage the list of keys that always pass
    #[command(subcommand)]
    Allow(allow::AllowCommand),
    /// Give single keys of a rule limits of their own
    #[command(subcommand)]
    Override(overrides::OverrideCommand),
    /// Show or switch whether rules and bans are enforced, on all nodes at once
    #[command(after_help = "Examples:
  tollgate enforce            # show the current setting
  tollgate enforce shadow     # nothing is denied any more; decisions are still counted
  tollgate enforce on")]
    Enforce(enforce::EnforceArgs),
    /// Show who changed rules, bans, the allow list and the panic switch, and when
    #[command(after_help = "Examples:
  tollgate audit --limit 5
  tollgate audit --item ban:ip:203.0.113.9

`tollgate rules rollback VERSION` reverts one change.")]
    Audit(audit::AuditArgs),
    /// List, retry and drop queued requests
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    /// Show what a key has used, and reset it
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Set up the central store of the counters
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Show whether a server is ready: exits 0 if it is, 1 if not yet, 4 if there is none
    #[command(after_help = "Example:
  tollgate health --admin http://127.0.0.1:7070")]
    Health(health::HealthArgs),
    /// Show what a running server says about its rules, store and state: exits 0 if all is well, 1 if not
    #[command(after_help = "Example:
  tollgate status --admin http://127.0.0.1:7070")]
    Status(status::StatusArgs),
    /// Watch what a node decides: rates, the most active rules, and the keys that are denied most
    #[command(after_help = "Examples:
  tollgate top
  tollgate top --outcome near --window 5m --rule login
  tollgate top --scope fleet
  tollgate top --once --json

The view is renewed every second until Ctrl-C. A count of `30 -2` means 28 to 30. With --json a line is printed every
second. NO_COLOR switches the emphasis off.")]
    Top(top::TopArgs),
    /// Print the completion script of a shell
    #[command(after_help = "Examples:
  tollgate completions bash > /etc/bash_completion.d/tollgate
  tollgate completions zsh > /usr/local/share/zsh/site-functions/_tollgate
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish")]
    Completions(completions::CompletionsArgs),
    /// Print or write the manual pages
    #[command(after_help = "Examples:
  tollgate man | man -l -
  tollgate man /usr/local/share/man/man1")]
    Man(man::ManArgs),
}

/// The address of the admin API, and the output format.
#[derive(Args)]
struct AdminArgs {
    /// The admin address of the server
    #[arg(
        long,
        value_name = "URL",
        env = "TOLLGATE_ADMIN",
        hide_env_values = true,
        default_value = "http://127.0.0.1:7070"
    )]
    admin: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl AdminArgs {
    /// One call to the admin API; an error response or a failure is printed, and becomes the exit code.
    fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<ClientResponse, Exit> {
        Session::open(self)?.call(method, path, body)
    }

    /// One call to the admin API; prints the response as JSON or as text.
    fn print(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        described: impl FnOnce(&Value) -> String,
    ) -> Result<(), Exit> {
        let answered = self.call(method, path, body)?.body;
        if self.json {
            out::pretty(&answered);
        } else {
            out::line(described(&answered));
        }
        Ok(())
    }

    /// Prints why a file is invalid.
    fn invalid(&self, problems: &Problems) -> Exit {
        if self.json { out::json_problems(problems) } else { out::problems(problems) }
    }
}

pub fn run() -> ExitCode {
    let exit = match Cli::try_parse() {
        Ok(cli) => dispatch(cli.command),
        Err(error) => {
            error.print().ok();
            if error.use_stderr() { Exit::Usage } else { Exit::Success }
        }
    };
    ExitCode::from(exit as u8)
}

fn dispatch(command: CliCommand) -> Exit {
    match command {
        CliCommand::Serve { config } => serve::run(&config),
        CliCommand::Proxy(args) => proxy::run(&args),
        CliCommand::Egress(args) => egress::run(&args),
        CliCommand::Demo { once } => demo::run(once),
        CliCommand::Init(args) => init::run(&args),
        CliCommand::Import(command) => import::run(&command),
        CliCommand::Config(command) => config_file::run(&command),
        CliCommand::Doctor(args) => doctor::run(&args),
        CliCommand::Check(args) => check::run(&args),
        CliCommand::Explain(args) => explain::run(&args),
        CliCommand::Simulate(args) => simulate::run(&args),
        CliCommand::Suggest(args) => suggest::run(&args),
        CliCommand::Verify(args) => verify::run(&args),
        CliCommand::Rules(command) => rules::run(&command),
        CliCommand::Ban(command) => ban::run(&command),
        CliCommand::Allow(command) => allow::run(&command),
        CliCommand::Override(command) => overrides::run(&command),
        CliCommand::Enforce(args) => enforce::run(&args),
        CliCommand::Audit(args) => audit::run(&args),
        CliCommand::Queue(command) => queue::run(&command),
        CliCommand::Key(command) => key::run(&command),
        CliCommand::Store(command) => store::run(&command),
        CliCommand::Health(args) => health::run(&args),
        CliCommand::Status(args) => status::run(&args),
        CliCommand::Top(args) => top::run(&args),
        CliCommand::Completions(args) => completions::run(&args),
        CliCommand::Man(args) => man::run(&args),
    }
}
