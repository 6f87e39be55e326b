//! Change sets and the row of a ramp.

use tollgate::Time;
use tollgate_stores::rules::{
    ChangeLogEntry, ChangeSet, DbError, Edit, EditSummary, ItemId, OnConflict, Precondition, RampRow,
    RampWrite, RulesDb,
};

use super::scenario::{author, follow, loaded, open, rule, same_state, text_of};

async fn import(db: &RulesDb, edits: Vec<Edit>) -> EditSummary {
    db.edit_all(author("ann"), edits.into_iter().map(Ok)).await.expect("an import")
}

fn put(id: &str, requests: u64) -> Edit {
    Edit::rule(rule(id, requests), Precondition::Any)
}

async fn latest(db: &RulesDb) -> ChangeLogEntry {
    db.log_of_sets(None, 1).await.expect("the log").pop().expect("an entry")
}

async fn latest_set(db: &RulesDb) -> ChangeSet {
    latest(db).await.set.expect("a set")
}

pub async fn an_import_is_one_change_that_one_rollback_reverts(address: &str) {
    let db = open(address).await;
    for id in ["a", "b", "same"] {
        db.edit(author("ann"), vec![put(id, 1)]).await.expect("a rule");
    }
    let before = loaded(&db).await;
    let delete = Edit::delete(ItemId::rule("b"), Precondition::Any);
    let edited = import(&db, vec![put("a", 2), put("c", 2), put("same", 1), delete]).await;
    assert_eq!((edited.created, edited.changed, edited.deleted, edited.unchanged), (1, 1, 1, 1));
    let listed = db.log_of_sets(None, 10).await.expect("the log");
    assert_eq!(listed.len(), 4, "three rules and the import: {listed:?}");
    let set = listed[0].set.expect("the import is a set");
    assert_eq!((Some(set.last), set.changes()), (edited.version, 3));
    assert_eq!(
        db.log_of_sets(Some(set.last), 10).await.expect("the log").len(),
        3,
        "it is not before itself"
    );
    let always = [Time::from_secs(0), Time::from_nanos(u64::MAX)];
    assert_eq!(db.calls(always[0], always[1], 10).await.expect("the calls"), listed);
    assert_eq!(db.calls(always[0], always[1], 2).await.expect("the calls"), listed[..2]);
    let at = listed[0].at;
    let before_all = Time::from_nanos(listed[3].at.nanos() - 1);
    assert!(db.calls(at, at, 10).await.expect("the calls").contains(&listed[0]));
    assert_eq!(db.calls(always[0], before_all, 10).await.expect("the calls"), []);
    let names: Vec<_> = db.entries_of(set, None, 10).await.expect("its entries");
    let names: Vec<_> = names.iter().map(|entry| &*entry.change.item.name).collect();
    assert_eq!(names, ["a", "c", "b"]);

    let preview = db.preview_rollback_set(set).await.expect("a preview");
    let by = author("bob").with_note("the wrong file");
    let reverted = db.rollback_set(by, set, OnConflict::Refuse, None).await.expect("a rollback");
    assert_eq!(preview, reverted, "the preview says what happens");
    assert_eq!((reverted.summary.created, reverted.summary.changed, reverted.summary.deleted), (1, 1, 1));
    let state = |mirror: &super::mirror::Mirror| -> Vec<(ItemId, String)> {
        let mut live: Vec<_> = mirror.live().map(|(item, _, text)| (item.clone(), text.to_owned())).collect();
        live.sort();
        live
    };
    assert_eq!(state(&loaded(&db).await), state(&before));
    let mut followed = before;
    follow(&db, &mut followed).await;
    same_state(&followed, &loaded(&db).await);

    let again = db.rollback_set(author("bob"), set, OnConflict::Refuse, None).await;
    assert!(matches!(again, Err(DbError::NothingToRevert(version)) if version == set.last), "{again:?}");
    let entry = latest(&db).await;
    assert_eq!((entry.author.as_str(), entry.note.as_deref()), ("bob", Some("the wrong file")));
    assert_eq!(entry.undoes, Some(set.last));
    let undone = entry.set.expect("a rollback is a set itself");
    db.rollback_set(author("ann"), undone, OnConflict::Refuse, None).await.expect("a rollback of it");
    assert_eq!(text_of(&db, "b").await, None);
    assert_eq!(text_of(&db, "c").await.as_deref(), Some(rule("c", 2).as_str()));
}

pub async fn an_import_in_several_batches_is_reverted_whole(address: &str) {
    const RULES: usize = 25_000;
    let db = open(address).await;
    db.edit(author("ann"), vec![put("r00007", 9)]).await.expect("a rule");
    import(&db, (0..RULES).map(|n| put(&format!("r{n:05}"), 1)).collect()).await;
    let listed = db.log_of_sets(None, 10).await.expect("the log");
    assert_eq!(listed.len(), 2, "one rule and one import");
    let set = latest_set(&db).await;
    assert_eq!((set.created, set.changed), (RULES as u64 - 1, 1));
    let reverted = db.rollback_set(author("ann"), set, OnConflict::Refuse, None).await.expect("a rollback");
    assert_eq!((reverted.summary.deleted, reverted.summary.changed), (RULES - 1, 1));
    let left = loaded(&db).await;
    let left: Vec<_> = left.live().map(|(item, _, text)| (&*item.name, text)).collect();
    assert_eq!(left, [("r00007", rule("r00007", 9).as_str())]);
}

pub async fn a_set_is_reverted_only_if_nothing_of_it_has_changed_since(address: &str) {
    let db = open(address).await;
    import(&db, vec![put("a", 1), put("b", 1), put("c", 1)]).await;
    let set = latest_set(&db).await;
    db.edit(author("bob"), vec![put("b", 2)]).await.expect("an edit");
    db.edit(author("bob"), vec![Edit::delete(ItemId::rule("c"), Precondition::Any)])
        .await
        .expect("a deletion");
    let refused =
        db.rollback_set(author("ann"), set, OnConflict::Refuse, None).await.expect_err("b has changed");
    assert!(
        matches!(&refused, DbError::ChangedSince { item, .. } if *item == ItemId::rule("b")),
        "{refused}"
    );
    assert!(text_of(&db, "a").await.is_some(), "nothing was reverted");
    let reverted = db.rollback_set(author("ann"), set, OnConflict::Skip, None).await.expect("the others are");
    assert_eq!((reverted.skipped, reverted.summary.deleted), (1, 1), "c is as it was before");
    assert_eq!((text_of(&db, "a").await, text_of(&db, "b").await.is_some()), (None, true));
}

pub async fn a_set_that_is_partly_pruned_is_not_reverted(address: &str) {
    let db = open(address).await;
    import(&db, vec![put("a", 1), put("b", 1), put("c", 1)]).await;
    let set = latest_set(&db).await;
    let later = tollgate_stores::rules::Author::new("ann", Time::from_secs(1_900_000_000));
    db.edit(later, vec![put("d", 1)]).await.expect("an edit");
    assert_eq!(db.prune_log(Time::from_secs(1_850_000_000), 1).await.expect("pruned"), 1);
    let refused =
        db.rollback_set(author("ann"), set, OnConflict::Skip, None).await.expect_err("a is forgotten");
    assert!(matches!(refused, DbError::PrunedSet(version) if version == set.last), "{refused}");
}

pub async fn a_ramp_is_advanced_by_one_node_and_reverted_with_its_apply(address: &str) {
    let db = open(address).await;
    db.edit(author("ann"), vec![put("a", 9)]).await.expect("a rule");
    assert_eq!(db.ramp().await.expect("readable"), None);
    let row = |revision: u64, owner: &str, state: &str| RampRow {
        id: "one".to_owned(),
        revision,
        change: tollgate_stores::rules::Version::ZERO,
        owner: owner.to_owned(),
        lease_until: Time::from_secs(1_800_000_005),
        state: state.to_owned(),
    };
    let setting = |percent: u64| format!(r#"{{"id":"one","percent":{percent}}}"#);
    let start = vec![Edit::ramp(setting(1), Precondition::Absent), put("a", 1), put("b", 1)];
    db.edit_ramp(author("ann"), start.clone(), RampWrite::Start(row(7, "n1", "{}"))).await.expect("a start");
    let second = db.edit_ramp(author("bob"), start, RampWrite::Start(row(0, "n2", "{}"))).await;
    assert!(matches!(second, Err(DbError::Exists { item, .. }) if item == ItemId::ramp()));

    let set = latest_set(&db).await;
    let stored = db.ramp().await.expect("readable").expect("a row");
    assert_eq!((stored.revision, stored.change, stored.owner.as_str()), (0, set.last, "n1"));
    let step = |owner: &str| {
        let edits = vec![Edit::ramp(setting(5), Precondition::Any)];
        db.edit_ramp(author(owner), edits, RampWrite::Update(row(0, owner, r#"{"step":1}"#)))
    };
    step("n1").await.expect("the first one advances it");
    let late = step("n2").await;
    assert!(matches!(late, Err(DbError::RampMoved)), "{late:?}");
    let stored = db.ramp().await.expect("readable").expect("a row");
    assert_eq!((stored.revision, stored.owner.as_str()), (1, "n1"));
    assert_eq!(latest(&db).await.author, "n1", "what fails writes nothing");

    for (node, counts) in [("n1", "1"), ("n2", "2"), ("n1", "3")] {
        db.put_ramp_counts("one".to_owned(), node.to_owned(), counts.to_owned()).await.expect("counts");
    }
    db.put_ramp_counts("another".to_owned(), "n1".to_owned(), "9".to_owned()).await.expect("ignored");
    let mut counts = db.ramp_counts("one".to_owned()).await.expect("counts");
    counts.sort();
    assert_eq!(counts, ["2", "3"]);
    assert_eq!(db.ramp_counts("another".to_owned()).await.expect("counts"), [""; 0]);

    let end = RampWrite::Update(row(1, "n1", "over"));
    let why = author("ramp").with_note("denied 4 %");
    db.rollback_set(why, set, OnConflict::Skip, Some(end)).await.expect("a rollback");
    assert_eq!(text_of(&db, "a").await.as_deref(), Some(rule("a", 9).as_str()));
    assert_eq!(text_of(&db, "b").await, None);
    assert_eq!(db.get(ItemId::ramp()).await.expect("readable"), None, "though a step has changed it");
    assert_eq!(db.ramp().await.expect("readable").expect("a row").state, "over");
    let entry = latest(&db).await;
    assert_eq!((entry.note.as_deref(), entry.undoes), (Some("denied 4 %"), Some(set.last)));
}
