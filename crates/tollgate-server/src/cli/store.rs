//! `tollgate store`: the central store of the counters.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use tollgate_stores::counters::cassandra;
use tollgate_stores::counters::central::CentralAddress;

use crate::cli::{Exit, out};
use crate::client;
use crate::config::Config;

#[derive(Subcommand)]
pub enum StoreCommand {
    /// Create the tables that a store needs; existing ones stay unchanged
    #[command(after_help = "Example:
  tollgate store init -c tollgate.yaml")]
    Init {
        /// The configuration file
        #[arg(short, long, value_name = "FILE", default_value = "tollgate.yaml")]
        config: PathBuf,
    },
}

pub fn run(command: &StoreCommand) -> Exit {
    let StoreCommand::Init { config } = command;
    init(config)
}

fn init(path: &Path) -> Exit {
    let config = match Config::load(path) {
        Ok((config, _)) => config,
        Err(problems) => return out::problems(&problems),
    };
    let Some(store) = config.store else {
        out::line("counters are kept in memory: there is nothing to create");
        return Exit::Success;
    };
    let CentralAddress::Cassandra(address) = &store.address else {
        out::line(format!("{} needs no tables", store.name));
        return Exit::Success;
    };
    match client::block_on(cassandra::init(address)) {
        Ok(()) => {
            out::line(format!("{} is ready", store.name));
            Exit::Success
        }
        Err(error) => {
            out::message(format!("error: {error}"));
            Exit::Unreachable
        }
    }
}
