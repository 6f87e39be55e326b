//! `tollgate import envoy DIR`: prints rules that decide about as the files of another limiter do.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::{Exit, out, yaml};
use crate::envoy::config::{self, ConfigTexts};

#[derive(Subcommand)]
pub enum ImportCommand {
    /// Print the limits of envoyproxy/ratelimit's configuration as rules
    #[command(after_help = "Example:
  tollgate import envoy config/ > tollgate.yaml

The server also reads such a folder as it is: envoy_config. As rules, the limits may use any algorithm.")]
    Envoy(ImportArgs),
}

#[derive(Args)]
pub struct ImportArgs {
    /// The folder with its YAML files
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub fn run(command: &ImportCommand) -> Exit {
    let ImportCommand::Envoy(args) = command;
    let imported = match ConfigTexts::read(&args.folder).and_then(|texts| config::native_rules(&texts)) {
        Ok(imported) => imported,
        Err(problems) => return out::problems(&problems),
    };
    out::line("rules:");
    for line in imported.rules.iter().flat_map(yaml::item) {
        out::line(format!("  {line}"));
    }
    for note in imported.notes {
        out::message(format!("note: {note}"));
    }
    Exit::Success
}
