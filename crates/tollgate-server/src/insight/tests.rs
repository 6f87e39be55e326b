//! Decisions of a real engine, counted.

use tollgate::internal::verdict::Reason;
use tollgate::internal::{EngineCore, PolicySnapshot};
use tollgate::{Hit, Time};

use super::*;

const START: Time = Time::from_secs(1_800_000_000);

struct Node {
    engine: EngineCore,
    insight: Insight,
    now: Time,
}

impl Node {
    fn new(rules: &str) -> Node {
        let engine = EngineCore::new(PolicySnapshot::from_yaml(rules).expect("valid rules"));
        Node { engine, insight: Insight::new(LogKeys::Redacted, START), now: START }
    }

    fn check(&self, hit: &Hit<'_>) -> bool {
        let policy = self.engine.policy();
        let verdict = self.engine.check(hit, self.now);
        let latency = Some(Duration::from_micros(2));
        self.insight.record(&Decided { policy: &policy, hit, verdict: &verdict, at: self.now, latency });
        verdict.allowed
    }

    fn tick(&mut self) {
        self.now = self.now + Duration::from_secs(1);
        self.insight.tick(self.now);
    }
}

#[test]
fn a_second_is_published_with_its_rules_and_decisions() {
    let mut node =
        Node::new("rules: [{ id: login, key: ip, limit: 5/m }, { id: all, limit: 3/m, mode: shadow }]");
    let mut seconds = node.insight.subscribe();
    let attacker = Hit::on("GET", "h", "/").ip([192, 0, 2, 1].into());
    (0..9).for_each(|_| _ = node.check(&attacker));
    node.check(&Hit::on("GET", "h", "/").ip([192, 0, 2, 2].into()));
    node.tick();
    let second = seconds.try_recv().expect("a second");
    assert_eq!(second.at, START.secs());
    let expected = Point { allowed: 6, denied: 4, banned: 0, shadow_denied: 3, clients_limited: 1 };
    assert_eq!(second.total, expected);
    let rules: Vec<_> =
        second.rules.iter().map(|(rule, point)| (rule.as_str(), point.allowed, point.denied)).collect();
    assert_eq!(rules, [("login", 6, 4), ("all", 3, 0)]);
    assert_eq!(second.rules[1].1.shadow_denied, 7);
    assert!(second.detail.p50_us.is_some_and(|p50| (2.0..2.3).contains(&p50)));
    let first = &second.decisions[0];
    assert_eq!((first.allowed, first.key.as_deref()), (false, Some("ip:192.0.2.1")), "denials first");
    assert!(second.decisions.iter().any(|one| one.allowed && one.key.as_deref() == Some("ip:192.0.2.2")));
    let data = node.insight.data();
    let replayed = data.replay(START.secs()).expect("it can be replayed");
    assert_eq!((replayed.total, replayed.detail), (second.total, second.detail));
    assert!(data.replay(START.secs() + 1).is_none(), "the current second is not complete");
}

#[test]
fn keys_near_their_limit_are_counted_and_listed() {
    let node = Node::new("rules: [{ id: login, key: user, limit: 10/m }]");
    (0..9).for_each(|_| _ = node.check(&Hit::by("ann")));
    node.check(&Hit::by("bob"));
    let data = node.insight.data();
    let near = data.top.top(TopOutcome::Near, TopWindow::Minute, None, 9).keys;
    assert_eq!(near.iter().map(|key| (&*key.key, key.count)).collect::<Vec<_>>(), [("user:ann", 2)]);
    let series = data.series(SeriesName::Rule("login")).expect("it was used");
    assert_eq!(series.near_limit(), 2);
    assert_eq!(series.headroom().last(), Some(&0.95));
}

#[test]
fn an_attack_leaves_other_denials_and_allows_in_the_lists() {
    let mut node = Node::new("rules: [{ id: login, key: ip, limit: 1/h }]");
    let hit = |last| Hit::on("GET", "h", "/").ip([192, 0, 2, last].into());
    node.check(&hit(1));
    node.check(&hit(2));
    node.check(&hit(2));
    for _ in 0..100 {
        (0..1_000).for_each(|_| _ = node.check(&hit(1)));
        node.tick();
    }
    let data = node.insight.data();
    assert!(
        data.decisions(ListedOutcome::Denied).iter().any(|one| one.key.as_deref() == Some("ip:192.0.2.2"))
    );
    assert_eq!(data.decisions(ListedOutcome::Allowed).len(), 2);
}

/// Batches of threads were listed in the order in which they were merged: `limit` left out later decisions.
#[test]
fn decisions_are_newest_first_in_whatever_order_batches_are_merged() {
    let mut node = Node::new("rules: [{ id: login, key: user, limits: [9/m] }]");
    for (seconds, user) in [(2, "ann"), (3, "bob"), (1, "cid")] {
        node.now = START + Duration::from_secs(seconds);
        node.check(&Hit::by(user).cost(2));
        drop(node.insight.data());
    }
    let data = node.insight.data();
    let decisions = data.decisions(ListedOutcome::Allowed);
    let keys: Vec<_> = decisions.iter().filter_map(|one| one.key.as_deref()).collect();
    assert_eq!(keys, ["user:bob", "user:ann", "user:cid"]);
    let limit = decisions[0].limit.expect("a limit");
    assert_eq!((limit.limit.to_string().as_str(), limit.used, limit.cost), ("9/m", 2, 2));
    let latest = data.latest(Reason::Ok).and_then(|one| one.key.as_deref());
    assert_eq!(latest, Some("user:bob"));
}

#[test]
fn banned_clients_are_counted_and_listed() {
    let mut node = Node::new(
        "rules: [{ id: r, key: ip, limit: 1/h, ban: { key: [ip], after: 1, within: 1m, for: 1h } }]",
    );
    let hit = Hit::on("GET", "h", "/").ip([192, 0, 2, 1].into());
    (0..7).for_each(|_| _ = node.check(&hit));
    node.tick();
    let data = node.insight.data();
    let total = data.replay(START.secs()).expect("a second").total;
    assert_eq!((total.allowed, total.denied, total.banned), (1, 1, 5));
    let top = data.top.top(TopOutcome::Denied, TopWindow::Minute, None, 9).keys;
    let listed: Vec<_> = top.iter().map(|key| (key.rule.as_deref(), &*key.key, key.count)).collect();
    assert_eq!(listed, [(None, "ip:192.0.2.1", 5), (Some("r"), "ip:192.0.2.1", 1)]);
}

/// A million keys and many threads: nothing is lost, and a key that matters is found among them.
#[test]
fn a_flood_of_keys_is_counted_completely() {
    const EACH: u64 = 50_000;
    let mut node = Node::new("rules: [{ id: login, key: user, limit: 1000000/h }]");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let node = &node;
            scope.spawn(move || {
                for n in 0..EACH {
                    node.check(&Hit::by(&format!("{thread}-{n}")));
                    if n % 10 == 0 {
                        node.check(&Hit::by("frequent"));
                    }
                }
            });
        }
    });
    node.tick();
    let data = node.insight.data();
    let total = data.replay(START.secs()).expect("a second").total;
    assert_eq!(u64::from(total.allowed), 4 * EACH + 4 * EACH / 10);
    let top = data.top.top(TopOutcome::Allowed, TopWindow::Minute, None, 1).keys;
    assert_eq!(top[0].key, "user:frequent");
    assert!((top[0].count - top[0].error..=top[0].count).contains(&(4 * EACH / 10)));
}

#[test]
fn more_rules_than_series_are_counted_as_others_until_they_are_active() {
    let rules: String =
        (0..150).map(|n| format!("- {{ id: r{n}, match: /r{n}, limit: 1000000/h }}\n")).collect();
    let mut node = Node::new(&format!("rules:\n{rules}"));
    let check = |node: &Node, rule: u32| node.check(&Hit::on("GET", "h", &format!("/r{rule}")));
    (0..150).for_each(|rule| _ = check(&node, rule));
    node.tick();
    let others = |node: &Node| {
        let data = node.insight.data();
        data.series(SeriesName::Other).expect("it is always there").last_minute().allowed
    };
    assert_eq!(others(&node), 50);
    (0..1_000).for_each(|_| _ = check(&node, 149));
    node.tick();
    node.tick();
    check(&node, 149);
    let data = node.insight.data();
    assert!(data.series(SeriesName::Rule("r149")).is_some(), "it has replaced another one");
    assert_eq!(data.by_activity().len(), data::MAX_RULES);
    drop(data);
    assert_eq!(others(&node), 50 + 1_000 + 1, "what a rule had before stays with the others");
}

#[test]
fn a_clock_that_is_set_back_starts_anew() {
    let mut node = Node::new("rules: [{ id: r, limit: 5/m }]");
    node.check(&Hit::by("ann"));
    node.tick();
    node.insight.tick(Time::from_secs(START.secs() - 3_600));
    assert_eq!(node.insight.data().second(), START.secs() - 3_600);
}
