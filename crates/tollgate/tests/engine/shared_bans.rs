//! Bans from and to a database that several nodes share, and allowed keys that come and go.

use tollgate::internal::policy::{AllowSource, PolicyChange};

use super::*;

const RULES: &str = "rules:
  - {id: login, match: /login, key: user, limit: 1/h, ban: {after: 2, for: 1h, max: 4h}}
  - {id: other, match: /other, key: user, limit: 1/h, ban: {after: 2, for: 1h, max: 4h}}
bans: [{key: 'user:file'}]";

fn automatic(until: Time, strikes: u32) -> Ban {
    Ban { until, reason: "2 denials by rule login".into(), source: BanSource::Automatic, strikes }
}

/// Is denied until banned; returns the ban.
fn offend(engine: &EngineCore, path: &str, user: &str, now: Time) -> Ban {
    (0..3).for_each(|_| _ = engine.check(&Hit::on("GET", "", path).user(user), now));
    engine.find_ban(key(&format!("user:{user}")), now).expect("it is banned")
}

fn keys(bans: &[(Key, Ban)]) -> Vec<String> {
    bans.iter().map(|(key, _)| key.to_string()).collect()
}

#[test]
fn bans_of_a_database_come_change_and_go_beside_those_of_the_file() {
    let engine = engine(RULES);
    for _ in 0..2 {
        engine.put_ban(key("user:a"), by_hand(NOW + HOUR), NOW);
        engine.put_ban(key("ip:192.0.2.0/24"), by_hand(NOW + HOUR), NOW);
    }
    engine.put_ban(key("user:a"), by_hand(NOW + MINUTE), NOW);
    engine.put_ban(key("user:over"), by_hand(NOW), NOW);
    assert_eq!(keys(&engine.bans(NOW)), ["ip:192.0.2.0/24", "user:a", "user:file"]);
    assert_eq!(engine.find_ban(key("user:a"), NOW), Some(by_hand(NOW + MINUTE)));
    assert_eq!(engine.ban_count(NOW), 3);
    for banned in [Hit::by("a"), Hit::by("file"), from("192.0.2.9")] {
        assert_eq!(engine.check(&banned, NOW).reason, Reason::Ban);
    }
    assert_eq!(engine.remove_ban(key("user:a"), NOW), Some(by_hand(NOW + MINUTE)));
    assert_eq!(engine.remove_ban(key("user:a"), NOW), None);
    engine.put_ban(key("user:file"), by_hand(NOW + MINUTE), NOW);
    engine.remove_ban(key("user:file"), NOW);
    assert_eq!(keys(&engine.bans(NOW)), ["ip:192.0.2.0/24", "user:file"]);
}

#[test]
fn a_full_load_drops_what_the_database_no_longer_has() {
    let engine = engine(RULES);
    engine.take_pending_bans();
    engine.put_ban(key("user:stays"), by_hand(NOW + HOUR), NOW);
    engine.put_ban(key("user:lifted"), automatic(NOW + HOUR, 2), NOW);
    engine.ban(key("user:by-hand"), by_hand(NOW + HOUR), NOW);
    offend(&engine, "/login", "untold", NOW);
    let bans = [(key("user:stays"), by_hand(NOW + HOUR)), (key("user:new"), by_hand(NOW + HOUR))];
    assert_eq!(engine.replace_bans(bans, NOW), 2);
    assert_eq!(keys(&engine.bans(NOW)), ["user:file", "user:new", "user:stays", "user:untold"]);
    assert_eq!(offend(&engine, "/login", "lifted", NOW).strikes, 1, "an unban elsewhere forgives");
}

#[test]
fn a_ban_lifted_while_a_node_was_down_is_lifted_after_its_saved_state_was_read() {
    let before = engine(RULES);
    before.put_ban(key("user:a"), by_hand(NOW + HOUR), NOW);
    let mut bytes = Vec::new();
    before.save(&mut bytes, RULES, NOW).expect("memory can be written");
    let setup = EngineSetup::default();
    let (after, restored) = EngineCore::restore(policy(RULES), setup, &bytes, |_| None, NOW).expect("sound");
    assert_eq!(restored.bans, 1);
    after.replace_bans([], NOW);
    assert_eq!(keys(&after.bans(NOW)), ["user:file"]);
}

#[test]
fn automatic_bans_are_published_once_and_others_never() {
    let engine = engine(RULES);
    offend(&engine, "/login", "early", NOW);
    assert_eq!(engine.take_pending_bans(), [], "no consumer is registered");
    let earned = offend(&engine, "/login", "a", NOW);
    engine.ban(key("user:b"), by_hand(NOW + HOUR), NOW);
    engine.put_ban(key("user:c"), automatic(NOW + HOUR, 1), NOW);
    assert_eq!(engine.take_pending_bans(), [(key("user:a"), earned.clone())]);
    engine.put_ban(key("user:a"), earned, NOW);
    assert_eq!((engine.take_pending_bans(), engine.unpublished_bans()), (vec![], 0));
}

#[test]
fn strikes_follow_a_key_from_node_to_node() {
    let [first, second] = [engine(RULES), engine(RULES)];
    first.take_pending_bans();
    let mut now = NOW;
    for (node, other, hours) in
        [(&first, &second, 1), (&second, &first, 2), (&first, &second, 4), (&second, &first, 4)]
    {
        node.take_pending_bans();
        let path = if hours == 2 { "/other" } else { "/login" };
        let ban = offend(node, path, "a", now);
        assert_eq!(ban.until.since(now), HOUR * hours);
        let earned = node.take_pending_bans().into_iter().chain([(key("user:a"), ban.clone())]);
        earned.for_each(|(key, ban)| other.put_ban(key, ban, now));
        now = ban.until;
        // Whoever tidies the database up removes the row some time later, on every node.
        other.remove_ban(key("user:a"), now + SECOND);
        node.remove_ban(key("user:a"), now + SECOND);
        now = now + HOUR + SECOND;
    }
    let ban = offend(&first, "/login", "a", now + HOUR * 3);
    assert_eq!(ban.strikes, 1, "clean for as long as max");
}

#[test]
fn strikes_of_a_ban_that_is_over_by_the_time_it_arrives_count() {
    let engine = engine(RULES);
    engine.put_ban(key("user:a"), automatic(NOW - MINUTE, 2), NOW);
    assert_eq!(engine.bans(NOW).len(), 1, "the one of the file");
    assert_eq!(offend(&engine, "/login", "a", NOW).strikes, 3);
}

#[test]
fn a_manual_ban_removes_no_strikes() {
    let engine = engine(RULES);
    engine.put_ban(key("user:a"), automatic(NOW + HOUR, 2), NOW);
    engine.put_ban(key("user:a"), by_hand(NOW + HOUR * 2), NOW);
    assert_eq!(offend(&engine, "/login", "a", NOW + HOUR * 3).strikes, 3);
}

#[test]
fn an_unban_from_another_node_removes_the_strikes() {
    let engine = engine(RULES);
    assert_eq!(offend(&engine, "/login", "a", NOW).strikes, 1);
    engine.remove_ban(key("user:a"), NOW);
    assert_eq!(offend(&engine, "/login", "a", NOW).strikes, 1);
    engine.remove_ban(key("user:a"), NOW + HOUR);
    assert_eq!(offend(&engine, "/login", "a", NOW + HOUR).strikes, 2, "it was over by itself");
}

#[test]
fn bans_are_listed_page_by_page() {
    let engine = engine(RULES);
    let mut all: Vec<_> = (0..100).map(|n| format!("user:{n}")).chain(["user:file".to_owned()]).collect();
    (0..100).for_each(|n| _ = engine.ban(key(&format!("user:{n}")), by_hand(NOW + HOUR), NOW));
    engine.ban(key("user:over"), by_hand(NOW + MINUTE), NOW - MINUTE);
    all.sort();
    let mut listed = Vec::new();
    let mut after = None;
    loop {
        let page = engine.bans_page(after.as_ref(), 7, NOW + MINUTE);
        assert!(page.len() <= 7);
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        listed.extend(keys(&page));
    }
    assert_eq!(listed, all);
    assert_eq!(engine.bans_page(None, 0, NOW), []);
}

#[test]
fn of_two_bans_of_one_key_the_longer_is_shown_and_both_hold() {
    let engine = engine(
        "bans: [{key: 'ip:10.0.0.0/8', until: 2030-01-01T00:00:00Z}, {key: 'user:a', until: 2030-01-01T00:00:00Z}]",
    );
    engine.ban(key("user:a"), by_hand(NOW + MINUTE), NOW);
    engine.ban(key("ip:10.0.0.0/16"), by_hand(NOW + MINUTE), NOW);
    assert_eq!(engine.find_ban(key("user:a"), NOW).map(|ban| ban.source), Some(BanSource::File));
    assert_eq!(engine.bans(NOW).len(), 3);
    let by = |ip, now| engine.check(&from(ip), now).ban.map(|ban| ban.0.to_string());
    assert_eq!(by("10.0.1.1", NOW).as_deref(), Some("ip:10.0.0.0/16"), "the longest prefix of both");
    assert_eq!(by("10.0.1.1", NOW + MINUTE).as_deref(), Some("ip:10.0.0.0/8"));
    assert_eq!(engine.check(&Hit::by("a"), NOW + MINUTE).reason, Reason::Ban);
}

#[test]
fn the_allow_list_changes_while_it_runs_and_keeps_what_the_file_says() {
    let engine = engine("{rules: [{id: none, limit: 0/m}], allow: ['user:file', 'user:both']}");
    let changed = |change| engine.change([change], NOW).expect("it is possible");
    let passes = |user| engine.check(&Hit::by(user), NOW).reason == Reason::AllowList;
    for user in ["user:both", "user:new", "ip:10.0.0.0/8", "ip:2001:db8::1+user:v6"] {
        changed(PolicyChange::Allow(key(user)));
        changed(PolicyChange::Allow(key(user)));
    }
    assert_eq!(["file", "both", "new", "other"].map(passes), [true, true, true, false]);
    assert_eq!(engine.check(&from("10.1.2.3"), NOW).reason, Reason::AllowList);
    assert_eq!(engine.check(&from("2001:db8::2").user("v6"), NOW).reason, Reason::AllowList, "one group");
    engine.apply(policy("{rules: [{id: none, limit: 0/m}], allow: ['user:both']}"), NOW);
    assert_eq!(["file", "both", "new"].map(passes), [false, true, true], "a new file, the same database");
    let policy = engine.policy();
    let listed: Vec<_> = policy.allow_list().map(|(key, source)| (key.to_string(), source)).collect();
    assert_eq!(listed.iter().filter(|(key, _)| key == "user:both").count(), 2);
    assert!(listed.contains(&("user:new".to_owned(), AllowSource::Change)));
    changed(PolicyChange::Disallow(key("user:both")));
    changed(PolicyChange::Disallow(key("user:new")));
    changed(PolicyChange::Disallow(key("user:nobody")));
    assert_eq!(["both", "new"].map(passes), [true, false]);
    assert!(engine.policy().is_allow_listed(&key("user:both"), AllowSource::File));
    assert!(!engine.policy().is_allow_listed(&key("user:both"), AllowSource::Change));
}

#[test]
fn banned_keys_are_found_while_the_list_changes_and_no_others_are() {
    let engine = engine("rules: []");
    engine.put_ban(key("user:evil"), by_hand(Time::MAX), NOW);
    engine.put_ban(key("ip:192.0.2.1"), by_hand(Time::MAX), NOW);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(engine.check(&Hit::by("evil"), NOW).reason, Reason::Ban);
                    assert_eq!(engine.check(&from("192.0.2.1"), NOW).reason, Reason::Ban);
                    assert!(engine.check(&from("192.0.2.2").user("good"), NOW).allowed);
                }
            });
        }
        for n in 0..6_000 {
            engine.put_ban(key(&format!("user:{n}")), by_hand(NOW + HOUR), NOW);
            engine.put_ban(key(&format!("header:x-{}:{n}", n % 5)), by_hand(NOW + HOUR), NOW);
            engine.put_ban(key("user:evil"), by_hand(Time::MAX), NOW);
            engine.remove_ban(key(&format!("header:x-{}:{n}", n % 5)), NOW);
            if n % 1_000 == 999 {
                let kept =
                    [(key("user:evil"), by_hand(Time::MAX)), (key("ip:192.0.2.1"), by_hand(Time::MAX))];
                engine.replace_bans(kept, NOW);
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(engine.ban_count(NOW), 2);
}
