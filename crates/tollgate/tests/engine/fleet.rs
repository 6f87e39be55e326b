//! Violations that a store counts for all nodes: what is sent, and what is applied.

use tollgate::internal::ban::ViolationCounter;

use super::*;

const RULES: &str = "rules:
  - {id: a, match: /a, key: user, limit: 1/h, ban: {after: 3, for: 1h, max: 4h}}
  - {id: b, key: user, limit: 1/h, ban: {after: 5, for: 1h, max: 4h}}";

fn hit() -> Hit<'static> {
    Hit::on("GET", "", "/a").user("ann")
}

fn fleet() -> EngineCore {
    let engine = engine(RULES);
    engine.set_violation_counter(ViolationCounter::Fleet);
    engine
}

fn automatic(until: Time, strikes: u32) -> Ban {
    Ban { until, reason: "3 denials by rule a".into(), source: BanSource::Automatic, strikes }
}

fn ann() -> Key {
    key("user:ann")
}

#[test]
fn violations_wait_for_the_store_and_are_handed_out_once() {
    let engine = fleet();
    assert_eq!(allowed(&engine, &hit(), 11, NOW), 1);
    assert_eq!(engine.bans(NOW), [], "the store decides");
    let taken = engine.take_violations();
    assert_eq!((taken.len(), engine.take_violations().len()), (1, 0));
    let counts: Vec<_> = taken[0].by_rule.iter().map(|by| (by.rule.to_string(), by.times[0])).collect();
    assert_eq!(counts, [("a".to_owned(), (NOW, 10)), ("b".to_owned(), (NOW, 10))], "one a rule and request");
    engine.count_violations_locally(&taken[0]);
    assert_eq!(engine.find_ban(ann(), NOW), Some(automatic(NOW + HOUR, 1)), "the store was not there");
    assert_eq!(engine.policy().rule("a").expect("it is there").counts().banned, 1);
}

#[test]
fn what_a_ban_covers_is_not_handed_out() {
    let engine = fleet();
    allowed(&engine, &hit(), 5, NOW);
    engine.apply_fleet_ban(&ann(), &automatic(NOW + HOUR, 1), NOW);
    assert_eq!(engine.take_violations(), []);
    assert_eq!(engine.check(&hit(), NOW).reason, Reason::Ban);
    let over = NOW + HOUR;
    engine.check(&Hit::by("ann"), over);
    engine.check(&Hit::by("ann"), over);
    let taken = engine.take_violations();
    assert_eq!(
        (taken[0].known_strikes.count, taken[0].known_strikes.until),
        (1, over),
        "the strike is sent to the store"
    );
}

#[test]
fn a_ban_that_this_node_has_led_to_is_handed_to_the_database_and_one_it_has_learned_is_not() {
    let engine = fleet();
    engine.take_pending_bans();
    engine.apply_fleet_ban(&key("user:other"), &automatic(NOW + HOUR, 1), NOW);
    for _ in 0..2 {
        engine.apply_decided_ban("a", &ann(), &automatic(NOW + HOUR, 1), NOW);
    }
    assert_eq!(engine.take_pending_bans(), [(ann(), automatic(NOW + HOUR, 1))]);
    assert_eq!(engine.policy().rule("a").expect("it is there").counts().banned, 1);
    assert_eq!(engine.replace_bans([], NOW), 0, "a database that does not have them drops none");
    assert_eq!(engine.ban_count(NOW), 2);
    engine.unban(ann(), NOW);
    engine.put_ban(ann(), by_hand(NOW + HOUR), NOW);
    assert_eq!(engine.replace_bans([], NOW), 1, "what was lifted is no longer the fleet's");
}

#[test]
fn a_lift_elsewhere_lifts_the_ban_it_means_and_no_other() {
    let engine = fleet();
    engine.apply_fleet_ban(&ann(), &automatic(NOW + HOUR * 2, 2), NOW);
    assert_eq!(engine.apply_fleet_lift(&ann(), NOW + HOUR, NOW), None, "a later ban stays");
    assert_eq!(engine.apply_fleet_lift(&ann(), NOW + HOUR * 2, NOW), Some(automatic(NOW + HOUR * 2, 2)));
    assert_eq!(engine.apply_fleet_lift(&ann(), NOW + HOUR * 2, NOW), None);
    engine.ban(ann(), by_hand(NOW + HOUR), NOW);
    assert_eq!(engine.apply_fleet_lift(&ann(), NOW + HOUR * 2, NOW), None, "one by hand stays");
    assert_eq!(engine.find_ban(ann(), NOW), Some(by_hand(NOW + HOUR)));
}
