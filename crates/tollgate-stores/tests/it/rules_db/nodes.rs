//! Nodes that announce themselves, on both databases.

use std::path::Path;
use std::time::Duration;

use tollgate::Time;
use tollgate_stores::rules::{AnnouncedNode, MAX_NODES, RulesDb};
use tollgate_testkit::Folder;
use tollgate_testkit::servers::postgres::Postgres;

const START: Time = Time::from_secs(1_800_000_000);

fn node(id: u32, address: &str, seen: Time) -> AnnouncedNode {
    AnnouncedNode {
        id,
        address: address.to_owned(),
        version: "1.0".to_owned(),
        generation: 7,
        rules_version: Some("0-3".to_owned()),
        seen,
    }
}

async fn check(address: &str) {
    let open = || async { RulesDb::open(address, Path::new("")).await.expect("it opens") };
    let db = open().await;
    assert_eq!(db.nodes().await.expect("readable"), [], "before any node has announced itself");
    db.forget_node("https://a".to_owned(), 1).await.expect("there is nothing to forget");
    let version = db.version().await.expect("readable");

    // Several processes create the table at the same time.
    let mut starts = tokio::task::JoinSet::new();
    for id in 1..=3 {
        let db = open().await;
        starts.spawn(async move {
            db.announce_node(node(id, &format!("https://{id}"), START), START).await.expect("announced");
        });
    }
    starts.join_all().await;
    let addresses = |nodes: Vec<AnnouncedNode>| -> Vec<_> {
        nodes.into_iter().map(|node| (node.address, node.id)).collect()
    };
    let one = |id: u32| (format!("https://{id}"), id);
    let nodes = db.nodes().await.expect("readable");
    assert_eq!(nodes[0], node(1, "https://1", START));
    assert_eq!(addresses(nodes), [one(1), one(2), one(3)]);
    assert_eq!(db.version().await.expect("readable"), version, "it is not a change of the rules");

    // A node that was started again replaces its row; one that has not been seen is removed.
    let later = START + Duration::from_secs(60);
    db.announce_node(node(4, "https://1", later), START).await.expect("announced");
    db.announce_node(node(3, "https://3", later), later).await.expect("announced");
    let expected = [("https://1".to_owned(), 4), one(3)];
    assert_eq!(addresses(db.nodes().await.expect("readable")), expected);

    db.forget_node("https://1".to_owned(), 1).await.expect("done");
    assert_eq!(db.nodes().await.expect("readable").len(), 2, "the row is another node's by now");
    db.forget_node("https://1".to_owned(), 4).await.expect("done");
    assert_eq!(addresses(db.nodes().await.expect("readable")), [one(3)]);

    for id in 0..MAX_NODES as u32 + 5 {
        let seen = later + Duration::from_secs(1 + u64::from(id));
        db.announce_node(node(id, &format!("https://node-{id:04}"), seen), START).await.expect("announced");
    }
    let nodes = db.nodes().await.expect("readable");
    assert_eq!((nodes.len(), nodes[0].id), (MAX_NODES, 5), "those that were seen last");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_in_sqlite_find_each_other() {
    let folder = Folder::new();
    check(&format!("sqlite:{}", folder.path("rules.db").display())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_in_postgresql_find_each_other() {
    let Some(server) = Postgres::start("nodes in PostgreSQL") else { return };
    check(&server.url()).await;
}
