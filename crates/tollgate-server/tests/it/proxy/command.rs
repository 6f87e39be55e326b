//! `tollgate proxy`: no file is needed.

use tollgate_testkit::{Folder, Server, binary, tollgate};

use crate::proxy::api::Api;
use crate::proxy::get;

#[test]
fn a_limit_in_front_of_an_api_is_one_command() {
    let api = Api::echo();
    let mut command = binary();
    command.args(["proxy", "--to", &api.url(), "--limit", "2/h", "--listen", "127.0.0.1:0"]);
    let server = Server::run(&Folder::new(), &mut command);
    let statuses = [(); 4].map(|()| get(&server, "/", &[]).status);
    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(api.received().len(), 2);
}

#[test]
fn each_client_has_its_own_limit_by_the_given_key() {
    let api = Api::echo();
    let mut command = binary();
    let to = api.url();
    command.args([
        "proxy",
        "--to",
        &to,
        "--limit",
        "1/h",
        "--key",
        "header:x-user",
        "--listen",
        "127.0.0.1:0",
    ]);
    let server = Server::run(&Folder::new(), &mut command);
    let send = |user| get(&server, "/", &[("x-user", user)]).status;
    assert_eq!([send("ann"), send("bob"), send("ann")], [200, 200, 429]);
}

#[test]
fn bad_arguments_are_reported_without_line_numbers() {
    for (args, words) in [
        (vec!["--to", "127.0.0.1:3000", "--limit", "5/s"], "error: --to: "),
        (vec!["--to", "http://127.0.0.1:3000", "--limit", "5/fortnight"], "error: --limit: unknown unit"),
        (vec!["--to", "http://127.0.0.1:3000", "--limit", "5/s", "--key", "nose"], "error: --key: "),
        (vec!["--to", "http://127.0.0.1:3000", "--limit", "5/s", "--listen", "here"], "error: --listen: "),
        (vec!["--limit", "5/s"], "--to"),
    ] {
        let ran = tollgate(&[&["proxy"][..], &args].concat());
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
}
