//! The scenarios on SQLite, and what only a file has.

use std::sync::Arc;

use tollgate_stores::rules::{ChangeFeed, DbError, Edit, ItemId, Precondition, RuleText, RulesDb, Version};
use tollgate_testkit::Folder;

use crate::rules_db::scenario::author;

fn start() -> Option<(String, Arc<Folder>)> {
    let folder = Folder::new();
    Some((format!("sqlite:{}", folder.path("rules.db").display()), folder))
}

crate::rules_db::stamp_all!(start());

#[tokio::test]
async fn a_file_of_a_later_program_is_refused() {
    let (address, folder) = start().expect("SQLite is always there");
    drop(RulesDb::open(&address, folder.root()).await.expect("a new file"));
    let connection = rusqlite::Connection::open(folder.path("rules.db")).expect("the file");
    connection.pragma_update(None, "user_version", 99).expect("it can be written");
    let refused = RulesDb::open(&address, folder.root()).await.expect_err("from the future");
    assert!(matches!(refused, DbError::UnsupportedSchema { found: 99, .. }), "{refused}");
}

#[tokio::test]
async fn a_path_is_relative_to_its_folder_and_only_its_owner_may_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    RulesDb::open("sqlite:rules.db", folder.root()).await.expect("a new file");
    let mode = std::fs::metadata(folder.path("rules.db")).expect("the file is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for address in ["rules.db", "sqlite:", "mysql://a/b"] {
        let refused = RulesDb::open(address, folder.root()).await.expect_err(address);
        assert!(refused.to_string().contains("write sqlite:PATH or postgres://"), "{refused}");
    }
}

/// The first schema had the text of a rule in the log as well.
#[tokio::test]
async fn a_file_of_the_first_schema_is_brought_up_to_date_with_its_past() {
    let (address, folder) = start().expect("SQLite is always there");
    let old = rusqlite::Connection::open(folder.path("rules.db")).expect("a file");
    old.execute_batch(
        r#"CREATE TABLE rule (id TEXT PRIMARY KEY, v INTEGER NOT NULL, uid TEXT, method TEXT, url TEXT,
               unit TEXT, requests INTEGER, algorithm TEXT, options TEXT) WITHOUT ROWID;
           CREATE TABLE thing (kind INTEGER NOT NULL, name TEXT NOT NULL, v INTEGER NOT NULL, until INTEGER,
               body TEXT NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID;
           CREATE INDEX thing_until ON thing (until) WHERE until IS NOT NULL;
           CREATE TABLE author (first INTEGER PRIMARY KEY, who TEXT NOT NULL, at INTEGER NOT NULL, undoes INTEGER);
           CREATE TABLE log (v INTEGER PRIMARY KEY, kind INTEGER NOT NULL, name TEXT NOT NULL, previous INTEGER,
               body TEXT);
           INSERT INTO author VALUES (1, 'ann', 0, NULL);
           INSERT INTO log VALUES (1, 0, 'a', NULL, '{"id":"a","url":"GET /a","time":"minute","requests":5}');
           INSERT INTO log VALUES (2, 0, 'b', NULL, '{"id":"b","limit":"5/m"}');
           INSERT INTO log VALUES (3, 0, 'a', 1, '{"id":"a","url":"GET /a","time":"minute","requests":6}');
           INSERT INTO log VALUES (4, 0, 'b', 2, NULL);
           INSERT INTO log VALUES (5, 2, 'user:42', NULL, 'a note');
           INSERT INTO rule VALUES ('a', 3, NULL, 'GET', '/a', 'minute', 6, NULL, NULL);
           INSERT INTO thing VALUES (2, 'user:42', 5, NULL, 'a note');
           PRAGMA user_version = 1;"#,
    )
    .expect("the tables of the first schema");
    drop(old);
    let db = RulesDb::open(&address, folder.root()).await.expect("it can be brought up to date");
    let rule =
        |requests| Some(format!(r#"{{"id":"a","url":"GET /a","time":"minute","requests":{requests}}}"#));
    let gone = Some(r#"{"id":"b","limit":"5/m"}"#.to_owned());
    let note = Some("a note".to_owned());
    let log = db.log(None, 10).await.expect("the log");
    let logged_texts: Vec<_> =
        log.into_iter().rev().map(|logged| (logged.before, logged.change.text)).collect();
    assert_eq!(
        logged_texts,
        [
            (None, rule(5)),
            (None, gone.clone()),
            (rule(5), rule(6)),
            (gone.clone(), None),
            (None, note.clone())
        ]
    );
    let Ok(ChangeFeed::Changes(changes)) = db.changes_since(Version::ZERO, 10).await else {
        panic!("changes")
    };
    let texts: Vec<_> = changes.into_iter().map(|change| change.text).collect();
    assert_eq!(texts, [rule(5), gone, rule(6), None, note]);
    db.rollback(author("bob"), Version::new(0, 3)).await.expect("a change can be taken back");
    assert_eq!(db.get(ItemId::rule("a")).await.expect("it can be read").map(|stored| stored.text), rule(5));
}

/// What the file has for a rule beside its row: its id and a few bytes.
#[tokio::test]
async fn a_rule_is_on_the_disk_once() {
    let (address, folder) = start().expect("SQLite is always there");
    let db = RulesDb::open(&address, folder.root()).await.expect("a new file");
    let path = "a".repeat(200);
    let edits = (0..20_000).map(move |n| {
        let text = format!(r#"{{"id":"rule-{n:06}","url":"GET /{path}","time":"minute","requests":5}}"#);
        let rule = RuleText::parse(&text).map_err(|problems| DbError::Corrupt(problems.to_string()))?;
        Ok(Edit::rule(rule, Precondition::Absent))
    });
    let edited = db.edit_all(author("ann"), edits).await.expect("they are written");
    assert_eq!(
        (edited.created, edited.edits(), edited.version),
        (20_000, 20_000, Some(Version::new(0, 20_000)))
    );
    let bytes = std::fs::metadata(folder.path("rules.db")).expect("the file is there").len() / 20_000;
    // 297 were measured; with the text twice it would be 500.
    assert!(bytes <= 310, "{bytes} bytes a rule, 201 of them its path");
    let wal = std::fs::metadata(folder.path("rules.db-wal")).map_or(0, |file| file.len());
    assert!(wal <= 1 << 20, "{wal} bytes of the write-ahead log are left");
}
