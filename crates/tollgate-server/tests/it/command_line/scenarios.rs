//! `tollgate rules test`: the example passes, and a failure is shown as a difference.

use std::path::Path;
use std::sync::Arc;

use tollgate_testkit::{Folder, tollgate};

use crate::command_line::{fails, json_of};

const RULES: &str = "rules: [{ id: api, key: user, limit: 2/m }]\n";

fn check(text: &str) -> (Arc<Folder>, String) {
    let folder = Folder::new();
    let path = folder.write("api.test.yaml", format!("{RULES}{text}"));
    (folder, path.to_str().expect("a plain path").to_owned())
}

#[test]
fn the_example_passes() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rules-test/login.test.yaml");
    let ran = tollgate(&["rules", "test", example.to_str().expect("a plain path")]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.stdout.ends_with("4 tests, 0 failed\n"), "{ran:?}");
}

#[test]
fn a_failure_is_a_difference_with_its_line_and_time() {
    let (folder, file) = check(
        "tests:
  - name: three a minute <all>
    steps:
      - { send: { user: ann } }
      - wait: 10s
      - { send: { user: ann }, times: 2, expect: { allowed: true, remaining: 1 } }
  - name: this one is right
    steps: [{ send: GET /, expect: allowed }]
",
    );
    let junit = folder.path("junit.xml");
    let ran = tollgate(&["rules", "test", &file, "--junit", junit.to_str().expect("a plain path")]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{ran:?}");
    let expected = "FAILED  three a minute <all>
        line 7, request 1 of 2, 10s after the start:
        - remaining: 1
        + remaining: 0
ok      this one is right
2 tests, 1 failed
";
    assert_eq!(ran.stdout, expected);
    let xml = std::fs::read_to_string(junit).expect("the results were written");
    assert!(xml.contains("tests=\"2\" failures=\"1\""), "{xml}");
    assert!(xml.contains("name=\"three a minute &lt;all&gt;\""), "{xml}");
    let ran = tollgate(&["rules", "test", &file, "--json"]);
    let report = json_of(&ran);
    assert_eq!(
        (ran.code, &report["failed"], &report["tests"][0]["failure"]["line"]),
        (Some(1), &1.into(), &7.into())
    );
    let ran = tollgate(&["rules", "test", &file, "--only", "right"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "ok      this one is right\n1 test, 0 failed\n"));
    assert_eq!(tollgate(&["rules", "test", &file, "--only", "nothing"]).code, Some(1));
}

#[test]
fn an_invalid_file_is_rejected_with_its_lines() {
    for (text, words) in [
        ("tests: [{ name: a, steps: [{ sent: / }] }]", vec!["either `send` or `wait`", "sent"]),
        (
            "tests: [{ name: a, steps: [{ send: { ip: x } }] }]",
            vec!["'ip' is not an IP address", "api.test.yaml:2"],
        ),
        (
            "tests: [{ name: a, steps: [{ send: /, expect: { code: 429 } }] }]",
            vec!["unknown field", "retry_after_ms"],
        ),
        ("tests: [{ name: a, steps: [{ wait: soon }] }]", vec!["a duration such as 12s"]),
        ("tests: [{ name: a, steps: [{ send: /, times: 0 }] }]", vec!["from 1 to"]),
        ("start: soon\ntests: []", vec!["a timestamp"]),
        ("config: a.yaml\ntests: []", vec!["rules of its own"]),
        ("test: []", vec!["tests"]),
    ] {
        let (_folder, file) = check(text);
        fails(&tollgate(&["rules", "test", &file]), 3, &words);
    }
    let folder = Folder::new();
    let file = folder.write("none.yaml", "tests: [{ name: a, steps: [] }]");
    let ran = tollgate(&["rules", "test", file.to_str().expect("a plain path")]);
    fails(&ran, 3, &["names no rules"]);
}
