//! `tollgate init`: writes a commented configuration file. Never replaces one.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::{Exit, out};

const TEMPLATE: &str = include_str!("init/tollgate.yaml");
const FILE_NAME: &str = "tollgate.yaml";
/// The line of the template that `--state-dir` replaces.
const STATE_DIR: &str = "state_dir: .\n";

#[derive(Args)]
pub struct InitArgs {
    /// The file, or a folder in which it will be tollgate.yaml; - prints it
    #[arg(value_name = "DIR|FILE", default_value = FILE_NAME)]
    path: PathBuf,
    /// Where counters, bans and rules are saved
    #[arg(long, value_name = "DIR", default_value = ".")]
    state_dir: String,
}

pub fn run(args: &InitArgs) -> Exit {
    let text = template(&args.state_dir);
    if args.path.as_os_str() == "-" {
        return out::written(out::file(text.as_bytes()));
    }
    let path = file_at(&args.path);
    let shown = path.display();
    let error = match write_new(&path, &text) {
        Ok(()) => {
            out::line(format!("wrote {shown}: edit it, then run tollgate serve -c {shown}"));
            return Exit::Success;
        }
        Err(error) => error,
    };
    out::message(match error.kind() {
        io::ErrorKind::AlreadyExists => {
            format!("error: {shown} exists and is not replaced: name another file, or remove it first")
        }
        _ => format!("error: {shown} cannot be written: {error}"),
    });
    Exit::Failure
}

fn template(state_dir: &str) -> String {
    let quoted = serde_json::Value::from(state_dir).to_string();
    let line = if state_dir == "." { STATE_DIR.to_owned() } else { format!("state_dir: {quoted}\n") };
    TEMPLATE.replacen(STATE_DIR, &line, 1)
}

/// A folder, also one that is only written like a folder, gets the usual file name.
fn file_at(path: &Path) -> PathBuf {
    let ends_with_slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    if ends_with_slash || path.is_dir() { path.join(FILE_NAME) } else { path.to_owned() }
}

/// Writes a file that must not exist, a symlink to nowhere included. A file that could not be written is removed.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).inspect_err(|_| {
        std::fs::remove_file(path).ok();
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_template_is_a_valid_configuration() {
        for folder in [".", "/var/lib/tollgate", "with 'quotes\" and: colons"] {
            let config = Config::parse(&template(folder), Path::new("/etc/tollgate"));
            let config = config.unwrap_or_else(|problems| panic!("{folder}: {problems}"));
            assert_eq!(config.state_dir, Path::new("/etc/tollgate").join(folder));
            assert_eq!(config.policy.rules.len(), 1);
        }
    }

    /// A comment that is a setting begins with `# name:` or `#   name:`; prose does not.
    #[test]
    fn the_template_is_valid_with_every_setting_that_is_commented_out() {
        let is_setting = |line: &str| {
            let text = line.trim_start().trim_start_matches('#').trim_start().trim_start_matches("- ");
            text.split_once(':').is_some_and(|(name, rest)| {
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
                    && (rest.is_empty() || rest.starts_with(' '))
            })
        };
        let switch_on = |line: &str| match line.find("# ") {
            Some(at) if line[..at].trim().is_empty() && is_setting(line) => {
                format!("{}{}\n", &line[..at], &line[at + 2..])
            }
            _ => format!("{line}\n"),
        };
        let all: String = TEMPLATE.lines().map(switch_on).collect();
        let config =
            Config::parse(&all, Path::new("")).unwrap_or_else(|problems| panic!("{problems}: {all}"));
        assert_eq!(config.policy.rules.len(), 3, "{all}");
        assert!(config.proxy.is_some() && config.store.is_some() && config.rules_db.is_some());
        assert!(config.tokens_file.is_some() && !config.allow.is_empty());
        assert!(config.without_effect.is_empty(), "{:?}", config.without_effect);
    }
}
