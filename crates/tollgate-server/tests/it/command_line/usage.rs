//! Help, wrong usage, and servers that are not there.

use tollgate_testkit::{Folder, Server, binary, run, tollgate};

use crate::command_line::fails;

/// The commands of a help text, with what stands above them.
fn commands_of(above: &[String]) -> Vec<Vec<String>> {
    let mut args: Vec<_> = above.iter().map(String::as_str).collect();
    args.push("--help");
    let help = tollgate(&args).stdout;
    let listed =
        help.split("Commands:\n").nth(1).unwrap_or_default().split("\n\n").next().unwrap_or_default();
    let names = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    let names = names.filter(|name| *name != "help" && *name != "[aliases:");
    names.map(|name| above.iter().cloned().chain([name.to_owned()]).collect()).collect()
}

#[test]
fn help_and_version_go_to_stdout_and_are_a_success() {
    let mut all = vec![Vec::new()];
    let mut next = 0;
    while next < all.len() {
        let below = commands_of(&all[next]);
        all.extend(below);
        next += 1;
    }
    assert!(all.len() > 35, "{all:?}");
    for above in &all {
        let args: Vec<_> = above.iter().map(String::as_str).chain(["--help"]).collect();
        let ran = tollgate(&args);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        assert!(ran.stdout.contains("Usage: tollgate"), "{ran:?}");
        let undescribed =
            ran.stdout.lines().find(|line| line.trim_start().starts_with('-') && line.ends_with("  "));
        assert_eq!(undescribed, None, "every option is described: {above:?}");
        let is_leaf = !ran.stdout.contains("Commands:\n");
        assert!(!is_leaf || ran.stdout.contains("Example"), "{above:?} has no example");
    }
    assert_eq!(tollgate(&["help", "ban", "add"]).code, Some(0));
    let version = tollgate(&["--version"]);
    assert_eq!(version.stdout.trim(), concat!("tollgate ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_usage_is_2_and_is_explained_on_stderr() {
    fails(&tollgate(&[]), 2, &["Usage: tollgate <COMMAND>"]);
    fails(&tollgate(&["serv"]), 2, &["unrecognized subcommand 'serv'", "serve"]);
    fails(&tollgate(&["serve", "--colour"]), 2, &["--colour"]);
    fails(&tollgate(&["check", "--cost", "many"]), 2, &["--cost", "many"]);
    fails(&tollgate(&["check", "--header", "no-value"]), 2, &["NAME=VALUE"]);
    fails(&tollgate(&["check", "--http", "127.0.0.1:8080"]), 2, &["127.0.0.1:8080", "http://HOST:PORT"]);
    fails(
        &tollgate(&["ban", "add", "user:a", "--for", "1h", "--until", "2126-01-01T00:00:00Z"]),
        2,
        &["--until"],
    );
    fails(&tollgate(&["ban", "add"]), 2, &["<KEY>"]);
}

/// A regression: no rule matched a path without its slash, and the request was allowed.
#[test]
fn a_request_whose_path_is_not_one_is_2() {
    for command in ["check", "explain"] {
        for target in [&["POST", "login"][..], &["login", "POST"], &["GET http://example.com/login"]] {
            let ran = tollgate(&[&[command][..], target].concat());
            fails(&ran, 2, &["is not a path: write [METHOD] /PATH, such as POST /login"]);
        }
    }
    fails(&tollgate(&["check", "POST"]), 2, &["'POST' is not a path"]);
}

#[test]
fn a_command_that_calls_another_listener_names_its_own() {
    let server = Server::start("rules: []");
    let url = |address: std::net::SocketAddr| format!("http://{address}");
    let [http, admin] = [url(server.http), url(server.admin)];
    fails(&tollgate(&["rules", "ls", "--admin", &http]), 1, &["is this the address of listen.admin?"]);
    fails(&tollgate(&["top", "--once", "--admin", &http]), 1, &["is this the address of listen.admin?"]);
    fails(&tollgate(&["check", "/x", "--http", &admin]), 1, &["is this the address of listen.http?"]);
    fails(&tollgate(&["rules", "show", "no", "--admin", &admin]), 1, &["error: no rule 'no'\n"]);
}

#[test]
fn a_missing_configuration_is_3_and_names_the_command_that_writes_one() {
    let folder = Folder::new();
    for (args, shown) in [(&["serve"][..], "tollgate.yaml"), (&["serve", "-c", "mine.yaml"], "mine.yaml")] {
        let ran = run(binary().current_dir(folder.root()).args(args));
        fails(&ran, 3, &[shown, "No such file", "`tollgate init` writes a first one, -c names another"]);
    }
    let checked = run(binary().current_dir(folder.root()).args(["config", "check"]));
    assert!(checked.stdout.contains("fix: `tollgate init` writes a first one"), "{checked:?}");
}

#[test]
fn an_unreachable_server_is_4() {
    let url = "http://127.0.0.1:1";
    fails(&tollgate(&["check", "--http", url, "/x"]), 4, &[url, "is the server running?"]);
    fails(&tollgate(&["ban", "ls", "--admin", url]), 4, &[url]);
    fails(&tollgate(&["key", "show", "a", "--admin", url]), 4, &[url]);
}
