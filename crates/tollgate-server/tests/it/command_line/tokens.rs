//! Tokens: from the environment or a file that it names, and what a role may do.

use tollgate_testkit::{CommandOutput, Folder, Server, binary, run};

use crate::command_line::{RULES, fails};

const TOKENS: &str =
    "read r-0123456789abcdef rita\noperate o-0123456789abcdef olga\nadmin a-0123456789abcdef anna\n";

fn guarded() -> Server {
    let folder = Folder::new();
    folder.write("tokens", TOKENS);
    folder.configure(&format!("tokens_file: tokens\n{RULES}"));
    Server::start_in(&folder)
}

fn with(server: &Server, variable: (&str, &str), args: &[&str]) -> CommandOutput {
    let url = format!("http://{}", server.admin);
    run(binary().args(args).args(["--admin", &url]).env(variable.0, variable.1))
}

#[test]
fn without_a_token_of_the_role_it_is_5() {
    let server = guarded();
    let rules = server.folder.write("rules.yaml", "[{ id: mine, limit: 5/m }]");
    let apply = ["rules", "apply", rules.to_str().expect("a plain path")];
    for (token, args, code) in [
        ("r-0123456789abcdef", &["rules", "ls"][..], 0),
        ("r-0123456789abcdef", &["ban", "add", "user:evil"], 5),
        ("o-0123456789abcdef", &["ban", "add", "user:evil"], 0),
        ("o-0123456789abcdef", &apply, 5),
        ("a-0123456789abcdef", &apply, 0),
        ("unknown-0123456789", &["rules", "ls"], 5),
    ] {
        let ran = with(&server, ("TOLLGATE_TOKEN", token), args);
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        assert!(!ran.stderr.contains(token), "{ran:?}");
    }
    fails(&with(&server, ("NOTHING", ""), &["rules", "ls"]), 5, &["send a token", "set TOLLGATE_TOKEN"]);
    let unknown = with(&server, ("TOLLGATE_TOKEN", "unknown-0123456789"), &["top", "--once", "--json"]);
    fails(&unknown, 5, &["the token is unknown; set TOLLGATE_TOKEN"]);
    let history = with(&server, ("TOLLGATE_TOKEN", "r-0123456789abcdef"), &["rules", "history", "mine"]);
    assert!(history.stdout.starts_with("version 0-2, by anna, at "), "{history:?}");
}

/// A refusal must arrive even if the server does not read the rest of a long body.
#[test]
fn a_long_import_without_the_role_is_5_too() {
    let server = guarded();
    let rules = format!("- {{ id: mine, limit: 5/m }}\n# {}\n", "x".repeat(50 << 20));
    let rules = server.folder.write("rules.yaml", rules);
    let apply = ["rules", "apply", rules.to_str().expect("a plain path")];
    fails(&with(&server, ("TOLLGATE_TOKEN", "r-0123456789abcdef"), &apply), 5, &["role"]);
}

#[test]
fn a_token_may_be_in_a_file() {
    let server = guarded();
    let file = server.folder.write("mine", "r-0123456789abcdef\n");
    let file = file.to_str().expect("a plain path");
    assert_eq!(with(&server, ("TOLLGATE_TOKEN_FILE", file), &["rules", "ls"]).code, Some(0));
    let missing = with(&server, ("TOLLGATE_TOKEN_FILE", "nowhere"), &["rules", "ls"]);
    fails(&missing, 2, &["TOLLGATE_TOKEN_FILE: nowhere", "No such file"]);
    let two = server.folder.write("two", TOKENS);
    let two = with(&server, ("TOLLGATE_TOKEN_FILE", two.to_str().expect("a plain path")), &["rules", "ls"]);
    fails(&two, 2, &["expected one token"]);
    assert!(!two.stderr.contains("0123456789"), "{two:?}");
}
