//! `tollgate check`.

use serde_json::json;

use crate::command_line::{Shell, fails, json_of};

#[test]
fn a_check_is_0_when_allowed_and_1_when_denied() {
    let shell = Shell::start();
    let login = ["POST", "/login", "--email", "ann@example.com"];
    let ran = shell.check(&login);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "allowed: 1 left of 2/y (rule login)\n"),
        "{ran:?}"
    );
    let quoted = shell.check(&["POST /login", "--email", "ann@example.com"]);
    assert_eq!((quoted.code, quoted.stdout.as_str()), (Some(0), "allowed: 0 left of 2/y (rule login)\n"));
    let denied = shell.check(&login);
    assert_eq!(denied.code, Some(1));
    assert!(denied.stdout.starts_with("denied: Too many requests: rule login allows 2/y, try again in "));
    let json = shell.check(&[&login[..], &["--json"]].concat());
    assert_eq!((json.code, &json_of(&json)["allowed"]), (Some(1), &json!(false)));
    assert_eq!(shell.check(&["/nothing"]).stdout, "allowed: no rule applies\n");
    let bad = shell.check(&["/x", "--ip", "300.1.1.1"]);
    fails(&bad, 1, &["'ip' is not an IP address: 300.1.1.1"]);
}

#[test]
fn a_check_accepts_every_attribute_of_a_request() {
    let shell = Shell::start();
    let plan = shell.check(&["/plan", "--attribute", "plan=pro", "--cost", "4", "--json"]);
    assert_eq!(json_of(&plan)["remaining"], 5);
    let peek = shell.check(&["/plan", "--attribute", "plan=pro", "--peek", "--json"]);
    assert_eq!(json_of(&peek)["remaining"], 5);
    let api = shell.check(&[
        "GET",
        "/api",
        "--api-key",
        "k",
        "--header",
        "X-A=b=c",
        "--host",
        "example.com",
        "--json",
    ]);
    assert_eq!(json_of(&api)["rule"], "api", "{api:?}");
    assert_eq!(shell.0.used("api", "api_key:k+header:x-a:b=c"), [1]);
}
