//! What every database of rules must do.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tollgate::Time;
use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::identity::Key;
use tollgate_stores::rules::{
    Author, ChangeFeed, ChangeLogEntry, DbError, Edit, Enforce, ItemId, ItemKind, PageQuery, Precondition,
    RuleText, RulesDb, Version, parse_ban,
};

use crate::rules_db::killed;
use crate::rules_db::mirror::Mirror;

pub use super::sets::*;

pub async fn open(address: &str) -> RulesDb {
    RulesDb::open(address, Path::new(".")).await.expect("the database opens")
}

pub fn author(name: &str) -> Author {
    Author::new(name, Time::from_secs(1_800_000_000))
}

pub fn rule(id: &str, requests: u64) -> RuleText {
    let text = format!("{{id: {id}, uid: u7, url: GET /search, time: minute, requests: {requests}}}");
    RuleText::parse(&text).expect("a valid rule")
}

async fn put(db: &RulesDb, id: &str, requests: u64, expected: Precondition) -> Result<Version, DbError> {
    let changes = db.edit(author("ann"), vec![Edit::rule(rule(id, requests), expected)]).await?;
    Ok(changes[0].version)
}

pub async fn text_of(db: &RulesDb, id: &str) -> Option<String> {
    db.get(ItemId::rule(id)).await.expect("it can be read").map(|stored| stored.text)
}

/// Everything, as a node that starts now sees it.
pub async fn loaded(db: &RulesDb) -> Mirror {
    let rows = Arc::new(Mutex::new(Vec::new()));
    let given = Arc::clone(&rows);
    let version = db.load(move |batch, _| given.lock().expect("no panic").extend(batch)).await;
    let rows = std::mem::take(&mut *rows.lock().expect("no panic"));
    Mirror::load(version.expect("it can be read"), rows)
}

/// Brings a mirror up to date, in small steps.
pub async fn follow(db: &RulesDb, mirror: &mut Mirror) {
    while let ChangeFeed::Changes(changes) = db.changes_since(mirror.seen(), 7).await.expect("it can be read")
    {
        if changes.is_empty() {
            return;
        }
        changes.into_iter().for_each(|change| _ = mirror.apply(change));
    }
    panic!("the past of the database has changed");
}

pub fn same_state(one: &Mirror, other: &Mirror) {
    let sorted = |mirror: &Mirror| {
        let mut all: Vec<_> =
            mirror.live().map(|(item, version, text)| (item.clone(), version, text.to_owned())).collect();
        all.sort();
        all
    };
    assert_eq!(sorted(one), sorted(other));
}

pub async fn every_change_has_a_number_and_an_entry_in_the_log(address: &str) {
    let db = open(address).await;
    assert_eq!(db.version().await.expect("it can be read"), Version::ZERO);
    let made = put(&db, "a", 5, Precondition::Absent).await.expect("created");
    let changed = put(&db, "a", 6, Precondition::AtVersion(made)).await.expect("updated");
    let gone =
        db.edit(author("bob"), vec![Edit::delete(ItemId::rule("a"), Precondition::AtVersion(changed))]).await;
    let gone = gone.expect("deleted")[0].version;
    assert_eq!([made, changed, gone].map(Version::number), [1, 2, 3]);
    assert_eq!(db.version().await.expect("it can be read"), gone);
    assert_eq!(text_of(&db, "a").await, None);

    let log = db.log(None, 10).await.expect("it can be read");
    let found: Vec<_> =
        log.iter().map(|entry| (entry.change.version.number(), entry.author.as_str())).collect();
    assert_eq!(found, [(3, "bob"), (2, "ann"), (1, "ann")]);
    let five = rule("a", 5).into_text();
    let six = rule("a", 6).into_text();
    let texts: Vec<_> =
        log.iter().map(|entry| (entry.before.as_deref(), entry.change.text.as_deref())).collect();
    assert_eq!(texts, [(Some(&*six), None), (Some(&*five), Some(&*six)), (None, Some(&*five))]);
    assert_eq!(log[0].at, Time::from_secs(1_800_000_000));
    let earlier = db.log(Some(changed), 10).await.expect("it can be read");
    assert_eq!(earlier, log[2..]);
    let missing = db.edit(author("bob"), vec![Edit::delete(ItemId::rule("a"), Precondition::Any)]).await;
    assert!(matches!(missing, Err(DbError::Missing { .. })), "{missing:?}");
}

pub async fn of_two_who_saw_the_same_version_one_is_refused(address: &str) {
    let db = open(address).await;
    let mut seen = put(&db, "a", 1, Precondition::Absent).await.expect("created");
    let others = [open(address).await, open(address).await];
    for round in 0..20 {
        let (one, two) = tokio::join!(
            put(&others[0], "a", 100 + round, Precondition::AtVersion(seen)),
            put(&others[1], "a", 200 + round, Precondition::AtVersion(seen)),
        );
        let (won, lost) = if one.is_ok() { (one, two) } else { (two, one) };
        seen = won.expect("one of them is first");
        match lost {
            Err(DbError::Conflict { found, .. }) => assert_eq!(found, Some(seen)),
            other => panic!("the second edit must be rejected: {other:?}"),
        }
    }
    let twice = put(&db, "a", 9, Precondition::Absent).await;
    assert!(matches!(twice, Err(DbError::Exists { .. })), "{twice:?}");
}

pub async fn writers_at_once_lose_no_change_and_leave_no_gap(address: &str) {
    const WRITERS: u64 = 4;
    const EDITS: u64 = 40;
    let db = open(address).await;
    let mut mirror = loaded(&db).await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let address = address.to_owned();
            tokio::spawn(async move {
                let db = open(&address).await;
                for n in 0..EDITS {
                    put(&db, &format!("shared-{}", n % 5), writer * 1_000 + n + 1, Precondition::Any)
                        .await
                        .expect("written");
                }
            })
        })
        .collect();
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        follow(&db, &mut mirror).await;
    }
    for writer in writers {
        writer.await.expect("no writer panics");
    }
    follow(&db, &mut mirror).await;
    same_state(&mirror, &loaded(&db).await);
    let ChangeFeed::Changes(all) = db.changes_since(Version::ZERO, 1_000).await.expect("it can be read")
    else {
        panic!("the beginning is in every past");
    };
    let numbers: Vec<_> = all.iter().map(|change| change.version.number()).collect();
    assert_eq!(numbers, (1..=WRITERS * EDITS).collect::<Vec<_>>());
}

pub async fn one_bad_edit_among_many_changes_nothing(address: &str) {
    let db = open(address).await;
    put(&db, "r500", 5, Precondition::Absent).await.expect("created");
    let many = |count| (0..count).map(|n| Edit::rule(rule(&format!("r{n}"), 5), Precondition::Absent));
    let refused = db.edit(author("ann"), many(1_000).collect()).await.expect_err("r500 is there");
    assert!(matches!(refused, DbError::Exists { edit: 500, .. }), "{refused}");
    assert_eq!(loaded(&db).await.live().count(), 1);
    assert_eq!(db.log(None, 10).await.expect("it can be read").len(), 1);
    let twice = many(3).chain(many(1)).collect();
    let refused = db.edit(author("ann"), twice).await.expect_err("r0 is there twice");
    assert!(matches!(refused, DbError::DuplicateItem { edit: 3, .. }), "{refused}");
    db.edit(author("ann"), many(500).collect()).await.expect("all are new");
    assert_eq!(loaded(&db).await.live().count(), 501);
}

pub async fn one_change_is_reverted_by_a_new_one(address: &str) {
    let db = open(address).await;
    let first = put(&db, "a", 5, Precondition::Absent).await.expect("created");
    let second = put(&db, "a", 6, Precondition::AtVersion(first)).await.expect("updated");
    let late = db.rollback(author("bob"), first).await.expect_err("it was changed since");
    assert!(matches!(late, DbError::Conflict { .. }), "{late}");
    let back = db.rollback(author("bob"), second).await.expect("taken back");
    assert_eq!(text_of(&db, "a").await, Some(rule("a", 5).into_text()));
    let log = db.log(None, 1).await.expect("it can be read").remove(0);
    assert_eq!((log.undoes, log.author.as_str(), log.change.version), (Some(second), "bob", back[0].version));

    let gone = db.edit(author("ann"), vec![Edit::delete(ItemId::rule("a"), Precondition::Any)]).await;
    let gone = gone.expect("deleted")[0].version;
    db.rollback(author("bob"), gone).await.expect("made again");
    assert_eq!(text_of(&db, "a").await, Some(rule("a", 5).into_text()));
    let unknown = db.rollback(author("bob"), Version::new(7, 7)).await.expect_err("never made");
    assert!(matches!(unknown, DbError::UnknownVersion(_)), "{unknown}");
}

pub async fn things_are_paged_by_name_within_a_prefix(address: &str) {
    let db = open(address).await;
    // In the order of bytes, on every server.
    let names = ["A", "B.1", "a", "a-1", "a-2", "a.3", "aB", "ab", "b", "b_1"];
    let edits = names.iter().rev().map(|id| Edit::rule(rule(id, 5), Precondition::Absent));
    let evil = Key::parse("user:evil").expect("a key");
    let edits = edits.chain([Edit::allow(&evil, "no", Precondition::Absent)]);
    db.edit(author("ann"), edits.collect()).await.expect("created");
    for prefix in ["", "a", "a-", "b", "z"] {
        let expected: Vec<_> = names.iter().filter(|name| name.starts_with(prefix)).collect();
        for limit in [1, 3, 100] {
            let mut seen = Vec::new();
            let mut after = String::new();
            loop {
                let page = PageQuery { kind: ItemKind::Rule, prefix: prefix.to_owned(), after, limit };
                let found = db.page(page).await.expect("it can be read");
                assert!(found.len() <= limit);
                let Some(last) = found.last() else { break };
                after = last.item.name.to_string();
                seen.extend(found);
            }
            let ids: Vec<_> = seen.iter().map(|stored| &*stored.item.name).collect();
            assert_eq!(ids, expected.iter().map(|name| **name).collect::<Vec<_>>(), "'{prefix}' by {limit}");
            assert!(seen.iter().all(|stored| stored.text == rule(&stored.item.name, 5).into_text()));
        }
    }
    let allowed =
        PageQuery { kind: ItemKind::Allow, prefix: "user:".to_owned(), after: String::new(), limit: 9 };
    let allowed = db.page(allowed).await.expect("it can be read");
    assert_eq!(allowed.iter().map(|stored| stored.text.as_str()).collect::<Vec<_>>(), ["no"]);
    let ids = ["a", "none", "ab"].map(ItemId::rule).to_vec();
    assert_eq!(db.find(ids).await.expect("it can be read").len(), 2);
}

pub async fn a_preview_says_what_an_edit_would_do_and_writes_nothing(address: &str) {
    let db = open(address).await;
    let made = put(&db, "a", 5, Precondition::Absent).await.expect("created");
    let edits = vec![
        Edit::rule(rule("a", 6), Precondition::AtVersion(made)),
        Edit::rule(rule("b", 5), Precondition::Absent),
        Edit::delete(ItemId::rule("c"), Precondition::Absent),
    ];
    let planned = db.preview(edits.clone()).await.expect("possible");
    let found: Vec<_> = planned.iter().map(|(change, before)| (&*change.item.name, before.clone())).collect();
    assert_eq!(found, [("a", Some(rule("a", 5).into_text())), ("b", None)]);
    assert_eq!(db.version().await.expect("it can be read"), made);
    let stale = vec![Edit::rule(rule("a", 7), Precondition::AtVersion(Version::new(0, 99)))];
    let refused = db.preview(stale).await.expect_err("the item was changed meanwhile");
    assert!(matches!(refused, DbError::Conflict { .. }), "{refused}");
    let changes = db.edit(author("ann"), edits).await.expect("made");
    assert_eq!(changes, planned.into_iter().map(|(change, _)| change).collect::<Vec<_>>());
}

pub async fn one_thing_has_a_history_of_its_own(address: &str) {
    let db = open(address).await;
    for n in 1..=6 {
        put(&db, if n % 2 == 0 { "a" } else { "b" }, n, Precondition::Any).await.expect("written");
    }
    let numbers = |log: Vec<ChangeLogEntry>| -> Vec<_> {
        log.iter().map(|logged| logged.change.version.number()).collect()
    };
    let all = db.history(ItemId::rule("a"), None, 10).await.expect("it can be read");
    let four = all[1].change.version;
    assert_eq!(numbers(all), [6, 4, 2]);
    assert_eq!(numbers(db.history(ItemId::rule("a"), Some(four), 10).await.expect("it can be read")), [2]);
    assert_eq!(numbers(db.history(ItemId::rule("a"), None, 1).await.expect("it can be read")), [6]);
    let one = db.logged(four).await.expect("it can be read").expect("it is there");
    assert_eq!((one.change.version, one.author.as_str()), (four, "ann"));
    assert_eq!(one.before, Some(rule("a", 2).into_text()));
    assert_eq!(db.logged(Version::new(7, 7)).await.expect("it can be read"), None);
}

fn ban(until: Time) -> Ban {
    Ban { until, reason: "scraping \"quotes\"".to_owned(), source: BanSource::Automatic, strikes: 3 }
}

pub async fn bans_that_are_over_are_removed_in_small_batches(address: &str) {
    let db = open(address).await;
    let now = Time::from_secs(1_000);
    let edits = (0..25).map(|n| {
        let until = if n < 20 { Time::from_secs(900 + n) } else { now + Duration::from_secs(n) };
        let key = Key::parse(&format!("ip:10.0.{n}.0/24")).expect("a key");
        Edit::ban(&key, &ban(until), Precondition::Absent)
    });
    let for_ever = Key::parse("user:evil").expect("a key");
    let edits = edits.chain([Edit::ban(&for_ever, &ban(Time::MAX), Precondition::Absent)]);
    db.edit(author("ann"), edits.collect()).await.expect("banned");
    let version = db.version().await.expect("it can be read");
    let mut removed = Vec::new();
    while removed.last() != Some(&0) {
        removed.push(db.remove_expired(now, 8).await.expect("removed"));
    }
    assert_eq!(removed, [8, 8, 4, 0]);
    assert_eq!(db.version().await.expect("it can be read"), version, "what is over is no change");
    let left = loaded(&db).await;
    assert_eq!(left.live().count(), 6);
    let text = left.get(&ItemId::new(ItemKind::Ban, "user:evil")).expect("for ever").to_owned();
    assert_eq!(parse_ban(&text).expect("a ban"), ban(Time::MAX));
}

pub async fn an_old_log_is_pruned_in_batches_and_nodes_that_are_behind_read_everything_again(address: &str) {
    let db = open(address).await;
    let at = |second: u64| Author::new("ann", Time::from_secs(second));
    let rules = |from: u64, requests: u64| {
        (from..from + 10)
            .map(move |n| Edit::rule(rule(&format!("r{n}"), requests), Precondition::Any))
            .collect()
    };
    let old = db.edit(at(1_000), rules(0, 5)).await.expect("made").last().expect("ten").version;
    db.edit(at(1_001), rules(10, 5)).await.expect("made");
    let kept = db.edit(at(2_000), rules(0, 6)).await.expect("made");
    let first_kept = kept[0].version;
    let last = kept[9].version;
    let mut ahead = loaded(&db).await;

    let mut removed = Vec::new();
    while removed.last() != Some(&0) {
        removed.push(db.prune_log(Time::from_secs(2_000), 8).await.expect("pruned"));
    }
    assert_eq!(removed, [8, 8, 4, 0]);
    assert_eq!(db.version().await.expect("it can be read"), last, "it is no change");
    let log = db.log(None, 100).await.expect("it can be read");
    assert_eq!((log.len(), log[9].change.version, log[9].author.as_str()), (10, first_kept, "ann"));
    for behind in [Version::ZERO, old] {
        let feed = db.changes_since(behind, 100).await.expect("it can be read");
        assert!(matches!(feed, ChangeFeed::Diverged), "{behind}: {feed:?}");
    }
    assert_eq!(loaded(&db).await.live().count(), 20);

    // What a change replaced may be forgotten with the log: it is not reverted to nothing.
    match db.rollback(author("bob"), last).await {
        Ok(_) => assert_eq!(text_of(&db, "r9").await, Some(rule("r9", 5).into_text())),
        Err(error) => assert!(matches!(error, DbError::UnknownVersion(_)), "{error}"),
    }
    put(&db, "new", 7, Precondition::Absent).await.expect("created");
    follow(&db, &mut ahead).await;
    assert_eq!(ahead.live().count(), 21, "who is not behind goes on");

    // However old, the last entry stays: versions go on from it.
    let version = db.version().await.expect("it can be read");
    while db.prune_log(Time::MAX, 100).await.expect("pruned") > 0 {}
    assert_eq!(db.version().await.expect("it can be read"), version);
}

pub async fn automatic_bans_leave_the_log_before_other_entries_and_the_feed_goes_on(address: &str) {
    let db = open(address).await;
    let by = |name: &str, second: u64| Author::new(name, Time::from_secs(second));
    let key = |n: u64| Key::parse(&format!("user:{n}")).expect("a key");
    let banned = |n: u64| Edit::ban(&key(n), &ban(Time::MAX), Precondition::Any);
    let put = |n: u64| Edit::rule(rule(&format!("r{n}"), 5), Precondition::Any);
    let by_hand = Ban { source: BanSource::Manual, ..ban(Time::MAX) };
    db.edit(by("ann", 1_000), vec![put(0)]).await.expect("made");
    db.edit(by(Author::AUTOMATIC, 1_001), (0..10).map(banned).collect()).await.expect("made");
    let manual = vec![Edit::ban(&key(50), &by_hand, Precondition::Any), put(1)];
    let behind = db.edit(by("ann", 1_002), manual).await.expect("made")[1].version;
    let lifted = vec![Edit::delete(ItemId::new(ItemKind::Ban, key(9).to_string()), Precondition::Any)];
    let floor = db.edit(by(Author::AUTOMATIC, 1_003), lifted).await.expect("made")[0].version;
    db.edit(by(Author::AUTOMATIC, 2_000), vec![banned(20), banned(21)]).await.expect("made");
    db.edit(by("ann", 2_001), vec![put(2)]).await.expect("made");
    let mut ahead = loaded(&db).await;

    let mut looked = Vec::new();
    while looked.last() != Some(&0) {
        looked.push(db.prune_automatic_bans(Time::from_secs(2_000), 1_000, 4).await.expect("pruned"));
    }
    assert_eq!(looked, [4, 4, 4, 2, 0], "14 entries are old, each is looked at once");
    let log = db.log(None, 100).await.expect("it can be read");
    let left: Vec<_> =
        log.iter().map(|entry| (entry.change.version.number(), entry.author.as_str())).collect();
    let automatic = Author::AUTOMATIC;
    assert_eq!(left, [(17, "ann"), (16, automatic), (15, automatic), (13, "ann"), (12, "ann"), (1, "ann")]);
    assert_eq!(log[3].at, Time::from_secs(1_002));
    assert_eq!(loaded(&db).await.live().count(), ahead.live().count(), "the bans themselves stay");
    for further_behind in [Version::ZERO, behind] {
        let feed = db.changes_since(further_behind, 100).await.expect("it can be read");
        assert!(matches!(feed, ChangeFeed::Diverged), "{further_behind}: {feed:?}");
    }
    match db.changes_since(floor, 100).await.expect("it can be read") {
        ChangeFeed::Changes(changes) => assert_eq!(changes.len(), 3, "nothing after it is missing"),
        ChangeFeed::Diverged => panic!("a node that has seen all that is gone goes on"),
    }
    db.edit(by("ann", 2_002), vec![put(3)]).await.expect("made");
    follow(&db, &mut ahead).await;
    same_state(&ahead, &loaded(&db).await);
    // A ban that enough entries follow leaves the log, however new it is.
    let version = db.version().await.expect("it can be read").number();
    let bans = async || {
        let log = db.log(None, 100).await.expect("it can be read");
        let automatic = log.iter().filter(|entry| entry.author == Author::AUTOMATIC);
        automatic.map(|entry| version - entry.change.version.number()).collect::<Vec<_>>()
    };
    assert_eq!(bans().await, [2, 3]);
    for (kept, left) in [(4, vec![2, 3]), (3, vec![2]), (2, vec![])] {
        while db.prune_automatic_bans(Time::from_secs(2_000), kept, 4).await.expect("pruned") > 0 {}
        assert_eq!(bans().await, left, "{kept} are kept");
    }
    // What is left goes with the rest of the log.
    while db.prune_log(Time::MAX, 2).await.expect("pruned") > 0 {}
    assert_eq!(db.log(None, 100).await.expect("it can be read").len(), 1);
}

pub async fn the_switch_and_the_allow_list_are_changes_like_any_other(address: &str) {
    let db = open(address).await;
    let health = Key::parse("user:health-check").expect("a key");
    let edits = vec![
        Edit::enforce(Enforce::Shadow, Precondition::Any),
        Edit::allow(&health, "the load balancer", Precondition::Absent),
    ];
    let changes = db.edit(author("ann"), edits.clone()).await.expect("made");
    assert_eq!(changes.len(), 2);
    let again = db.edit(author("ann"), edits[..1].to_vec()).await.expect("nothing to do");
    assert_eq!(again, [], "what changes nothing takes no number");
    let state = loaded(&db).await;
    assert_eq!(state.get(&ItemId::enforce()).and_then(Enforce::parse), Some(Enforce::Shadow));
    assert_eq!(state.get(&ItemId::new(ItemKind::Allow, "user:health-check")), Some("the load balancer"));
    assert_eq!(
        ChangeFeed::Changes(changes),
        db.changes_since(Version::ZERO, 10).await.expect("it can be read")
    );
}

pub async fn ten_that_open_at_once_do_not_fight(address: &str) {
    let opening: Vec<_> = (0..10)
        .map(|n| {
            let address = address.to_owned();
            tokio::spawn(async move {
                put(&open(&address).await, &format!("r{n}"), 5, Precondition::Absent).await.expect("written");
            })
        })
        .collect();
    for one in opening {
        one.await.expect("no panic");
    }
    assert_eq!(loaded(&open(address).await).await.live().count(), 10);
}

pub async fn a_change_is_seen_by_three_nodes_within_a_second(address: &str) {
    let db = open(address).await;
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(open(address).await);
    }
    for round in 1..=5 {
        let known = db.version().await.expect("it can be read");
        let waiting: Vec<_> = nodes
            .iter()
            .map(|node| {
                let node = node.clone();
                tokio::spawn(async move {
                    node.changed_since(known).await.expect("it can be read");
                    let seen = node.changes_since(known, 10).await.expect("it can be read");
                    (seen, Instant::now())
                })
            })
            .collect();
        let version = put(&db, "a", round, Precondition::Any).await.expect("written");
        let written = Instant::now();
        for node in waiting {
            let (seen, when) = node.await.expect("no panic");
            let ChangeFeed::Changes(changes) = seen else { panic!("one past") };
            assert_eq!(changes.iter().map(|change| change.version).collect::<Vec<_>>(), [version]);
            assert!(when.saturating_duration_since(written) < Duration::from_secs(1), "seen too late");
        }
    }
}

pub async fn ten_thousand_changes_in_batches_lose_none(address: &str) {
    let db = open(address).await;
    let reader = open(address).await;
    let mut mirror = Mirror::default();
    let mut random = fastrand::Rng::with_seed(5);
    let mut made = 0;
    while made < 10_000 {
        let first = random.u64(0..2_000);
        let edits = (0..random.u64(1..=100)).map(|n| {
            let rule = rule(&format!("r{}", (first + n) % 2_000), 1 + random.u64(0..1_000_000));
            Edit::rule(rule, Precondition::Any)
        });
        made += db.edit(author("ann"), edits.collect()).await.expect("written").len();
        if random.bool() {
            follow(&reader, &mut mirror).await;
        }
    }
    follow(&reader, &mut mirror).await;
    assert_eq!(mirror.seen().number() as usize, made);
    same_state(&mirror, &loaded(&reader).await);
}

pub async fn a_version_from_another_history_is_reported(address: &str) {
    let db = open(address).await;
    let version = put(&db, "a", 5, Precondition::Absent).await.expect("created");
    for strange in
        [Version::new(version.timeline(), 2), Version::new(version.timeline() + 1, version.number())]
    {
        let feed = db.changes_since(strange, 10).await.expect("it can be read");
        assert_eq!(feed, ChangeFeed::Diverged, "{strange}");
    }
    assert_eq!(db.changes_since(version, 10).await.expect("it can be read"), ChangeFeed::Changes(vec![]));
}

pub async fn no_acknowledged_edit_is_lost_when_writers_are_killed(address: &str) {
    let db = open(address).await;
    let mut mirror = loaded(&db).await;
    let mut made = HashSet::new();
    let mut random = fastrand::Rng::with_seed(9);
    for round in 0..6 {
        let writers = [format!("x{round}"), format!("y{round}")].map(|name| killed::start(address, &name));
        let killing = writers.map(|writer| {
            let count = random.usize(5..40);
            tokio::task::spawn_blocking(move || killed::kill_after(writer, count))
        });
        for killed in killing {
            made.extend(killed.await.expect("no panic"));
        }
    }
    follow(&db, &mut mirror).await;
    same_state(&mirror, &loaded(&db).await);
    for id in &made {
        assert!(mirror.get(&ItemId::rule(id)).is_some(), "{id} was acknowledged and is lost");
    }
    whole_or_not_at_all(&mirror);
}

/// A writer's last edit names which of its rules must exist: both were written in one batch.
fn whole_or_not_at_all(mirror: &Mirror) {
    let ids: Vec<_> = mirror.live().map(|(item, ..)| item.name.to_string()).collect();
    for writer in ids.iter().filter_map(|id| id.strip_suffix("-last")) {
        let count = ids.iter().filter(|id| id.starts_with(&format!("{writer}-"))).count() - 1;
        let last = mirror.get(&ItemId::rule(&format!("{writer}-last"))).expect("it is there");
        assert!(last.contains(&format!("\"requests\":{count}")), "{writer}: {count} rules, {last}");
    }
}
