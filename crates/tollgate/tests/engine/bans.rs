//! Allow list, bans by hand, and bans that repeated denials lead to.

use super::*;

#[test]
fn the_allow_list_goes_before_bans_and_bans_before_rules() {
    let engine = engine(
        "
rules: [{id: none, limit: 0/m}]
allow: ['ip:192.0.2.0/24', 'user:friend', 'ip:198.51.100.7+user:both']
bans: [{key: 'ip:192.0.2.1'}, {key: 'user:evil', reason: scraping}]",
    );
    let reason = |hit: Hit<'_>| engine.check(&hit, NOW).reason;
    assert_eq!(reason(from("192.0.2.1")), Reason::AllowList);
    assert_eq!(reason(from("203.0.113.1").user("friend")), Reason::AllowList);
    assert_eq!(reason(from("203.0.113.1").user("evil")), Reason::Ban);
    assert_eq!(reason(from("192.0.2.1").user("evil")), Reason::AllowList);
    assert_eq!(reason(from("203.0.113.1")), Reason::Limit);
    assert_eq!(reason(from("198.51.100.7").user("both")), Reason::AllowList);
    assert_eq!(reason(from("198.51.100.8").user("both")), Reason::Limit);
    let counts: Vec<_> = engine.decisions().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counts, [(Reason::Limit, 2), (Reason::Ban, 1), (Reason::AllowList, 4)]);
    let banned = engine.check(&from("203.0.113.1").user("evil"), NOW);
    assert_eq!((banned.allowed, banned.retry_after, banned.limits().len()), (false, None, 0));
    assert_eq!(banned.message().as_deref(), Some("Banned until further notice: scraping"));
}

#[test]
fn the_longest_prefix_bans() {
    let engine = engine("rules: []");
    for (range, seconds) in [("ip:10.0.0.0/8", 60), ("ip:10.1.0.0/16", 600), ("ip:10.1.2.3", 10)] {
        engine.ban(key(range), by_hand(NOW + SECOND * seconds), NOW);
    }
    let waits = |ip, now| engine.check(&from(ip), now).retry_after.map(|wait| wait.as_secs());
    assert_eq!(waits("10.1.2.3", NOW), Some(10));
    assert_eq!(waits("10.1.2.4", NOW), Some(600));
    assert_eq!(waits("10.2.2.4", NOW), Some(60));
    assert_eq!(waits("::ffff:10.2.2.4", NOW), Some(60));
    assert_eq!(waits("11.0.0.1", NOW), None);
    assert_eq!(waits("10.1.2.3", NOW + SECOND * 10), Some(590), "the wider one is still there");
}

#[test]
fn bans_are_set_replaced_listed_and_lifted_by_hand() {
    let engine = engine("rules: []");
    let evil = || key("user:evil");
    assert_eq!(engine.ban(evil(), by_hand(NOW + MINUTE), NOW), None);
    assert_eq!(engine.ban(evil(), by_hand(NOW + HOUR), NOW), Some(by_hand(NOW + MINUTE)));
    assert_eq!(engine.bans(NOW), [(evil(), by_hand(NOW + HOUR))]);
    assert_eq!(engine.find_ban(evil(), NOW), Some(by_hand(NOW + HOUR)));
    assert_eq!(engine.find_ban(evil(), NOW + HOUR), None);
    assert_eq!(engine.unban(evil(), NOW), Some(by_hand(NOW + HOUR)));
    assert_eq!(engine.unban(evil(), NOW), None);
    assert!(engine.check(&Hit::by("evil"), NOW).allowed);
}

#[test]
fn bans_of_the_file_come_and_go_with_it_and_others_stay() {
    let engine = engine(
        "bans: [{key: 'user:a', until: 2030-01-01T00:00:00Z}, {key: 'user:old', until: 2020-01-01T00:00:00Z}]",
    );
    engine.ban(key("user:b"), by_hand(NOW + HOUR), NOW);
    let banned = || ["a", "b", "c", "old"].map(|user| !engine.check(&Hit::by(user), NOW).allowed);
    assert_eq!(banned(), [true, true, false, false]);
    engine.apply(policy("bans: [{key: 'user:c'}]"), NOW);
    assert_eq!(banned(), [false, true, true, false]);
}

const BANNING: &str = "rules:
  - {id: login, match: /login, key: email, limit: 2/h, ban: {key: ip, after: 3, within: 10m, for: 1h, max: 3h}}";

fn login(email: &'static str) -> Hit<'static> {
    Hit::on("POST", "", "/login").email(email).ip([192, 0, 2, 1].into())
}

#[test]
fn denials_become_a_ban_of_another_key() {
    let engine = engine(BANNING);
    assert_eq!(allowed(&engine, &login("a@example.com"), 4, NOW), 2);
    assert_eq!(engine.bans(NOW), []);
    assert_eq!(engine.check(&login("a@example.com"), NOW).reason, Reason::Limit, "the third denial bans");
    assert_eq!(engine.check(&login("b@example.com"), NOW).reason, Reason::Ban);
    assert_eq!(engine.check(&Hit::on("GET", "", "/").ip([192, 0, 2, 1].into()), NOW).reason, Reason::Ban);
    assert!(engine.check(&login("b@example.com").ip([192, 0, 2, 2].into()), NOW).allowed);
    let (banned, ban) = engine.bans(NOW).pop().expect("there is a ban");
    assert_eq!(
        (banned.to_string().as_str(), ban.source, ban.strikes),
        ("ip:192.0.2.1", BanSource::Automatic, 1)
    );
    assert_eq!((ban.until, ban.reason.as_str()), (NOW + HOUR, "3 denials by rule login"));
    let policy = engine.policy();
    let tally = policy.rule("login").expect("it is there").counts();
    assert_eq!(tally, RuleCounts { allowed: 3, denied: 3, shadow_denied: 0, banned: 1 });
}

/// Is denied until banned; returns for how many hours.
fn offend(engine: &EngineCore, now: Time) -> u64 {
    for _ in 0..20 {
        engine.check(&login("a@example.com"), now);
    }
    let ban = engine.find_ban(key("ip:192.0.2.1"), now).expect("it is banned");
    ban.until.since(now).as_secs() / 3_600
}

#[test]
fn bans_double_up_to_max_and_are_forgotten_after_max() {
    let engine = engine(BANNING);
    let mut now = NOW;
    for hours in [1, 2, 3, 3] {
        assert_eq!(offend(&engine, now), hours);
        now = now + HOUR * hours as u32;
        assert_ne!(engine.check(&login("a@example.com"), now).reason, Reason::Ban, "it is over by itself");
    }
    now = now + HOUR * 2;
    assert_eq!(offend(&engine, now), 3, "not yet forgotten");
    assert_eq!(offend(&engine, now + HOUR * 6), 1, "clean for as long as max");
}

#[test]
fn requests_during_a_ban_do_not_extend_it() {
    let engine = engine(BANNING);
    offend(&engine, NOW);
    for minute in 0..60 {
        assert_eq!(allowed(&engine, &login("b@example.com"), 10, NOW + MINUTE * minute), 0);
    }
    assert!(engine.check(&login("b@example.com"), NOW + HOUR).allowed);
}

#[test]
fn denials_further_apart_than_within_do_not_ban() {
    let engine = engine(BANNING);
    allowed(&engine, &login("a@example.com"), 2, NOW);
    for n in 0..5 {
        assert_eq!(engine.check(&login("a@example.com"), NOW + MINUTE * 5 * n).reason, Reason::Limit);
    }
    assert_eq!(engine.bans(NOW), []);
}

#[test]
fn peeks_and_shadow_rules_record_no_violation() {
    let shadow = engine(&BANNING.replace("id: login,", "id: login, mode: shadow,"));
    assert_eq!(allowed(&shadow, &login("a@example.com"), 20, NOW), 20);
    let peeked = engine(BANNING);
    allowed(&peeked, &login("a@example.com"), 2, NOW);
    for _ in 0..20 {
        assert_eq!(peeked.peek(&login("a@example.com"), NOW).reason, Reason::Limit);
    }
    assert_eq!((shadow.bans(NOW), peeked.bans(NOW)), (vec![], vec![]));
}

#[test]
fn lifting_a_ban_forgives_its_strikes() {
    let engine = engine(BANNING);
    assert_eq!(offend(&engine, NOW), 1);
    assert!(engine.unban(key("ip:192.0.2.1"), NOW).is_some());
    assert_eq!(offend(&engine, NOW), 1);
}

#[test]
fn an_automatic_ban_does_not_shorten_a_manual_one() {
    let engine = engine(BANNING);
    let range = key("ip:192.0.2.0/24");
    allowed(&engine, &login("a@example.com"), 4, NOW);
    engine.ban(key("ip:192.0.2.1"), by_hand(NOW + HOUR * 100), NOW);
    assert_eq!(engine.find_ban(range, NOW), None);
    assert_eq!(offend(&engine, NOW), 100);
}

/// 10,000 automatic bans with keys of 3.9 KB took 99 MB of memory, and 132 MB in the log of the rules database.
#[test]
fn automatic_bans_of_long_keys_store_a_prefix_and_a_fingerprint() {
    let engine = engine(
        "rules: [{ id: a, key: user, limit: 0/m, ban: { key: [user], after: 1, within: 1m, for: 1h } }]",
    );
    let name = |n: usize, length: usize| format!("{n:05}{}", "x".repeat(length - 5));
    engine.take_pending_bans(); // from now on they wait for the database
    for n in 0..1_000 {
        assert_eq!(engine.check(&Hit::by(&name(n, 3_900)), NOW).reason, Reason::Limit);
        assert_eq!(engine.check(&Hit::by(&name(n, 3_900)), NOW).reason, Reason::Ban);
    }
    assert_eq!(engine.check(&Hit::by(&name(7, 3_901)), NOW).reason, Reason::Limit, "another key");
    let stored: usize = engine.bans(NOW).iter().map(|(key, _)| key.to_string().len()).sum();
    let waiting: usize = engine.take_pending_bans().iter().map(|(key, _)| key.to_string().len()).sum();
    assert_eq!(waiting, stored);
    assert!(stored <= 1_001 * 110, "{stored} bytes of 3.9 MB");
    // It is lifted by the name that is shown as well as by its own.
    let (shown, _) = engine.bans(NOW).swap_remove(3);
    assert!(shown.to_string().starts_with("user:00003xxx"), "{shown}");
    for written in [shown.clone(), key(&format!("user:{}", name(3, 3_900)))] {
        engine.ban(shown.clone(), by_hand(NOW + HOUR), NOW);
        assert_eq!(engine.check(&Hit::by(&name(3, 3_900)), NOW).reason, Reason::Ban);
        assert!(engine.unban(written, NOW).is_some());
        assert_eq!(engine.peek(&Hit::by(&name(3, 3_900)), NOW).reason, Reason::Limit);
    }
    // A key that is too long to be written can be banned all the same.
    let endless = name(1, 9_000);
    engine.check(&Hit::by(&endless), NOW);
    assert_eq!(engine.check(&Hit::by(&endless), NOW).reason, Reason::Ban);
    assert_eq!(engine.dropped_bans(), 0);
}

#[test]
fn a_ban_by_hand_or_of_the_file_finds_a_long_key() {
    let one = "y".repeat(300);
    let two = "z".repeat(300);
    let engine = engine(&format!("bans: [{{ key: 'user:{one}' }}]"));
    engine.ban(key(&format!("user:{two}")), by_hand(NOW + HOUR), NOW);
    for name in [one, two] {
        assert_eq!(engine.check(&Hit::by(&name), NOW).reason, Reason::Ban);
        assert!(engine.find_ban(key(&format!("user:{name}")), NOW).is_some());
    }
}
