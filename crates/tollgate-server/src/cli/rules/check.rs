//! `tollgate rules check FILE`: validates a configuration.

use std::path::Path;

use serde_json::json;
use tollgate::internal::document::Problems;

use crate::cli::progress::Progress;
use crate::cli::{Exit, input_file, out};
use crate::config::{IdleSetting, shown_file};
use crate::envoy::EnvoyLimits;

struct Checked {
    rules: usize,
    /// Settings that have no effect.
    without_effect: Vec<IdleSetting>,
    warnings: Vec<String>,
}

pub fn run(file: &Path, json: bool) -> Exit {
    let Checked { rules, without_effect: idle, warnings } = match check(file) {
        Ok(checked) => checked,
        Err(problems) if json => return out::json_problems(&problems),
        Err(problems) => return out::problems(&problems),
    };
    if json {
        let idle: Vec<_> =
            idle.iter().map(|setting| format!("{} without {}", setting.name, setting.lacks)).collect();
        out::pretty(&json!({ "valid": true, "rules": rules, "without_effect": idle, "warnings": warnings }));
    } else {
        out::line(format!("{}: valid, {}", shown_file(file), out::pluralize(rules as u64, "rule")));
        for setting in idle {
            out::message(format!("note: {setting}"));
        }
        out::warnings(warnings);
    }
    Exit::Success
}

fn check(file: &Path) -> Result<Checked, Problems> {
    let input = input_file::read(file)?;
    if input.is_list() {
        let (rules, warnings) = input.check_rules()?;
        return Ok(Checked { rules, without_effect: Vec::new(), warnings: warnings.into_lines() });
    }
    let _progress = Progress::start(format!("checking {}", input.name), None);
    let mut config = input.config(file)?;
    let policy = config.take_policy().map_err(|problems| problems.in_file(&input.name))?;
    EnvoyLimits::load(config.envoy.clone(), &config.settings)?;
    let warnings = policy.warnings().into_lines();
    Ok(Checked { rules: policy.rules().len(), without_effect: config.without_effect, warnings })
}
