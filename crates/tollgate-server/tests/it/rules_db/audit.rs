//! How long the log of changes is kept, and what nodes do that are further behind.

use std::sync::Arc;
use std::time::Duration;

use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::identity::Key;
use tollgate_stores::rules::{Author, Edit, Precondition};
use tollgate_testkit::servers::postgres::Postgres;
use tollgate_testkit::{Folder, Server, eventually};

use crate::rules_db::editor::{Editor, in_force, now, rule};

const HOUR: Duration = Duration::from_secs(3_600);

fn node(address: &str, audit: &str) -> (Arc<Folder>, Server) {
    let folder = Folder::new();
    folder.configure(&format!("rules_db: {address}\nrules: []\naudit: {audit}"));
    let node = Server::start_in(&folder);
    (folder, node)
}

fn bans(source: BanSource, users: std::ops::Range<usize>) -> Vec<Edit> {
    let until = now() + 24 * HOUR;
    let ban = Ban { until, reason: "test".into(), source, strikes: 1 };
    let key = |n: usize| Key::parse(&format!("user:{n}")).expect("a valid key");
    users.map(|n| Edit::ban(&key(n), &ban, Precondition::Any)).collect()
}

fn is_reached(node: &Server, version: &str) -> bool {
    node.admin("GET", "/healthz", "").json()["rules_db"]["version"] == version
}

/// One node keeps an hour of the log, and prunes more than two batches; another one, which keeps 90 days, stands still
/// meanwhile.
fn check(address: &str, folder: &std::path::Path) {
    let editor = Editor::open(address, folder);
    let two_hours_ago = now() - 2 * HOUR;
    let lately = now();
    editor.edit_as(Author::AUTOMATIC, now() - 192 * HOUR, bans(BanSource::Automatic, 1_200..1_201));
    let first = editor.edit_as("test", two_hours_ago, vec![rule("a", "limit: 3/d")]);
    let (_kept, behind) = node(address, "{ keep: 90d, automatic_bans: 7d }");
    assert!(is_reached(&behind, &first[0].version.to_string()));
    // From then on it writes nothing: frozen in a transaction, it would stop the others.
    eventually("it has removed what is too old for it", || editor.log(10).len() == 1);
    behind.freeze();
    editor.edit_as("test", two_hours_ago, vec![rule("b", "limit: 4/d")]);
    editor.edit_as("test", two_hours_ago, bans(BanSource::Manual, 0..1_200));
    let last = editor.edit_as("test", lately, vec![rule("c", "limit: 5/d")]);

    let (_folder, pruning) = node(address, "{ keep: 1h, automatic_bans: 1h }");
    eventually("the log is pruned", || editor.log(10).len() == 1);
    assert_eq!(editor.log(10)[0].change.version, last[0].version);
    assert_eq!(in_force(&pruning).len(), 3);
    editor.put("d", "limit: 6/d");
    eventually("the feed goes on", || in_force(&pruning).len() == 4);

    behind.thaw();
    eventually("a node that is further behind reads everything", || in_force(&behind).len() == 4);
    behind.wait_for_log("reading everything");
    assert_eq!(behind.admin("GET", "/v1/bans?limit=1", "").json()["total"], 1_201);
    let last = editor.put("e", "limit: 7/d")[0].version.to_string();
    eventually("both follow", || is_reached(&behind, &last) && is_reached(&pruning, &last));
    assert!(!pruning.log().contains("reading everything"), "{}", pruning.log());
}

#[test]
fn an_old_log_is_pruned_while_nodes_run_on_postgres() {
    let Some(primary) = Postgres::start("the retention of the log") else { return };
    check(&primary.url(), "".as_ref());
}

#[test]
fn an_old_log_is_pruned_while_nodes_run_on_sqlite() {
    let folder = Folder::new();
    check(&format!("sqlite:{}", folder.path("shared.db").display()), "".as_ref());
}

#[test]
fn automatic_bans_leave_the_log_after_a_day_and_bans_by_hand_stay() {
    let folder = Folder::new();
    let address = format!("sqlite:{}", folder.path("shared.db").display());
    let editor = Editor::open(&address, "".as_ref());
    let long_ago = now() - 25 * HOUR;
    editor.edit_as(Author::AUTOMATIC, long_ago, bans(BanSource::Automatic, 0..1_200));
    editor.edit_as("ann", long_ago, bans(BanSource::Manual, 1_200..1_201));
    editor.edit_as(Author::AUTOMATIC, now() - 23 * HOUR, bans(BanSource::Automatic, 1_201..1_203));
    let (_folder, node) = node(&address, "{}");
    eventually("the log is pruned", || editor.log(1_300).len() == 3);
    assert_eq!(editor.log(10)[2].author, "ann");
    assert_eq!(node.admin("GET", "/v1/bans?limit=1", "").json()["total"], 1_203, "they stay in force");
    let last = editor.put("a", "limit: 7/d")[0].version.to_string();
    eventually("it follows", || is_reached(&node, &last));
}

#[test]
fn a_retention_that_is_too_short_or_misspelt_is_rejected() {
    let folder = Folder::new();
    let config = folder.configure("audit: { keep: 10m, automatic_bans: soon, kep: 1d }");
    let ran = tollgate_testkit::tollgate(&["serve", "-c", config.to_str().expect("a path")]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("audit.keep") && ran.stderr.contains("at least 1h"), "{}", ran.stderr);
    assert!(ran.stderr.contains("audit.automatic_bans"), "{}", ran.stderr);
    // Regression: a misspelt key of this map was ignored.
    assert!(ran.stderr.contains("audit: unknown key 'kep'"), "{}", ran.stderr);
}
