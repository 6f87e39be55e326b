//! The local copy of a database: what it holds, what it costs, and what damage does to it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use tollgate::Time;
use tollgate_stores::rules::local_copy::{ChangeDigest, CopyError, LocalCopy, MAX_PAST, NewCopy, quarantine};
use tollgate_stores::rules::{
    Edit, ItemChange, ItemId, ItemKind, Precondition, RulesDb, StoredItem, Version,
};
use tollgate_testkit::{Folder, SOON};

use crate::rules_db::scenario::{author, rule};

const SOURCE: &str = "postgres://db/limits";
const NOW: Time = Time::from_secs(1_800_000_000);

type Model = BTreeMap<ItemId, (Version, String)>;

fn stored(n: usize) -> StoredItem {
    let text = format!(r#"{{"id":"r{n}","url":"/path/{n}","time":"minute","requests":{}}}"#, n + 1);
    StoredItem { item: ItemId::rule(&format!("r{n}")), version: Version::new(1, n as u64 + 1), text }
}

/// A copy with `count` rules, at the version of the last one.
fn new_copy(path: &Path, count: usize) -> LocalCopy {
    let mut new = NewCopy::create(path, SOURCE).expect("a new file");
    new.put((0..count).map(stored).collect()).expect("there is room");
    new.finish(Version::new(1, count as u64), None, Vec::new(), NOW).expect("it is put in place")
}

fn change(number: u64, item: ItemId, text: Option<&str>) -> ItemChange {
    ItemChange { item, version: Version::new(1, number), previous: None, text: text.map(str::to_owned) }
}

fn open(path: &Path) -> Result<LocalCopy, CopyError> {
    LocalCopy::open(path, SOURCE)
}

fn read(path: &Path) -> Result<(Version, Model), CopyError> {
    let mut model = Model::new();
    let each = |batch: Vec<StoredItem>, _| {
        model.extend(batch.into_iter().map(|stored| (stored.item, (stored.version, stored.text))));
    };
    let version = open(path)?.verified()?.load(each)?;
    Ok((version, model))
}

fn ban_text(until: Time) -> String {
    format!(r#"{{"until":{},"reason":"test","source":"manual","strikes":0}}"#, until.nanos())
}

#[test]
fn a_copy_equals_the_result_of_a_seeded_history() {
    let folder = Folder::new();
    let path = folder.path("copy.db");
    let mut copy = new_copy(&path, 50);
    let mut model: Model =
        (0..50).map(stored).map(|stored| (stored.item, (stored.version, stored.text))).collect();
    let mut random = fastrand::Rng::with_seed(11);
    let mut number = 50;
    for round in 0..40 {
        let mut changes = Vec::new();
        for _ in 0..random.usize(1..60) {
            number += 1;
            let kind =
                [ItemKind::Rule, ItemKind::Ban, ItemKind::Allow, ItemKind::Setting][random.usize(0..4)];
            let item = ItemId::new(kind, format!("r{}", random.u32(0..80)));
            let text = match kind {
                ItemKind::Ban => ban_text(NOW + Duration::from_secs(random.u64(1..9_999))),
                _ => format!("text {number}"),
            };
            let text = Some(text).filter(|_| random.u8(0..4) > 0);
            let change = change(number, item.clone(), text.as_deref());
            match text {
                Some(text) => model.insert(item, (change.version, text)),
                None => model.remove(&item),
            };
            changes.push(change);
        }
        copy.apply(&changes, NOW).expect("there is room");
        if round % 8 == 0 {
            assert_eq!(read(&path).expect("it is whole"), (Version::new(1, number), model.clone()));
            copy = open(&path).expect("it is whole");
            assert_eq!(copy.last_change(), ChangeDigest::of(changes.last().expect("at least one")));
        }
    }
    copy.verify().expect("indexes too");
    assert_eq!(read(&path).expect("it is whole").1, model);
    let past = open(&path).and_then(LocalCopy::verified).and_then(|copy| copy.past()).expect("it is whole");
    assert!(past.len() <= MAX_PAST && past.iter().all(|logged| logged.change.item.kind == ItemKind::Rule));
    let latest = past.iter().map(|logged| logged.change.version).max();
    assert_eq!(past.first().map(|logged| logged.change.version), latest, "latest first");
}

#[test]
fn the_history_of_rules_is_bounded_and_has_their_former_texts() {
    let folder = Folder::new();
    let path = folder.path("copy.db");
    let mut copy = new_copy(&path, 1);
    let count = MAX_PAST as u64 + 300;
    let changes: Vec<_> =
        (0..count).map(|n| change(n + 2, ItemId::rule("r0"), Some(&format!("text {n}")))).collect();
    copy.apply(&changes[..900], NOW).expect("there is room");
    copy.apply(&changes[900..], NOW).expect("there is room");
    let past = copy.verified().expect("it is whole").past().expect("it is whole");
    assert_eq!(past.len(), MAX_PAST);
    let before = format!("text {}", count - 2);
    let after = format!("text {}", count - 1);
    assert_eq!((past[0].before.as_ref(), past[0].change.text.as_ref()), (Some(&before), Some(&after)));
}

#[test]
fn changes_that_do_not_follow_are_refused_and_known_ones_skipped() {
    let folder = Folder::new();
    let path = folder.path("copy.db");
    let mut copy = new_copy(&path, 3);
    let gap = copy.apply(&[change(5, ItemId::rule("x"), Some("text"))], NOW).expect_err("4 is missing");
    assert!(matches!(gap, CopyError::Gap { version } if version == Version::new(1, 3)), "{gap}");
    copy.apply(&[change(3, ItemId::rule("r0"), None), change(4, ItemId::rule("x"), Some("text"))], NOW)
        .expect("3 is known");
    let (version, model) = read(&path).expect("it is whole");
    assert_eq!((version, model.len()), (Version::new(1, 4), 4));
}

#[test]
fn no_changed_byte_leads_to_other_contents() {
    let folder = Folder::new();
    let path = folder.path("copy.db");
    let mut copy = new_copy(&path, 20);
    let changes = [
        change(21, ItemId::rule("r3"), Some("changed")),
        change(22, ItemId::new(ItemKind::Ban, "user:evil"), Some(&ban_text(NOW + Duration::from_secs(60)))),
        change(23, ItemId::rule("r4"), None),
    ];
    copy.apply(&changes, NOW).expect("there is room");
    drop(copy);
    let whole = read(&path).expect("it is whole");
    let bytes = fs::read(&path).expect("the file");
    let mut refused = 0;
    let mut random = fastrand::Rng::with_seed(5);
    for at in (0..bytes.len()).step_by(23) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << random.u8(0..8);
        fs::write(&path, &damaged).expect("a test may damage it");
        match read(&path) {
            Ok(found) => assert_eq!(found, whole, "byte {at} was not in use"),
            Err(error) => {
                assert!(
                    matches!(error, CopyError::Damaged(_) | CopyError::OtherDatabase { .. }),
                    "{at}: {error}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused > 60, "{refused} of {} were in use", bytes.len() / 23);
    for length in [0, 100, bytes.len() / 2] {
        fs::write(&path, &bytes[..length]).expect("a test may damage it");
        assert!(read(&path).is_err(), "{length} bytes of {}", bytes.len());
    }
    assert!(quarantine(&path).expect("it is there").is_file() && !path.exists());
}

#[test]
fn a_copy_belongs_to_its_database_and_its_owner() {
    let folder = Folder::new();
    let path = folder.path("copy.db");
    assert!(matches!(open(&path), Err(CopyError::Missing)));
    drop(new_copy(&path, 1));
    let other = LocalCopy::open(&path, "postgres://other/limits").expect_err("another database");
    assert_eq!(other.to_string(), format!("the local copy belongs to another database, {SOURCE}"));
    let mode = fs::metadata(&path).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn an_unfinished_new_copy_keeps_the_old_one_and_leaves_no_file() {
    let folder = Folder::new();
    let path = folder.path("copy.db");
    drop(new_copy(&path, 3));
    let mut new = NewCopy::create(&path, SOURCE).expect("a new file");
    new.put((0..2_000).map(stored).collect()).expect("there is room");
    drop(new);
    assert_eq!(read(&path).expect("it is whole").1.len(), 3);
    let left: Vec<_> = fs::read_dir(folder.root()).expect("the folder").flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn bans_that_are_over_are_removed() {
    let folder = Folder::new();
    let path = folder.path("copy.db");
    let mut copy = new_copy(&path, 2);
    let until = |n: u64| NOW + Duration::from_secs(n);
    let bans: Vec<_> = (1..=10)
        .map(|n| change(n + 2, ItemId::new(ItemKind::Ban, format!("user:u{n}")), Some(&ban_text(until(n)))))
        .collect();
    copy.apply(&bans, NOW).expect("there is room");
    assert_eq!(copy.remove_expired(until(7), 4).expect("it can be written"), 4);
    assert_eq!(copy.remove_expired(until(7), 4).expect("it can be written"), 3);
    assert_eq!(copy.remove_expired(until(7), 4).expect("it can be written"), 0);
    assert_eq!(read(&path).expect("it is whole").1.len(), 2 + 3);
    // What the database removes, too, may be deleted by a change as well.
    copy.apply(&[change(13, ItemId::new(ItemKind::Ban, "user:u1"), None)], NOW).expect("it can be written");
    read(&path).expect("it is whole");
}

/// Bytes that this thread has handed to the system to write.
fn written() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").expect("a thread has counts");
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: ")).expect("wchar is there");
    line.parse().expect("a number")
}

#[test]
fn one_edit_among_a_hundred_thousand_rules_writes_a_few_pages() {
    const RULES: usize = 100_000;
    let folder = Folder::new();
    let path = folder.path("copy.db");
    let mut copy = new_copy(&path, RULES);
    let length = fs::metadata(&path).expect("the file").len();
    let mut worst = 0;
    for n in 0..100 {
        let before = written();
        let item = ItemId::rule(&format!("r{}", n * 997 % RULES));
        let change = change((RULES + n + 1) as u64, item, Some("a text that is as long as before"));
        copy.apply(&[change], NOW).expect("there is room");
        worst = worst.max(written() - before);
    }
    println!("{length} bytes in all, at most {worst} written for an edit");
    assert!(worst < 100_000 && length > 100 * worst, "{worst} bytes of {length}");
    let before = written();
    copy.confirm(NOW).expect("there is room");
    assert!(written() - before < 20_000, "a confirmation is one row");
}

#[tokio::test]
async fn the_mark_of_a_change_is_the_same_from_the_feed_and_from_the_log() {
    let folder = Folder::new();
    let db = RulesDb::open("sqlite:rules.db", folder.root()).await.expect("a new file");
    let made = db.edit(author("ann"), vec![Edit::rule(rule("a", 5), Precondition::Any)]).await;
    let made = made.expect("it can be written");
    let logged = db.logged(made[0].version).await.expect("it can be read").expect("it is in the log");
    assert_eq!(ChangeDigest::of(&made[0]), ChangeDigest::of(&logged.change));
    let again = db.edit(author("ann"), vec![Edit::rule(rule("a", 6), Precondition::Any)]).await;
    assert_ne!(ChangeDigest::of(&again.expect("it can be written")[0]), ChangeDigest::of(&made[0]));
}

const KILLED: &str = "TOLLGATE_TEST_COPY";

/// A change of rules with each step, and a number that tells which step it was.
fn step(number: u64) -> [ItemChange; 2] {
    let item = ItemId::rule(&format!("r{}", number % 7));
    [
        change(2 * number - 1, item, Some(&format!("text {number}"))),
        change(2 * number, ItemId::new(ItemKind::Setting, "step"), Some(&number.to_string())),
    ]
}

/// Runs in the child: applies changes one after the other, and now and then replaces the whole file.
#[test]
#[ignore = "the other half of the test that kills it"]
fn applies_until_it_is_killed() {
    let Some(path) = std::env::var_os(KILLED) else { return };
    let path = Path::new(&path);
    let start = Instant::now();
    let mut copy = open(path).expect("the parent has made it");
    while start.elapsed() < SOON {
        let number = copy.version().number() / 2 + 1;
        copy.apply(&step(number), NOW).expect("there is room");
        if number.is_multiple_of(5) {
            let (version, model) = read(path).expect("it is whole");
            let mut new = NewCopy::create(path, SOURCE).expect("there is room");
            let all = model.into_iter().map(|(item, (version, text))| StoredItem { item, version, text });
            new.put(all.collect()).expect("there is room");
            copy = new.finish(version, None, Vec::new(), NOW).expect("there is room");
        }
        crate::rules_db::killed::say(&number.to_string());
    }
}

#[test]
fn a_killed_writer_leaves_a_whole_copy_with_all_that_it_had_written() {
    let folder = Folder::new();
    let path = folder.path("copy.db");
    drop(new_copy(&path, 0));
    for round in 1..=6 {
        let child = crate::rules_db::killed::run(
            concat!(module_path!(), "::applies_until_it_is_killed"),
            &[(KILLED, path.as_os_str())],
        );
        let made = crate::rules_db::killed::kill_after(child, 7 * round);
        let (version, model) = read(&path).expect("it is whole");
        let step: u64 = model[&ItemId::new(ItemKind::Setting, "step")].1.parse().expect("a number");
        assert_eq!(version.number(), 2 * step, "both changes of a step, or none");
        let last = made.last().and_then(|made| made.parse().ok());
        assert!(last.is_some_and(|last: u64| step >= last), "{step} of {made:?}");
        open(&path).and_then(|copy| copy.verify()).expect("indexes too");
    }
}
