//! The command line: what it prints where, and how it ends.

mod bans;
mod checks;
mod configuration;
mod demo;
mod files;
mod history;
mod imports;
mod keys;
mod lists;
mod live_requests;
mod rules;
mod scenarios;
mod setup;
mod simulate;
mod stdin;
mod tokens;
mod top;
mod usage;

use serde_json::Value;
use tollgate_testkit::{CommandOutput, Server, tollgate};

const RULES: &str = "rules:
  - { id: login, match: POST /login, key: email, limit: 2/y, track: true }
  - { id: plan, match: /plan, key: 'attr:plan', limit: 9/y }
  - { id: api, match: /api, key: [api_key, 'header:x-a'], limit: 9/y }
  - { id: counter, match: /counter, limit: 9/y, algorithm: sliding-counter }
";

fn json_of(ran: &CommandOutput) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// Ended with `code`, with nothing but `words` on stderr; the data goes to stdout.
fn fails(ran: &CommandOutput, code: i32, words: &[&str]) {
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{ran:?}");
    for word in words {
        assert!(ran.stderr.contains(word), "'{word}': {ran:?}");
    }
}

/// The commands, against one server.
struct Shell(Server);

impl Shell {
    fn start() -> Shell {
        Shell(Server::start(RULES))
    }

    fn check(&self, args: &[&str]) -> CommandOutput {
        let url = format!("http://{}", self.0.http);
        tollgate(&[&["check", "--http", &url], args].concat())
    }

    /// What a command prints, which must succeed.
    fn done(&self, args: &[&str]) -> String {
        let ran = self.admin(args);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stdout
    }

    /// A file of the test, as an argument.
    fn file(&self, name: &str, text: &str) -> String {
        self.0.folder.write(name, text).to_str().expect("a plain path").to_owned()
    }

    /// A rule of the database.
    fn put(&self, rule: &Value) {
        let path = format!("/v1/rules/{}", rule["id"].as_str().expect("an id"));
        let answer = self.0.admin("PUT", &path, rule.to_string());
        assert!(answer.status < 300, "{answer}");
    }

    fn admin(&self, args: &[&str]) -> CommandOutput {
        let url = format!("http://{}", self.0.admin);
        tollgate(&[args, &["--admin", &url]].concat())
    }
}
