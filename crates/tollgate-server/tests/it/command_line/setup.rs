//! Commands around an installation: a first configuration, completions, manual pages, health, and systemd.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use tollgate_testkit::{Folder, SOON, Server, binary, eventually, find, free_port, not_run, run, tollgate};

use crate::command_line::{Shell, fails};

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn init_writes_a_file_that_the_server_accepts_and_never_replaces_one() {
    let folder = Folder::new();
    let path = folder.path("tollgate.yaml");
    let ran = run(binary().current_dir(folder.root()).arg("init"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.stdout.contains("tollgate serve -c tollgate.yaml"), "{ran:?}");
    let checked = tollgate(&["rules", "check", text(&path)]);
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""), "{checked:?}");
    assert!(checked.stdout.contains("valid, 1 rule"), "{checked:?}");

    fs::write(&path, "mine").expect("the file can be edited");
    for name in [text(&path), text(folder.root())] {
        fails(&tollgate(&["init", name]), 1, &["exists and is not replaced"]);
    }
    assert_eq!(fs::read_to_string(&path).expect("the file"), "mine");
    let dangling = folder.path("link.yaml");
    symlink(folder.path("elsewhere"), &dangling).expect("a link");
    fails(&tollgate(&["init", text(&dangling)]), 1, &["exists"]);
    assert!(!folder.path("elsewhere").exists());
    fails(&tollgate(&["init", text(&folder.path("missing/a.yaml"))]), 1, &["missing/a.yaml", "No such file"]);
    fails(
        &tollgate(&["init", &format!("{}/", text(&folder.path("missing")))]),
        1,
        &["missing/tollgate.yaml"],
    );
}

#[test]
fn init_prints_what_it_would_write() {
    let ran = tollgate(&["init", "-", "--state-dir", "/var/lib/tollgate"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.stdout.contains("\nstate_dir: \"/var/lib/tollgate\"\n"), "{ran:?}");
}

/// Runs a script in a shell, after the completions of `tollgate`; the script prints what is completed.
fn completed(shell: &str, script: &str) -> Option<String> {
    let program = find(shell);
    if program.is_none() {
        not_run(&format!("completions of {shell}"), &format!("no {shell}"));
    }
    let folder = Folder::new();
    let printed = tollgate(&["completions", shell]);
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""), "{printed:?}");
    let file = folder.write("completions", printed.stdout);
    let ran = run(Command::new(program?)
        .env("HOME", folder.root())
        .env("COMPLETIONS", file)
        .args(["-c", script])
        .current_dir(folder.root()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    Some(ran.stdout)
}

#[test]
fn bash_completes_commands_and_options() {
    let complete = "source $COMPLETIONS
        complete -p tollgate
        COMP_WORDS=(tollgate rules app) COMP_CWORD=2; _tollgate tollgate app rules; echo ${COMPREPLY[*]}
        COMP_WORDS=(tollgate serve --co) COMP_CWORD=2; _tollgate tollgate --co serve; echo ${COMPREPLY[*]}";
    let Some(found) = completed("bash", complete) else { return };
    assert!(found.ends_with("\napply\n--config\n"), "{found}");
}

#[test]
fn zsh_loads_the_completions() {
    let complete = "autoload -U compinit; compinit -u -D; source $COMPLETIONS
        print ${_comps[tollgate]}; whence -w _tollgate";
    let Some(found) = completed("zsh", complete) else { return };
    assert_eq!(found, "_tollgate\n_tollgate: function\n");
}

/// Keys are typed in a terminal of its own, because zsh completes nothing outside its line editor.
#[test]
fn zsh_completes_commands_and_options() {
    let complete = r#"zmodload zsh/zpty
        ( sleep 60; kill $$ ) >/dev/null 2>&1 &
        watchdog=$!
        zpty shell zsh -f -i
        zpty -w shell "PROMPT=; unsetopt zle_bracketed_paste; autoload -U compinit; compinit -u -D; source $COMPLETIONS
            bindkey '^I' complete-word; print READY"
        zpty -r shell seen $'*READY\r\n*'
        zpty -w -n shell $'tollgate rules app\t'
        zpty -r shell seen '*apply*'
        print "a command"
        zpty -w -n shell $'\x15tollgate serve --conf\t'
        zpty -r shell seen '*--config*'
        print "an option"
        zpty -d shell
        kill $watchdog"#;
    let Some(found) = completed("zsh", complete) else { return };
    assert_eq!(found, "a command\nan option\n");
}

#[test]
fn fish_completes_commands() {
    let Some(found) = completed("fish", "source $COMPLETIONS; complete -C 'tollgate rules app'") else {
        return;
    };
    assert!(found.starts_with("apply\t"), "{found}");
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = Folder::new();
    let pages = folder.path("missing/man1");
    for _ in 0..2 {
        let ran = tollgate(&["man", text(&pages)]);
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "", ""), "{ran:?}");
    }
    let count = fs::read_dir(&pages).expect("the folder is created").count();
    assert!(count > 35, "{count}");
    let page = fs::read_to_string(pages.join("tollgate-rules-apply.1")).expect("the page");
    assert!(page.contains("tollgate\\-rules\\-apply") && page.contains("\\-\\-dry\\-run"), "{page}");
    let first = fs::read_to_string(pages.join("tollgate.1")).expect("the page");
    assert_eq!(tollgate(&["man"]).stdout, first);
    fails(&tollgate(&["man", text(&folder.write("file", ""))]), 1, &["/file: "]);
}

#[test]
fn health_is_an_exit_code() {
    let shell = Shell::start();
    assert_eq!(shell.done(&["health"]), "ready\n");
    let json = shell.admin(&["health", "--json"]);
    assert!(json.code == Some(0) && json.stdout.contains("\"ready\""), "{json:?}");
    let other = format!("http://{}", shell.0.http);
    fails(&tollgate(&["health", "--admin", &other]), 1, &["admin address"]);
    fails(&tollgate(&["health", "--admin", "http://127.0.0.1:1"]), 4, &["is the server running?"]);
}

#[test]
fn a_server_that_waits_for_its_rules_is_not_healthy() {
    let folder = Folder::new();
    folder.configure(&format!("rules_db: postgres://nobody@127.0.0.1:{}/none\n", free_port()));
    let server = Server::start_admin_in(&folder);
    let ran = tollgate(&["health", "--admin", &format!("http://{}", server.admin)]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stdout.starts_with("waiting for the rules database"), "{ran:?}");
}

#[test]
fn systemd_learns_when_the_server_is_ready_and_when_it_stops() {
    let folder = Folder::new();
    let socket = UnixDatagram::bind(folder.path("notify")).expect("a socket");
    socket.set_read_timeout(Some(SOON)).expect("a timeout");
    let config = folder.configure("rules_db: none\n");
    let mut command = binary();
    command.env("NOTIFY_SOCKET", folder.path("notify")).arg("serve").arg("-c").arg(config);
    let server = Server::run(&folder, &mut command);
    let received = || {
        let mut message = [0; 64];
        let length = socket.recv(&mut message).expect("a message in time");
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    assert_eq!(received(), "READY=1");
    assert_eq!(server.admin("GET", "/readyz", "").status, 200);
    server.stop();
    assert_eq!(received(), "STOPPING=1");
}

#[test]
fn a_notification_that_cannot_be_sent_is_only_logged() {
    let folder = Folder::new();
    let config = folder.configure("rules_db: none\n");
    let mut command = binary();
    command.env("NOTIFY_SOCKET", folder.path("missing")).arg("serve").arg("-c").arg(config);
    let server = Server::run(&folder, &mut command);
    eventually("a warning", || server.log().contains("systemd cannot be notified of READY=1"));
    assert_eq!(server.admin("GET", "/readyz", "").status, 200);
}
