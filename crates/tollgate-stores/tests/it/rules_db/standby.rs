//! A primary and a standby that streams from it, stopped, killed and promoted.

use std::path::Path;
use std::time::Duration;

use tollgate_stores::rules::{ChangeFeed, DbError, Edit, ItemId, Precondition, RulesDb, Version};
use tollgate_testkit::SOON;
use tollgate_testkit::servers::postgres::Postgres;

use crate::rules_db::mirror::Mirror;

use crate::rules_db::killed;
use crate::rules_db::scenario::{author, follow, loaded, open, rule, same_state};

const WHAT: &str = "rules in PostgreSQL with a standby";

struct Pair {
    primary: Postgres,
    standby: Postgres,
}

impl Pair {
    /// With the schema on both: a standby that has not got it yet is passed over.
    async fn start() -> Option<Pair> {
        let primary = Postgres::start(WHAT)?;
        let standby = primary.standby();
        open(&primary.url()).await;
        let start = std::time::Instant::now();
        while let Err(error) = RulesDb::open(&standby.url(), Path::new(".")).await {
            assert!(start.elapsed() < SOON, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Some(Pair { primary, standby })
    }

    fn address(&self) -> String {
        format!("{}?replica={}", self.primary.url(), self.standby.host())
    }
}

async fn put(db: &RulesDb, id: &str) -> Result<Version, DbError> {
    let edits = vec![Edit::rule(rule(id, 5), Precondition::Absent)];
    Ok(db.edit(author("ann"), edits).await?[0].version)
}

/// Writes once a primary is there again.
async fn put_soon(db: &RulesDb, id: &str) -> Version {
    let start = std::time::Instant::now();
    loop {
        match put(db, id).await {
            Ok(version) => return version,
            Err(error) => assert!(error.is_transient() && start.elapsed() < SOON, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Follows until a change has reached the server that is read.
async fn follow_to(db: &RulesDb, mirror: &mut Mirror, version: Version) {
    let waiting = async {
        while mirror.seen() < version {
            db.changed_since(mirror.seen()).await.expect("a server can be read");
            follow(db, mirror).await;
        }
    };
    tokio::time::timeout(SOON, waiting).await.expect("the change arrives");
}

fn postgres(db: &RulesDb) -> &tollgate_stores::rules::postgres::PostgresDb {
    match db {
        RulesDb::Postgres(db) => db,
        RulesDb::Sqlite(_) => panic!("PostgreSQL was opened"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_standby_is_read_and_the_primary_is_when_it_is_gone() {
    let Some(mut pair) = Pair::start().await else { return };
    let db = open(&pair.address()).await;
    let version = put(&db, "a").await.expect("written");
    let mut mirror = Mirror::default();
    follow_to(&db, &mut mirror, version).await;
    let lag = postgres(&db).lag().await.expect("both answer");
    assert!(lag.server.contains(&pair.standby.host()), "{lag:?}");
    assert_eq!(lag.changes, Some(0));

    pair.standby.stop();
    let version = put(&db, "b").await.expect("the primary is there");
    follow_to(&db, &mut mirror, version).await;
    let lag = postgres(&db).lag().await.expect("one answers");
    assert!(lag.server.contains(&pair.primary.host()), "{lag:?}");
    pair.standby.restart();
    let other = open(&pair.address()).await;
    let lag = postgres(&other).lag().await.expect("both answer");
    assert!(lag.server.contains(&pair.standby.host()), "{lag:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_primary_is_down_rules_are_read_and_writes_fail_clearly() {
    let Some(mut pair) = Pair::start().await else { return };
    let db = open(&pair.address()).await;
    let version = put(&db, "a").await.expect("written");
    let mut mirror = Mirror::default();
    follow_to(&db, &mut mirror, version).await;

    pair.primary.stop();
    let refused = put(&db, "b").await.expect_err("no primary");
    let message = refused.to_string();
    assert!(matches!(refused, DbError::Unwritable { .. }), "{message}");
    assert!(message.contains("nothing was changed"), "{message}");
    let message = put(&db, "b").await.expect_err("no primary").to_string();
    assert!(message.contains(&pair.primary.host()) && message.contains("is a standby"), "{message}");
    same_state(&mirror, &loaded(&db).await);
    let started = open(&pair.address()).await;
    same_state(&mirror, &loaded(&started).await);
    assert_eq!(postgres(&db).lag().await.expect("the standby answers").changes, None);

    pair.primary.restart();
    let version = put_soon(&db, "b").await;
    assert_eq!((version.timeline(), version.number()), (1, 2), "nothing was half-written");
    follow_to(&db, &mut mirror, version).await;
    follow_to(&started, &mut Mirror::default(), version).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_edit_is_lost_when_the_primary_is_killed_and_restarted() {
    let Some(mut pair) = Pair::start().await else { return };
    let address = pair.address();
    let db = open(&address).await;
    let mut mirror = Mirror::default();
    let mut made = Vec::new();
    for round in 0..3 {
        let writer = killed::start(&address, &format!("w{round}"));
        let killing = tokio::task::spawn_blocking(move || killed::kill_after(writer, 60));
        // In the middle of its edits; the writer goes on when the server is back.
        let middle = mirror.seen().number() + 20;
        follow_to(&db, &mut mirror, Version::new(1, middle)).await;
        if round == 1 { &mut pair.standby } else { &mut pair.primary }.kill();
        if round == 1 { &mut pair.standby } else { &mut pair.primary }.restart();
        made.extend(killing.await.expect("no panic"));
    }
    let version = put_soon(&db, "end").await;
    follow_to(&db, &mut mirror, version).await;
    same_state(&mirror, &loaded(&open(&pair.primary.url()).await).await);
    for id in made {
        assert!(mirror.get(&ItemId::rule(&id)).is_some(), "{id} was acknowledged and is lost");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_promotion_of_a_synchronous_standby_every_acknowledged_edit_is_there() {
    let Some(mut pair) = Pair::start().await else { return };
    pair.primary.restart_with(&["synchronous_standby_names=*"]);
    let address = pair.address();
    let db = open(&address).await;
    let mut mirror = Mirror::default();
    let writer = killed::start(&address, "w");
    let killing = tokio::task::spawn_blocking(move || killed::kill_after(writer, 60));
    follow_to(&db, &mut mirror, Version::new(1, 30)).await;
    pair.primary.kill();
    pair.standby.promote();
    let made = killing.await.expect("no panic");

    let version = put_soon(&db, "end").await;
    assert_eq!(version.timeline(), 2);
    follow_to(&db, &mut mirror, version).await;
    same_state(&mirror, &loaded(&db).await);
    for id in &made {
        assert!(mirror.get(&ItemId::rule(id)).is_some(), "{id} was acknowledged and is lost");
    }
    // The old primary comes back and takes itself for one: it is not written.
    pair.primary.restart_with(&[]);
    let next = put_soon(&open(&address).await, "after").await;
    assert_eq!((next.timeline(), next.number()), (2, version.number() + 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_lost_with_an_asynchronous_primary_are_reported_to_readers_that_saw_them() {
    let Some(mut pair) = Pair::start().await else { return };
    let db = open(&pair.primary.url()).await;
    put(&db, "kept").await.expect("written");
    let shared = open(&pair.address()).await;
    follow_to(&shared, &mut Mirror::default(), Version::new(1, 1)).await;
    pair.standby.stop();
    let lost = put(&db, "lost").await.expect("written, but only on the primary");
    pair.primary.kill();
    pair.standby.restart();
    let behind = shared.changes_since(lost, 10).await.expect("the standby answers");
    assert_eq!(behind, ChangeFeed::Changes(vec![]), "a standby that is behind takes nothing back");

    pair.standby.promote();
    assert_eq!(shared.changes_since(lost, 10).await.expect("it answers"), ChangeFeed::Diverged);
    let next = put_soon(&shared, "next").await;
    assert_eq!((next.timeline(), next.number()), (2, 2));
    assert!(next > lost, "the same number on a later timeline is later");
    let ids: Vec<_> = loaded(&shared).await.live().map(|(item, ..)| item.name.to_string()).collect();
    assert_eq!(ids.len(), 2);
    assert!(!ids.contains(&"lost".to_owned()));
}
