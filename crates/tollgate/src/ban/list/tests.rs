//! A listed ban is found, whatever else is listed.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::ban::BanSource;
use crate::sync::steps::measure;

const MINUTE: Duration = Duration::from_secs(60);
const NOW: Time = Time::from_secs(1_800_000_000);

fn list() -> BanList {
    BanList::new(Secret::from_bytes([7; 16]))
}

fn key(text: &str) -> Key {
    Key::parse(text).expect(text)
}

fn user(n: usize) -> Key {
    key(&format!("user:{n}"))
}

fn ban(until: Time, source: BanSource) -> Ban {
    Ban { until, reason: "test".into(), source, strikes: u32::from(source == BanSource::Automatic) }
}

fn by_hand(until: Time) -> Ban {
    ban(until, BanSource::Manual)
}

fn all(list: &BanList, now: Time) -> Vec<(Key, Ban)> {
    list.page(std::iter::empty(), None, usize::MAX, now)
}

/// The ban that the list finds for a request of this user from this address.
fn found(list: &BanList, ip: &str, user: &str, now: Time) -> Option<String> {
    let value = |attribute: &Attribute| match attribute {
        Attribute::User => Some(Cow::Borrowed(user)),
        Attribute::Ip => Some(Cow::Borrowed(ip)),
        _ => None,
    };
    list.check(ip.parse().ok(), value, now).ok().flatten().map(|(key, _)| key.to_string())
}

#[test]
fn a_ban_ends_by_itself() {
    let list = list();
    list.insert(key("ip:10.0.0.0/8"), by_hand(NOW + MINUTE), NOW);
    assert_eq!(found(&list, "10.1.2.3", "", NOW).as_deref(), Some("ip:10.0.0.0/8"));
    assert_eq!(found(&list, "11.1.2.3", "", NOW), None);
    assert_eq!(found(&list, "10.1.2.3", "", NOW + MINUTE), None);
    assert!(all(&list, NOW + MINUTE).is_empty());
}

#[test]
fn made_up_offenders_do_not_fill_the_memory_and_bans_that_are_over_make_room() {
    let list = BanList::with_capacity(Secret::random(), 3, MAX_KEY_BYTES);
    let earn = |n, now: Time| list.insert_automatic(&user(n), &ban(now + MINUTE, BanSource::Automatic), now);
    assert_eq!([0, 1, 2, 3].map(|n| earn(n, NOW)), [true; 4]);
    assert_eq!((all(&list, NOW).len(), list.dropped()), (3, 1));
    (6..9).for_each(|n| _ = list.insert(user(n), by_hand(NOW + MINUTE), NOW));
    assert_eq!(all(&list, NOW).len(), 6, "by hand there is always room");
    assert!(!earn(10, NOW), "bans by hand are not evicted");
    assert_eq!((6..9).filter(|n| list.get(&user(*n), NOW).is_some()).count(), 3);
    assert!(earn(4, NOW + MINUTE));
    assert_eq!(all(&list, NOW + MINUTE).len(), 1);
}

#[test]
fn bans_that_are_over_do_not_pile_up() {
    let list = list();
    for n in 0..80_000 {
        let now = NOW + Duration::from_secs(n as u64);
        list.insert(user(n), by_hand(now + MINUTE), now);
    }
    let len = list.len.load(Ordering::Relaxed);
    assert!(len <= 256 * SHARDS, "{len}");
    assert_eq!(list.count(NOW + Duration::from_secs(80_000)), 59);
}

/// A regression: an automatic ban purged the whole of a full list, or built the filter of all bans, under the writers'
/// lock.
#[test]
fn a_change_visits_a_bounded_number_of_bans_however_many_there_are() {
    let mut longest = Vec::new();
    for bans in [20_000, 40_000] {
        let list = BanList::with_capacity(Secret::random(), bans, MAX_KEY_BYTES);
        let mut most = 0;
        let mut earn = |n: usize, now: Time| {
            let ban = ban(now + MINUTE, BanSource::Automatic);
            let mut is_listed = false;
            most = most.max(measure(|| is_listed = list.insert_automatic(&user(n), &ban, now)).total);
            is_listed
        };
        assert!((0..bans).all(|n| earn(n, NOW)), "there is room for all");
        // Some of them came while the next filter was built.
        assert!((0..bans).all(|n| found(&list, "", &n.to_string(), NOW).is_some()), "all are found");
        assert!((bans..bans + 200).all(|n| earn(n, NOW)), "others are evicted");
        assert!(list.count(NOW) <= bans && list.dropped.load(Ordering::Relaxed) >= 200, "it was full");
        // All have ended, and nearly as many come.
        let after = NOW + MINUTE;
        let dropped = (bans..2 * bans - bans / 16).filter(|n| !earn(*n, after)).count();
        assert_eq!(dropped, 0, "ended bans make room");
        assert!(bans / SHARDS >= 64, "shards have many bans");
        longest.push(most);
        // A purge and the next filter: each a step, and the shard that it ends with; the own shard may be rewritten.
        assert!(most <= 4 * upkeep::STEP_BANS, "{most} steps with {bans} bans");
    }
    assert!(longest.iter().all(|most| *most > 256), "upkeep was counted: {longest:?}");
}

#[test]
fn a_clock_that_was_set_back_does_not_stop_the_purge() {
    let list = BanList::with_capacity(Secret::random(), 3, MAX_KEY_BYTES);
    let earn = |n, now: Time| list.insert_automatic(&user(n), &ban(now + MINUTE, BanSource::Automatic), now);
    let back = NOW - MINUTE * 60;
    assert_eq!([0, 1].map(|n| earn(n, back)), [true, true]);
    assert_eq!([2, 3].map(|n| earn(n, NOW)), [true, true], "the first two are over");
    list.insert(user(4), ban(back + MINUTE, BanSource::Automatic), back);
    assert!(earn(5, back) && list.dropped() == 1, "three were in force");
    assert!(earn(6, back + MINUTE) && list.dropped() == 1, "one is over");
}

#[test]
fn a_key_too_long_to_be_named_is_not_banned_but_counted() {
    let list = list();
    let long = Key::new(vec![(Attribute::User, "x".repeat(Key::MAX_LEN))]).expect("valid");
    list.insert_automatic(&long, &ban(NOW + MINUTE, BanSource::Automatic), NOW);
    assert_eq!((all(&list, NOW), list.dropped()), (vec![], 1));
}

#[test]
fn reasons_are_kept_whether_they_are_shared_or_not() {
    let list = list();
    let reason = |n: usize| match n % 3 {
        0 => "abuse".to_owned(),
        1 => String::new(),
        _ => format!("ticket {n} — näheres dort"),
    };
    for n in 0..20_000 {
        list.insert(user(n), Ban { reason: reason(n), ..by_hand(NOW + MINUTE) }, NOW);
    }
    for n in (0..20_000).step_by(7) {
        list.insert(user(n), Ban { reason: reason(n + 1), ..by_hand(NOW + MINUTE) }, NOW);
    }
    for n in 0..20_000 {
        let expected = reason(if n % 7 == 0 { n + 1 } else { n });
        assert_eq!(list.get(&user(n), NOW).map(|ban| ban.reason), Some(expected));
    }
    let long = Ban { reason: "ä".repeat(40_000), ..by_hand(Time::MAX) };
    list.insert(user(1), long, NOW);
    let kept = list.get(&user(1), NOW).expect("it is there").reason;
    assert_eq!(kept, "ä".repeat(32_767), "as much of it as fits");
}

#[test]
fn a_lookup_probes_as_often_with_many_bans_as_with_one() {
    let probes = |list: &BanList, name: &str| {
        let probed = Cell::new(0);
        let looked = Cell::new(0);
        let front = list.read_view.load();
        let value = |attribute: &Attribute| (*attribute == Attribute::User).then_some(Cow::Borrowed(name));
        let found = front.kinds.find(&list.secret, "203.0.113.9".parse().ok(), value, |fingerprint, _| {
            probed.set(probed.get() + 1);
            looked.set(looked.get() + usize::from(front.filter.may_contain(fingerprint)));
            None::<()>
        });
        assert!(matches!(found, Ok(None)));
        (probed.get(), looked.get())
    };
    let one = list();
    let many = list();
    for list in [&one, &many] {
        list.insert(user(0), by_hand(Time::MAX), NOW);
        list.insert(key("ip:198.51.100.7"), by_hand(Time::MAX), NOW);
    }
    (0..30_000).for_each(|n| _ = many.insert(user(n), by_hand(Time::MAX), NOW));
    let mut looked = 0;
    for n in 0..10_000 {
        let (probed, found) = probes(&many, &format!("stranger {n}"));
        assert_eq!(probed, 2, "one for addresses and one for users");
        assert_eq!(probes(&one, &format!("stranger {n}")).0, probed);
        looked += found;
    }
    assert!(looked < 800, "{looked} of 20000 probes went beyond the filter");
}

const KEYS: [&str; 10] = [
    "user:1",
    "user:2",
    "user:3",
    "ip:10.0.0.0/8",
    "ip:10.1.0.0/16",
    "ip:10.1.2.3",
    "ip:2001:db8::/32",
    "ip:10.9.9.9+user:2",
    "email:a@example.com",
    "ip:10.1.2.4",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_list_holds_what_was_put_in(
        steps in prop::collection::vec((prop::sample::select(&KEYS[..]), 0u64..100, 0u8..4), 0..80),
    ) {
        let list = list();
        let mut model = BTreeMap::new();
        let mut now = NOW;
        for (text, seconds, what) in steps {
            now = now + Duration::from_secs(5);
            let until = now + Duration::from_secs(seconds);
            match what {
                0 => {
                    list.remove(&key(text), now);
                    model.remove(text);
                }
                1 => {
                    list.retain(&HashSet::from([list.fingerprint(&key(text))]), now);
                    model.retain(|known, _| *known == text);
                }
                2 => {
                    list.put(key(text), by_hand(until), now);
                    model.insert(text, by_hand(until));
                }
                _ => {
                    list.insert(key(text), by_hand(until), now);
                    model.insert(text, by_hand(until));
                }
            }
            let expected: BTreeMap<_, _> =
                model.iter().filter(|(_, ban)| ban.until > now).map(|(key, ban)| (*key, ban.clone())).collect();
            let listed = all(&list, now);
            let listed: Vec<_> = listed.iter().map(|(key, ban)| (key.to_string(), ban.clone())).collect();
            prop_assert_eq!(&listed, &expected.iter().map(|(key, ban)| (key.to_string(), ban.clone())).collect::<Vec<_>>());
            prop_assert_eq!(list.count(now), expected.len());
            let banned = |text: &str| expected.contains_key(text);
            prop_assert_eq!(found(&list, "11.0.0.1", "1", now).is_some(), banned("user:1"));
            let longest = ["ip:10.1.2.3", "ip:10.1.0.0/16", "ip:10.0.0.0/8"].into_iter().find(|text| banned(text));
            prop_assert_eq!(found(&list, "10.1.2.3", "9", now), longest.map(str::to_owned));
            prop_assert_eq!(found(&list, "2001:db8::1", "9", now).is_some(), banned("ip:2001:db8::/32"));
            prop_assert_eq!(found(&list, "10.9.9.9", "2", now).is_some(),
                banned("ip:10.0.0.0/8") || banned("user:2") || banned("ip:10.9.9.9+user:2"));
            for limit in 0..4 {
                let after = key("ip:10.1.2.3");
                let page = list.page(std::iter::empty(), Some(&after), limit, now);
                let rest = expected.keys().filter(|text| **text > "ip:10.1.2.3").take(limit);
                prop_assert!(page.iter().map(|(key, _)| key.to_string()).eq(rest.map(ToString::to_string)));
            }
        }
    }
}

#[test]
fn the_keys_of_automatic_bans_take_bounded_memory() {
    let list = BanList::with_capacity(Secret::random(), MAX_BANS, 1_000);
    let earn = |n, now: Time| list.insert_automatic(&user(n), &ban(now + MINUTE, BanSource::Automatic), now);
    let kept = (100..300).filter(|n| earn(*n, NOW)).count();
    assert_eq!((kept, list.dropped()), (200, 75), "eight bytes each");
    assert_eq!(list.count(NOW), 125);
    list.insert(user(9), by_hand(NOW + MINUTE), NOW);
    assert_eq!(list.count(NOW), 126, "by hand there is always room");
    // Ended bans make room, to the byte.
    assert!(earn(300, NOW + MINUTE));
    assert_eq!(list.key_bytes.load(Ordering::Relaxed), 8);
}

/// With a million automatic bans, or 64 MiB of their keys, every further one was dropped, whatever its rule.
#[test]
fn a_list_filled_under_one_rule_takes_bans_of_another_and_keeps_relapsed_offenders() {
    const BANS: usize = 20_000;
    let list = BanList::with_capacity(Secret::random(), BANS, MAX_KEY_BYTES);
    let earn = |n: usize, rule: &str, strikes: u32| {
        let reason = format!("3 denials by rule {rule}");
        let ban = Ban { until: NOW + MINUTE, reason, source: BanSource::Automatic, strikes };
        assert!(list.insert_automatic(&user(n), &ban, NOW), "{n}");
    };
    let listed = |range: std::ops::Range<usize>| range.filter(|n| list.get(&user(*n), NOW).is_some()).count();
    (0..100).for_each(|n| earn(n, "login", 1));
    (100..200).for_each(|n| earn(n, "search", 2));
    let invented = 1_000..3 * BANS;
    invented.clone().for_each(|n| earn(n, "search", 1));
    (200..300).for_each(|n| earn(n, "login", 1));
    assert_eq!(listed(0..300), 300, "none of them was evicted by what was invented under one rule");
    assert!((BANS - 2_000..=BANS).contains(&list.count(NOW)), "{}", list.count(NOW));
    let evicted = invented.clone().find(|n| list.get(&user(*n), NOW).is_none()).expect("some were");
    assert_eq!(list.offenders.strikes(list.fingerprint(&user(evicted))).count, 1, "strikes are kept");
}
