//! A million bans, and very many allowed keys.

use tollgate::internal::PolicySnapshot;
use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::identity::Key;
use tollgate::{Hit, Reason};

use super::*;

/// A ban costs no more than this, with everything that finds it.
const MAX_BYTES_A_BAN: usize = 64;

fn engine() -> EngineCore {
    EngineCore::new(PolicySnapshot::from_yaml("rules: [{id: r, key: user, limit: 5/m}]").expect("valid"))
}

/// Users, addresses and some others, with the reasons that people and rules give.
fn banned(n: usize) -> (Key, Ban) {
    let [_, b, c, d] = (n as u32).to_be_bytes();
    let key = match n % 4 {
        0 | 1 => format!("user:{:06}", n % 1_000_000),
        2 => format!("ip:203.{b}.{c}.{d}"),
        _ => format!("ip:10.{b}.{c}.{d}"),
    };
    let (source, strikes, reason) = match n % 3 {
        0 => (BanSource::Manual, 0, "scraping, see the runbook".to_owned()),
        1 => (BanSource::Automatic, 1, "3 denials by rule login".to_owned()),
        _ => (BanSource::Automatic, 2, format!("{} denials by rule search", n % 8)),
    };
    (
        Key::parse(&key).expect("valid"),
        Ban { until: NOW + std::time::Duration::from_secs(3_600), reason, source, strikes },
    )
}

/// Bans so many; returns what each took at the worst of many moments, and among how many.
fn cost(engine: &EngineCore, count: usize) -> (usize, usize) {
    let before = IN_USE.get();
    let mut worst = (0, 0);
    for n in 0..count {
        let (key, ban) = banned(n);
        engine.put_ban(key, ban, NOW);
        if n >= count / 4 && n % (count / 40) == 0 {
            worst = worst.max(((IN_USE.get() - before) as usize / (n + 1), n + 1));
        }
    }
    worst
}

#[test]
fn a_ban_costs_64_bytes_at_the_most_whatever_their_number() {
    let engine = engine();
    let count = 160_000; // tables double between a quarter of it and the whole
    let (each, among) = cost(&engine, count);
    assert!(each <= MAX_BYTES_A_BAN, "{each} bytes for each of {among} bans");
    assert_eq!(engine.ban_count(NOW), count);
    for n in (0..count).step_by(997) {
        let (key, ban) = banned(n);
        assert_eq!(engine.find_ban(key, NOW), Some(ban));
    }
    assert_eq!(engine.check(&Hit::by("000000"), NOW).reason, Reason::Ban);
    assert!(engine.check(&Hit::by("stranger"), NOW).allowed);
    let page = engine.bans_page(Some(&banned(0).0), 3, NOW);
    let page: Vec<_> = page.iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(page, ["user:000001", "user:000004", "user:000005"]);
}

#[test]
#[ignore = "takes half a minute: prints what a million bans cost"]
fn a_million_bans_fit_64_megabytes() {
    let engine = engine();
    let (each, among) = cost(&engine, 1_000_000);
    println!("{each} bytes for each of {among} bans, at the worst moment");
    assert!(each <= MAX_BYTES_A_BAN && engine.ban_count(NOW) == 1_000_000);
}

#[test]
fn a_change_of_the_allow_list_costs_what_it_changes() {
    let few_and_many = [100, 50_000].map(|count| {
        let engine = engine();
        let key = |n: usize| Key::parse(&format!("user:{n}")).expect("valid");
        engine.change((0..count).map(|n| PolicyChange::Allow(key(n))), NOW).expect("possible");
        [
            allocated(&engine, PolicyChange::Allow(key(count))),
            allocated(&engine, PolicyChange::Disallow(key(count / 2))),
        ]
    });
    let [few, many] = few_and_many;
    for (few, many) in few.into_iter().zip(many) {
        assert!(many <= MAX_BYTES_A_CHANGE && many <= 4 * few, "{few} bytes among a few, {many} among many");
    }
}
