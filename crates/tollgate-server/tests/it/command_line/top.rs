//! `tollgate top`: what a node decides, once or live.

use tollgate_testkit::eventually;

use crate::command_line::{Shell, fails, json_of};

#[test]
fn top_names_the_key_that_is_denied() {
    let shell = Shell::start();
    for _ in 0..5 {
        shell.check(&["POST", "/login", "--email", "ann@example.com"]);
    }
    let view = || json_of(&shell.admin(&["top", "--once", "--json"]));
    eventually("the denials are counted", || view()["keys"][0]["count"] == 3);
    let view = view();
    assert_eq!((&view["keys"][0]["rule"], &view["enforce"]), (&"login".into(), &"on".into()), "{view}");
    let text = shell.done(&["top", "--window", "5m"]);
    assert!(text.contains("login") && text.contains("most denied first within 5m"), "{text}");
    assert!(!text.contains('\u{1b}'), "no terminal, no control characters: {text:?}");
    fails(&shell.admin(&["top", "--outcome", "all"]), 2, &["denied, allowed, near"]);
}
