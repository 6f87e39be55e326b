//! The scenarios on SQLite, and what only a file has.

use tollgate_stores::rules::{DbError, RulesDb};

use crate::servers::Folder;

fn start() -> Option<(String, Folder)> {
    let folder = Folder::new();
    Some((format!("sqlite:{}", folder.path("rules.db").display()), folder))
}

crate::stamp_all!(start());

#[tokio::test]
async fn a_file_of_a_later_program_is_refused() {
    let (address, folder) = start().expect("SQLite is always there");
    drop(RulesDb::open(&address, folder.root()).await.expect("a new file"));
    let connection = rusqlite::Connection::open(folder.path("rules.db")).expect("the file");
    connection.pragma_update(None, "user_version", 99).expect("it can be written");
    let refused = RulesDb::open(&address, folder.root()).await.expect_err("from the future");
    assert!(matches!(refused, DbError::Schema { found: 99, .. }), "{refused}");
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
