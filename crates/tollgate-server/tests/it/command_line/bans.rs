//! `tollgate ban`.

use crate::command_line::{Shell, fails, json_of};

#[test]
fn bans_are_added_listed_and_lifted() {
    let shell = Shell::start();
    let none = shell.admin(&["ban", "ls"]);
    assert_eq!((none.stdout.as_str(), none.stderr.as_str()), ("", "no bans\n"));
    let added = shell.admin(&["ban", "add", "ip:203.0.113.0/24", "--for", "2h", "--reason", "no good"]);
    assert_eq!(added.code, Some(0));
    assert!(added.stdout.starts_with("banned ip:203.0.113.0/24  until "), "{added:?}");
    assert_eq!(shell.check(&["/x", "--ip", "203.0.113.9"]).code, Some(1));
    let until =
        shell.admin(&["ban", "add", "user:a%2Bb+ip:1.2.3.4", "--until", "2126-01-01T00:00:00Z", "--json"]);
    assert_eq!(json_of(&until)["key"], "ip:1.2.3.4+user:a%2Bb");
    let listed = shell.admin(&["ban", "ls"]);
    let lines: Vec<_> = listed.stdout.lines().collect();
    assert!(lines.len() == 3 && lines[0].starts_with("KEY "), "{listed:?}");
    assert!(lines[1].starts_with("ip:1.2.3.4+user:a%2Bb  2126-01-01T00:00:00Z      manual  -"), "{listed:?}");
    assert!(lines[2].starts_with("ip:203.0.113.0/24 ") && lines[2].ends_with("  no good"), "{listed:?}");
    assert!(shell.admin(&["ban", "ls", "--limit", "1"]).stdout.lines().count() == 2);
    assert_eq!(json_of(&shell.admin(&["ban", "ls", "--json"]))["bans"].as_array().map(Vec::len), Some(2));
    let lifted = shell.admin(&["ban", "rm", "ip:1.2.3.4+user:a%2Bb"]);
    assert!(
        lifted.code == Some(0) && lifted.stdout.starts_with("lifted ip:1.2.3.4+user:a%2Bb"),
        "{lifted:?}"
    );
    assert_eq!(shell.admin(&["ban", "rm", "ip:203.0.113.0/24", "--json"]).code, Some(0));
    fails(&shell.admin(&["ban", "rm", "ip:203.0.113.0/24"]), 1, &["ip:203.0.113.0/24 is not banned"]);
    fails(&shell.admin(&["ban", "add", "colour:red"]), 1, &["unknown attribute 'colour'"]);
    fails(&shell.admin(&["ban", "add", "user:a", "--for", "soon"]), 1, &["'soon'", "1h"]);
}
