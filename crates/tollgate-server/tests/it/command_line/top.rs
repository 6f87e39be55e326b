//! `tollgate top`: what a node decides, once or live.

use std::io::Read;
use std::process::{Command, Stdio};

use tollgate_testkit::{binary, eventually};

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

/// What `top` has drawn on a terminal until SIGINT, and how it ended.
fn live(shell: &Shell, no_color: &str) -> (Option<i32>, String) {
    let program = binary();
    let program = program.get_program().to_str().expect("a plain path");
    let url = format!("http://{}", shell.0.admin);
    // The process id is that of `top`: the shell replaces itself.
    let command = format!("echo pid=$$; exec env NO_COLOR={no_color} {program} top --admin {url}");
    // `script` gives the command a terminal, and passes its exit code on.
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--flush", "--command", &command, "/dev/null"]);
    terminal.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut terminal = terminal.spawn().expect("script, of the package bsdutils");
    let mut output = terminal.stdout.take().expect("a pipe");
    let mut drawn = Vec::new();
    let mut piece = [0; 4096];
    let mut is_drawn = false;
    while let Ok(read @ 1..) = output.read(&mut piece) {
        drawn.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&drawn);
        if !is_drawn && text.contains("most denied first") {
            is_drawn = true;
            let process = text.split("pid=").nth(1).and_then(|rest| rest.lines().next()).expect("its id");
            let sent = Command::new("kill").args(["-s", "INT", process.trim()]).status();
            assert!(sent.expect("kill runs").success());
        }
    }
    let ended = terminal.wait().expect("it ends");
    (ended.code(), String::from_utf8_lossy(&drawn).into_owned())
}

#[test]
fn on_a_terminal_top_restores_the_screen_at_an_interrupt_and_obeys_no_color() {
    let shell = Shell::start();
    const BOLD: &str = "\u{1b}[1m";
    for (no_color, is_bold) in [("", true), ("1", false)] {
        let (code, drawn) = live(&shell, no_color);
        assert_eq!(code, Some(0), "{drawn:?}");
        let enter = drawn.find("\u{1b}[?1049h").unwrap_or_else(|| panic!("the alternate screen: {drawn:?}"));
        let leave = drawn.rfind("\u{1b}[?1049l").unwrap_or_else(|| panic!("the usual screen: {drawn:?}"));
        assert!(enter < leave && drawn.rfind("\u{1b}[?25h") > Some(enter), "{drawn:?}");
        assert!(!drawn[leave..].contains("most denied first"), "{drawn:?}");
        assert_eq!(drawn.contains(BOLD), is_bold, "NO_COLOR={no_color}: {drawn:?}");
    }
}
