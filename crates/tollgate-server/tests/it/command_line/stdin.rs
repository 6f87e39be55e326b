//! `-` reads stdin, for every command that reads a file.

use std::fs::File;
use std::process::Stdio;

use tollgate_testkit::{Folder, binary, run};

use crate::command_line::{Shell, fails};

const RULES: &str = "- { id: one, match: /one, limit: 5/m }\n";
const CONFIG: &str = "rules_db: none\nlisten: { http: 127.0.0.1:0, grpc: off, resp: off, admin: 127.0.0.1:0 }\nrules: [{ id: one, match: /one, key: ip, limit: 5/m }]\n";
const LOG: &str = "192.0.2.1 - - [01/Jan/2026:00:00:00 +0000] \"GET /one HTTP/1.1\" 200 1 \"-\" \"curl\"\n";
const SCENARIO: &str = "rules: [{ id: api, key: user, limit: 2/m }]\ntests: [{ name: first, steps: [{ send: { user: ann }, expect: allowed }] }]\n";

#[test]
fn every_command_reads_stdin_for_a_dash() {
    let shell = Shell::start();
    let admin = format!("http://{}", shell.0.admin);
    let folder = Folder::new();
    folder.write("tollgate.yaml", CONFIG);
    folder.write("access.log", LOG);
    let counters = "counters: redis://127.0.0.1:1\n";
    for (command, input, code, printed) in [
        ("ban import - --admin ADMIN", "ip:203.0.113.9 7d scraping\n", 0, "1 "),
        ("rules check -", CONFIG, 0, "stdin: valid, 1 rule"),
        ("rules diff - --admin ADMIN", RULES, 1, "+ one"),
        ("rules apply - --admin ADMIN", RULES, 0, "1 created"),
        ("rules test -", SCENARIO, 0, "1 test, 0 failed"),
        ("simulate - -c tollgate.yaml", LOG, 0, "1 request"),
        ("simulate access.log -c -", CONFIG, 0, "1 request"),
        ("suggest -", LOG, 0, "1 request"),
        ("verify - -c tollgate.yaml", "", 0, ""),
        ("config check -", CONFIG, 0, "stdin is valid"),
        ("doctor -c -", CONFIG, 0, "stdin is valid"),
        ("store init -c -", counters, 0, "redis://127.0.0.1:1 needs no tables"),
    ] {
        let words: Vec<String> = command.split(' ').map(|word| word.replace("ADMIN", &admin)).collect();
        let given = folder.write("input", input);
        let given = File::open(given).expect("it was written");
        let ran = run(binary().args(&words).current_dir(folder.root()).stdin(Stdio::from(given)));
        assert_eq!(ran.code, Some(code), "{command}: {ran:?}");
        assert!(ran.stdout.contains(printed), "{command}: {ran:?}");
        assert!(!ran.stderr.contains("'-'") && !ran.stderr.contains("No such file"), "{command}: {ran:?}");
    }
}

/// What a node has logged is proven with its configuration from stdin, and the other way round.
#[test]
fn verify_reads_its_log_or_its_configuration_from_stdin() {
    let folder = Folder::new();
    folder.write("tollgate.yaml", CONFIG);
    folder.write("empty.ndjson", "");
    for (words, input) in
        [(["verify", "-", "-c", "tollgate.yaml"], ""), (["verify", "empty.ndjson", "-c", "-"], CONFIG)]
    {
        let input = File::open(folder.write("input", input)).expect("it was written");
        let ran = run(binary().args(words).current_dir(folder.root()).stdin(Stdio::from(input)));
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{words:?}: {ran:?}");
    }
    let wrong = File::open(folder.write("input", "rules: [{ id: a, limit: x }]")).expect("it was written");
    let ran = run(binary()
        .args(["verify", "empty.ndjson", "-c", "-"])
        .current_dir(folder.root())
        .stdin(Stdio::from(wrong)));
    fails(&ran, 3, &["stdin:1:"]);
}
