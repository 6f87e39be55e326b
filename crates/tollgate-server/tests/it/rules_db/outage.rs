//! The database out of reach: the last good rules stay in force, and health reports it.

use tollgate_testkit::eventually;

use crate::rules_db::editor::{Editor, in_force};
use crate::rules_db::fleet::{nodes, pair};
use crate::rules_db::local_copy::{allowed, health};

#[test]
fn the_last_good_rules_stay_in_force_while_servers_stop_start_and_change_roles() {
    let Some((mut primary, mut standby, address)) = pair("outages of primary and standby") else { return };
    let editor = Editor::open(&address, "".as_ref());
    editor.put("a", "limit: 3/d");
    let nodes = nodes(&address, 1);
    let node = &nodes[0];
    assert_eq!(allowed(node, "before"), 3);
    standby.stop();
    assert_eq!(allowed(node, "without standby"), 3);
    editor.put("b", "match: /b, limit: 1/d");
    eventually("changes come from the primary", || in_force(node).len() == 2);
    primary.stop();
    eventually("the trouble is reported", || {
        let report = health(node);
        report["status"] == "impaired" && report["rules_db"]["trouble"].is_string()
    });
    assert!(node.admin("GET", "/metrics", "").text().contains("tollgate_rules_db_up 0\n"));
    assert_eq!((allowed(node, "without both"), in_force(node).len()), (3, 2));
    standby.restart();
    eventually("a standby can be read", || health(node)["rules_db"]["trouble"].is_null());
    standby.promote();
    eventually("the promoted one can be written", || {
        editor.try_edit(vec![crate::rules_db::editor::rule("c", "match: /c, limit: 1/d")]).is_ok()
    });
    // What the standby had not got before the primary was lost is lost with it; the nodes agree with the database.
    eventually("its changes are in force", || in_force(node).into_keys().eq(["a", "c"]));
    assert!(editor.rules().into_keys().eq(["a", "c"]));
}
