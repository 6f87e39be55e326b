//! `tollgate key`.

use serde_json::json;

use crate::command_line::{Shell, fails, json_of};

#[test]
fn keys_are_shown_and_reset() {
    let shell = Shell::start();
    for _ in 0..3 {
        shell.check(&["POST", "/login", "--email", "a+b@example.com"]);
    }
    let shown = shell.admin(&["key", "show", "login", "email:a%2Bb@example.com"]);
    assert_eq!(shown.code, Some(0));
    assert!(
        shown.stdout.starts_with("gcra 2/y: used 2, 0 left\ntries 3, denials 1, last seen "),
        "{shown:?}"
    );
    let json = json_of(&shell.admin(&["key", "show", "login", "email:a%2Bb@example.com", "--json"]));
    assert_eq!((&json["limits"][0]["used"], &json["tries"]), (&json!(2), &json!(3)));
    let reset = shell.admin(&["key", "reset", "login", "email:a%2Bb@example.com"]);
    assert!(reset.code == Some(0) && reset.stdout.starts_with("gcra 2/y: forgot 2"), "{reset:?}");
    let shown = shell.admin(&["key", "show", "login", "email:a%2Bb@example.com"]);
    assert!(shown.stdout.starts_with("gcra 2/y: used 0, 2 left\n"), "{shown:?}");
    shell.check(&["/counter"]);
    let counter = shell.admin(&["key", "show", "counter"]);
    assert_eq!(counter.stdout, "sliding-counter 9/y: used 1, 8 left, previous 0, current 1\n");
    fails(&shell.admin(&["key", "show", "nobody"]), 1, &["no rule 'nobody'"]);
    fails(&shell.admin(&["key", "show", "login"]), 1, &["use email:…"]);
}
