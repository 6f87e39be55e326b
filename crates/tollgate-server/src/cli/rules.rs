//! `tollgate rules check FILE`: is this configuration valid?

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use crate::cli::{Exit, out};
use crate::config::Config;

#[derive(Subcommand)]
pub enum RulesCommand {
    /// Check a configuration file, and say all that is wrong with it
    Check {
        /// The configuration file
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(command: &RulesCommand) -> Exit {
    let RulesCommand::Check { file, json } = command;
    let checked = Config::load(file).and_then(|(mut config, _)| {
        let policy =
            config.take_policy().map_err(|problems| problems.in_file(&file.display().to_string()))?;
        Ok((policy.rules().len(), config.idle))
    });
    let (rules, idle) = match checked {
        Ok(checked) => checked,
        Err(problems) if *json => {
            let list: Vec<_> = problems
                .iter()
                .map(|problem| {
                    json!({
                        "file": problem.file(),
                        "line": problem.place().map(|place| place.line),
                        "column": problem.place().map(|place| place.column),
                        "path": problem.path(),
                        "message": problem.message(),
                    })
                })
                .collect();
            out::pretty(&json!({ "valid": false, "problems": list }));
            return Exit::InvalidConfiguration;
        }
        Err(problems) => return out::problems(&problems),
    };
    if *json {
        out::pretty(&json!({ "valid": true, "rules": rules, "without_effect": idle }));
    } else {
        out::line(format!(
            "{}: valid, {rules} {}",
            file.display(),
            if rules == 1 { "rule" } else { "rules" }
        ));
        for setting in idle {
            out::message(format!("note: {setting} has no effect in this version"));
        }
    }
    Exit::Yes
}
